"""Random image shifts, shared by the algorithms of the DrQ family."""

from __future__ import annotations

from typing import ClassVar, TypeVar

from pydantic import Field

from rl_training.algorithms.config import ConvLayers, Count, Fraction, Init, Positive
from rl_training.algorithms.continuous import ContinuousAlgorithm
from rl_training.algorithms.off_policy import OffPolicyActorCriticConfig
from rl_training.data.augmentation import shift_images
from rl_training.errors import ConfigError, SpaceError
from rl_training.types import ObservationKind, SpaceSpec, TransitionBatch


class PixelConfig(OffPolicyActorCriticConfig):
    """Settings of the algorithms that learn from images."""

    buffer_size: Positive = Field(100_000, description="transitions kept for replay")
    tau: Fraction = Field(0.01, description="share of the critic's weights in a target update")
    frame_stack: Positive = Field(3, description="frames in an image observation; each is stored once")
    shift_pad: Count = Field(4, description="maximum random shift of images in pixels; 0: no shifts")
    cnn_layers: ConvLayers | None = Field(
        None, description="filters, kernel and stride of each convolution; null: as in the encoder's paper"
    )
    cnn_features: Positive | None = Field(
        None, description="width of the layer after the convolutions; null: as in the paper"
    )
    init: Init = Field("orthogonal", description="initial weights: PyTorch's default, or orthogonal")


PixelConfigT = TypeVar("PixelConfigT", bound=PixelConfig)


def require_usable_images(config: PixelConfig, spec: SpaceSpec, name: str) -> None:
    """Refuses images whose last axis must be the channels, and those that a shift could move out of sight."""
    for image in spec.observation.images:
        channels, height, width = image.shape
        if width < min(channels, height):
            raise SpaceError(
                f"{name} takes channel-first images (channels, height, width), but this environment's have the shape "
                f"{image.shape}; put the channels first, for instance with the wrapper pixels"
            )
        if config.shift_pad >= min(height, width):
            raise ConfigError(
                f"algo_kwargs.shift_pad ({config.shift_pad}) must be below the shorter side of the images, which has "
                f"{min(height, width)} pixels; lower shift_pad or use larger images"
            )


class PixelAlgorithm(ContinuousAlgorithm[PixelConfigT]):
    """Augments the images of a batch. A subclass adds the losses."""

    observations: ClassVar[tuple[ObservationKind, ...]] = ("image", "mixed")
    #: number of views of the current and of the next observations in an update
    obs_views: int = 1
    next_obs_views: int = 1

    def why_not_compiled(self) -> str | None:
        return "convolutions gain little from compilation"

    def views(self, batch: TransitionBatch) -> TransitionBatch:
        prepare, pad, rng = self.policy.network.prepare, self.config.shift_pad, self.streams["augment"]
        spec = self.policy.spec.observation
        return batch._replace(
            obs=prepare(shift_images(batch.obs, spec, pad, rng, self.obs_views)),
            next_obs=prepare(shift_images(batch.next_obs, spec, pad, rng, self.next_obs_views)),
        )
