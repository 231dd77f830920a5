"""Recorders, which turn steps into items, and buffers, which store and sample them."""

from rl_training.data.n_step import NStepAccumulator
from rl_training.data.replay_buffer import ReplayBuffer
from rl_training.data.rollout_buffer import Rollout, RolloutBuffer
from rl_training.data.sequences import PaddedSequences, Sequences

__all__ = ["NStepAccumulator", "PaddedSequences", "ReplayBuffer", "Rollout", "RolloutBuffer", "Sequences"]
