"""DrQ-v2's networks: a deterministic actor and twin critics on one encoder."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from rl_training.models import observation as encoders  # it needs NatureCNN of this package
from rl_training.models.cnn.drq import PAPER_FEATURES, PAPER_LAYERS, Trunk, orthogonalize
from rl_training.models.cnn.nature import Layer
from rl_training.models.continuous import Actor, ContinuousActorCritic, TwinCritic
from rl_training.models.mlp import MLP
from rl_training.types import ObservationSpec


class CNNDrQv2Model(ContinuousActorCritic):
    """Images, alone or beside vectors. The convolutions belong to the critic; actor and critic each have a trunk."""

    def __init__(
        self,
        observation: ObservationSpec | Sequence[int],
        actions: int,
        hidden: Sequence[int],
        generator: torch.Generator,
        *,
        cnn_layers: Sequence[Layer] | None = None,
        cnn_features: int | None = None,
    ) -> None:
        """``observation`` is a spec, or the shape of a channel-first image."""
        spec = observation if isinstance(observation, ObservationSpec) else ObservationSpec.image(*observation)
        convolutions = encoders.make_encoder(
            spec, encoders.EncoderConfig(cnn_layers=cnn_layers or PAPER_LAYERS, centre=True), generator
        )
        actor_trunk, trunk = (Trunk(convolutions, cnn_features or PAPER_FEATURES, generator) for _ in range(2))
        features = trunk.out_features
        actor = Actor(MLP([features, *hidden, actions], generator), encoder=actor_trunk)
        critic = TwinCritic(features, actions, hidden, generator, encoder=convolutions, trunk=trunk)
        super().__init__(actor, critic, actions, shared_encoder=True)
        orthogonalize(self, generator)
