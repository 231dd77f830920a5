"""The Python surface: one class per algorithm."""

from rl_training.api.algorithms import (
    C51,
    DQN,
    DRQN,
    PPO,
    QRDQN,
    R2D2,
    SAC,
    DrQ,
    DrQv2,
    ManagedAlgorithm,
    RecurrentPPO,
    load_agent,
)

__all__ = [
    "C51",
    "DQN",
    "DRQN",
    "PPO",
    "QRDQN",
    "R2D2",
    "SAC",
    "DrQ",
    "DrQv2",
    "ManagedAlgorithm",
    "RecurrentPPO",
    "load_agent",
]
