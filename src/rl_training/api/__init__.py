"""The Python surface: one class per algorithm."""

from rl_training.api.algorithms import DQN, PPO, ManagedAlgorithm, RecurrentPPO, load_agent

__all__ = ["DQN", "PPO", "ManagedAlgorithm", "RecurrentPPO", "load_agent"]
