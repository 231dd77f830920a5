"""Builds the replay of one-step or n-step transitions for an observation spec."""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np
import torch

from rl_training.data.acting_values import one_step_targets
from rl_training.data.frame_replay_buffer import FrameReplayBuffer
from rl_training.data.n_step import NStepAccumulator, StepRecorder
from rl_training.data.prioritized_replay_buffer import PrioritizedReplayBuffer
from rl_training.data.replay import Replay
from rl_training.data.replay_buffer import ReplayBuffer
from rl_training.types import SpaceSpec, TransitionBatch

#: The recorders of transitions: ``NStepAccumulator`` sums the rewards itself, ``StepRecorder`` leaves that to the rings.
TransitionRecorder = StepRecorder | NStepAccumulator


def make_transition_recorder(spec: SpaceSpec, num_envs: int, n_step: int, gamma: float) -> TransitionRecorder:
    """The recorder that fits ``make_transition_replay``: the rings that store images sum the rewards themselves."""
    return StepRecorder() if spec.observation.images else NStepAccumulator(num_envs, gamma, n_step)


def make_transition_replay(
    spec: SpaceSpec,
    *,
    capacity: int,
    batch_size: int,
    num_envs: int,
    n_step: int,
    gamma: float,
    frame_stack: int = 1,
    alpha: float | None = None,
    beta: Callable[[int], float] | None = None,
    clip_reward: float | None = None,
    rng: np.random.Generator,
    device: torch.device,
    actor_priorities: bool = False,
) -> Replay[TransitionBatch]:
    """Images, alone or in a mixture, are stored in rings that keep each frame once, everything else in records.

    With ``actor_priorities`` steps come with the Q-values of acting, from which items get their initial priorities.
    With ``alpha`` the replay is prioritised; ``beta`` is its importance-sampling exponent as a function of the env steps.
    """
    masked = spec.action.masked_count
    shape, action_shape, action_dtype = spec.observation.shape, spec.action.shape, spec.action.dtype
    beta = None if alpha is None else beta
    if spec.observation.images:
        frames = FrameReplayBuffer(
            capacity,
            shape,
            stack=frame_stack,
            num_envs=num_envs,
            n_step=n_step,
            gamma=gamma,
            action_shape=action_shape,
            action_dtype=action_dtype,
            masked_actions=masked,
            rng=rng,
            device=device,
            alpha=alpha,
            batch_size=batch_size,
            observation=spec.observation,
            targets=one_step_targets if actor_priorities else None,
        )
        return Replay(StepRecorder(), frames, batch_size=batch_size, beta=beta, clip_reward=clip_reward)
    make_buffer = ReplayBuffer if alpha is None else functools.partial(PrioritizedReplayBuffer, alpha=alpha)
    buffer = make_buffer(
        capacity,
        shape,
        obs_dtype=spec.observation.dtype,
        action_shape=action_shape,
        action_dtype=action_dtype,
        masked_actions=masked,
        rng=rng,
        device=device,
        reuse_batches=True,  # an update has finished with its batch before the next one is sampled
    )
    recorder = NStepAccumulator(num_envs, gamma, n_step)
    return Replay(recorder, buffer, batch_size=batch_size, beta=beta, clip_reward=clip_reward)
