"""DrQ-v2's networks: a deterministic actor and twin critics on one encoder."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from rl_training.models import observation as encoding  # it needs NatureCNN of this package
from rl_training.models.cnn.drq import PAPER_FEATURES, Trunk, orthogonalize
from rl_training.models.cnn.nature import PAPER_LAYERS, Layer
from rl_training.models.continuous import Actor, ContinuousActorCritic, Critics
from rl_training.models.encoder import Encoder
from rl_training.models.mlp import PLAIN, Style, make_mlp
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
        style: Style = PLAIN,
        orthogonal: bool = True,
        encoder: Encoder | None = None,
    ) -> None:
        """``observation`` is a spec, or the shape of a channel-first image. ``encoder`` is the user's, in place of the
        convolutions."""
        spec = observation if isinstance(observation, ObservationSpec) else ObservationSpec.image(*observation)
        config = encoding.EncoderConfig(cnn_layers=cnn_layers or PAPER_LAYERS, centre=True)
        convolutions = encoder or encoding.make_encoder(spec, config, generator)
        actor_trunk, trunk = (Trunk(convolutions, cnn_features or PAPER_FEATURES, generator) for _ in range(2))
        features = trunk.out_features
        actor = Actor(make_mlp([features, *hidden, actions], generator, style), encoder=actor_trunk)
        critic = Critics(features, actions, hidden, generator, encoder=convolutions, trunk=trunk, style=style)
        super().__init__(actor, critic, actions, shared_encoder=True)
        if orthogonal:
            orthogonalize(self, generator)
