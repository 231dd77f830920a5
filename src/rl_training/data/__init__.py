"""Recorders, which turn steps into items, and buffers, which store and sample them."""

from rl_training.data.frame_replay_buffer import FrameReplayBuffer
from rl_training.data.n_step import NStepAccumulator, StepRecorder
from rl_training.data.prioritized_replay_buffer import PrioritizedReplayBuffer
from rl_training.data.replay_buffer import ReplayBuffer

__all__ = ["FrameReplayBuffer", "NStepAccumulator", "PrioritizedReplayBuffer", "ReplayBuffer", "StepRecorder"]
