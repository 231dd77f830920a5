"""Algorithms: one batch in, one update out. Losses are pure functions beside the algorithm that uses them."""

from rl_training.algorithms.c51 import C51, categorical_projection
from rl_training.algorithms.dqn import DQN, dqn_loss
from rl_training.algorithms.drq import DrQ, drq_loss
from rl_training.algorithms.drqn import DRQN
from rl_training.algorithms.drqv2 import DrQv2, drqv2_actor_loss, drqv2_target
from rl_training.algorithms.ppo import PPO, gae, ppo_loss
from rl_training.algorithms.qr_dqn import QRDQN, quantile_huber_loss
from rl_training.algorithms.r2d2 import R2D2
from rl_training.algorithms.recurrent_ppo import RecurrentPPO
from rl_training.algorithms.sac import SAC, sac_actor_loss, sac_target, temperature_loss, twin_critic_loss

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
    "RecurrentPPO",
    "categorical_projection",
    "dqn_loss",
    "drq_loss",
    "drqv2_actor_loss",
    "drqv2_target",
    "gae",
    "ppo_loss",
    "quantile_huber_loss",
    "sac_actor_loss",
    "sac_target",
    "temperature_loss",
    "twin_critic_loss",
]
