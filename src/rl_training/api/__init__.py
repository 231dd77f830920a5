"""The Python surface: one class per algorithm."""

from rl_training.api.algorithms import DQN, ManagedAlgorithm, load_agent

__all__ = ["DQN", "ManagedAlgorithm", "load_agent"]
