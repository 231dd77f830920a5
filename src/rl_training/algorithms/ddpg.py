"""DDPG (Lillicrap et al., arXiv:1509.02971): TD3 with one critic, no noise in the targets and no delay."""

from __future__ import annotations

from pydantic import Field

from rl_training.algorithms.config import Number, Positive
from rl_training.algorithms.td3 import DeterministicActorCritic, DeterministicConfig

__all__ = ["DDPG", "DDPGConfig"]


class DDPGConfig(DeterministicConfig):
    """Settings of DDPG."""

    n_critics: Positive = Field(1, description="critics; a target uses the smallest of their values")
    target_noise: Number = Field(0.0, ge=0.0, description="standard deviation of the noise on actions in targets; 0: none")


class DDPG(DeterministicActorCritic[DDPGConfig]):
    """Deep deterministic policy gradient (Lillicrap et al. 2015), exploring with Gaussian noise."""

    name = "ddpg"
    summary = "a deterministic actor and one critic; TD3 without its three additions"
