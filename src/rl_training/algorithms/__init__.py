"""Algorithms: one batch in, one update out. Losses are pure functions beside the algorithm that uses them."""

from rl_training.algorithms.dqn import DQN, dqn_loss
from rl_training.algorithms.ppo import PPO, gae, ppo_loss
from rl_training.algorithms.recurrent_ppo import RecurrentPPO

__all__ = ["DQN", "PPO", "RecurrentPPO", "dqn_loss", "gae", "ppo_loss"]
