"""Recorders, which turn steps into items, and buffers, which store and sample them."""

from rl_training.data.augmentation import random_shift
from rl_training.data.frame_replay_buffer import FrameReplayBuffer
from rl_training.data.n_step import NStepAccumulator, StepRecorder
from rl_training.data.prioritized_recurrent_replay_buffer import PrioritizedRecurrentReplayBuffer
from rl_training.data.prioritized_replay_buffer import PrioritizedReplayBuffer
from rl_training.data.recurrent_recorder import RecurrentRecorder, RecurrentStep, cutting_problem
from rl_training.data.recurrent_replay_buffer import RecurrentReplayBuffer
from rl_training.data.replay_buffer import ReplayBuffer
from rl_training.data.rollout_buffer import Rollout, RolloutBuffer
from rl_training.data.sequences import PaddedSequences, Sequences

__all__ = [
    "FrameReplayBuffer",
    "NStepAccumulator",
    "PaddedSequences",
    "PrioritizedRecurrentReplayBuffer",
    "PrioritizedReplayBuffer",
    "RecurrentRecorder",
    "RecurrentReplayBuffer",
    "RecurrentStep",
    "ReplayBuffer",
    "Rollout",
    "RolloutBuffer",
    "Sequences",
    "StepRecorder",
    "cutting_problem",
    "random_shift",
]
