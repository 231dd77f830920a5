"""Algorithms: one batch in, one update out. Losses are pure functions beside the algorithm that uses them."""

from rl_training.algorithms.dqn import DQN, dqn_loss

__all__ = ["DQN", "dqn_loss"]
