"""DRQN: deep Q-learning with an LSTM (Hausknecht & Stone 2015, arXiv:1507.06527)."""

from __future__ import annotations

import torch

from rl_training.algorithms.recurrent_value import (
    RecurrentQLearning,
    RecurrentQPolicy,
    RecurrentValueConfig,
    network_options,
)
from rl_training.models import LSTMQNetwork
from rl_training.types import SpaceSpec

__all__ = ["DRQN", "DRQNConfig"]


class DRQNConfig(RecurrentValueConfig):
    """Settings of DRQN: those of the recurrent value learners."""


class DRQN(RecurrentQLearning[DRQNConfig]):
    """Deep recurrent Q-learning (Hausknecht & Stone 2015): uniform replay of sequences; one-step targets, or with ``n_step``
    those of several steps."""

    name = "drqn"
    summary = "deep Q-learning with an LSTM, on replayed sequences"

    @classmethod
    def make_policy(cls, config: DRQNConfig, spec: SpaceSpec, generator: torch.Generator) -> RecurrentQPolicy:
        network = LSTMQNetwork(spec.observation, spec.action.count, generator, **network_options(config))
        return RecurrentQPolicy(network, spec, config)
