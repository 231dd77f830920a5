"""What DrQ and DrQ-v2 share beside the update: images that are shifted at random, stored one frame at a time."""

from __future__ import annotations

import numpy as np
from pydantic import Field

from rl_training.algorithms.base import Buffer, Recorder
from rl_training.algorithms.config import ConvLayers, Count, Fraction, Positive
from rl_training.algorithms.continuous import ContinuousAlgorithm, ContinuousConfig, ContinuousPolicy, Views
from rl_training.data import FrameReplayBuffer, StepRecorder, random_shift
from rl_training.errors import SpaceError
from rl_training.rng import RandomStreams
from rl_training.types import SpaceSpec, TransitionBatch


class PixelConfig(ContinuousConfig):
    """Settings of the algorithms that learn from images."""

    buffer_size: Positive = Field(100_000, description="transitions kept for replay")
    tau: Fraction = Field(0.01, description="share of the critic's weights in a target update")
    frame_stack: Positive = Field(3, description="frames in an image observation; each is stored once")
    shift_pad: Count = Field(4, description="images are shifted at random by up to so many pixels; 0: never")
    cnn_layers: ConvLayers | None = Field(
        None, description="filters, kernel and stride of the convolutions; none: those of the encoder's paper"
    )
    cnn_features: Positive | None = Field(None, description="width of what the convolutions end in; none: as in the paper")


def require_channel_first(spec: SpaceSpec, name: str) -> None:
    """Refuses images whose last axis can only be the channels."""
    channels, height, width = spec.observation.shape
    if width < min(channels, height):
        raise SpaceError(
            f"{name} takes channel-first images (channels, height, width), but this environment's have the shape "
            f"{spec.observation.shape}; put the channels first, for instance with the wrapper pixels"
        )


class PixelAlgorithm(ContinuousAlgorithm):
    """Augmentation and frame replay; the losses come from beside it."""

    config: PixelConfig

    def __init__(self, policy: ContinuousPolicy, config: PixelConfig, streams: RandomStreams) -> None:
        super().__init__(policy, config, streams)
        self._augment_rng = streams["augment"]

    #: how many views of the current and the next observations an update looks at
    obs_views: int = 1
    next_obs_views: int = 1

    def views(self, batch: TransitionBatch) -> Views:
        prepare, pad, rng = self.policy.network.prepare, self.config.shift_pad, self._augment_rng
        return Views(
            prepare(random_shift(batch.obs, pad, rng, self.obs_views)),
            prepare(random_shift(batch.next_obs, pad, rng, self.next_obs_views)),
        )

    def make_recorder(self, num_envs: int) -> Recorder:
        return StepRecorder()

    def make_buffer(self, num_envs: int, streams: RandomStreams) -> Buffer:
        spec, config = self.policy.spec, self.config
        return FrameReplayBuffer(
            config.buffer_size,
            spec.observation.shape,
            stack=config.frame_stack,
            num_envs=num_envs,
            n_step=config.n_step,
            gamma=config.gamma,
            action_shape=spec.action.shape,
            action_dtype=np.float32,
            rng=streams["replay"],
            device=self._target_parameters.device,
        )
