"""Encoders of the off-policy actor-critics: the user's own, or a CNN where there are images."""

from __future__ import annotations

from functools import partial

import torch

from rl_training.algorithms.off_policy import AnyObservationConfig, OffPolicyActorCriticConfig
from rl_training.models.cnn.drq import orthogonalize
from rl_training.models.encoder import Encoder
from rl_training.models.interfaces import SeparateActorCritic
from rl_training.models.observation import EncoderConfig, make_encoder, make_preparation, unpack
from rl_training.types import SpaceSpec


def separate_encoders(
    config: AnyObservationConfig, spec: SpaceSpec, generator: torch.Generator
) -> tuple[Encoder, Encoder] | None:
    """The encoders of actor and critic: the user's own, or a CNN each if there are images. Vectors alone need none."""
    if config.network is not None or not spec.observation.images:
        return custom_encoders(config, spec, generator)
    # Bright images must be centred, or only their brightness is learned.
    options = EncoderConfig(cnn=config.cnn, cnn_layers=config.cnn_layers, cnn_features=config.cnn_features, centre=True)
    actor, critic = (make_encoder(spec.observation, options, generator) for _ in range(2))
    return actor, critic


def finish_network(
    network: SeparateActorCritic, config: AnyObservationConfig, spec: SpaceSpec, generator: torch.Generator
) -> None:
    """Adds what an actor and a critic on ``separate_encoders`` lack: prepared vectors, and orthogonal weights on images."""
    network.normalizer = make_preparation(spec.observation, config.normalize_observations, config.observation_scale)
    if spec.observation.images and config.network is None:
        orthogonalize(network, generator)


def custom_encoders(
    config: OffPolicyActorCriticConfig, spec: SpaceSpec, generator: torch.Generator
) -> tuple[Encoder, Encoder] | None:
    """The user's own encoders of actor and critic, if there are any."""
    custom, observation = config.custom_network(), spec.observation
    return None if custom is None else custom.make_pair(observation, generator, partial(unpack, observation))


def custom_encoder(config: OffPolicyActorCriticConfig, spec: SpaceSpec, generator: torch.Generator) -> Encoder | None:
    """The user's own encoder that actor and critic share, if there is one."""
    custom, observation = config.custom_network(), spec.observation
    return None if custom is None else custom.make_one(observation, generator, partial(unpack, observation))
