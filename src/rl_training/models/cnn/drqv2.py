"""DrQ-v2's networks: a deterministic actor and twin critics on one encoder."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from rl_training.models.cnn.drq import PAPER_FEATURES, Trunk, orthogonalize
from rl_training.models.cnn.nature import PAPER_LAYERS, Layer, NatureCNN
from rl_training.models.continuous import Actor, ContinuousActorCritic, TwinCritic
from rl_training.models.encoder import Encoder
from rl_training.models.mlp import PLAIN, Style, make_mlp


class CNNDrQv2Model(ContinuousActorCritic):
    """Channel-first uint8 images. The convolutions belong to the critic; actor and critic each have a trunk."""

    def __init__(
        self,
        shape: Sequence[int],
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
        """``encoder`` is the user's, in place of the convolutions."""
        features = cnn_features or PAPER_FEATURES
        convolutions = encoder or NatureCNN(shape, generator, None, cnn_layers or PAPER_LAYERS, centre=True)
        actor_trunk, critic_trunk = (Trunk(convolutions.out_features, features, generator) for _ in range(2))
        actor = Actor(make_mlp([features, *hidden, actions], generator, style), encoder=actor_trunk)
        critic = TwinCritic(features, actions, hidden, generator, encoder=convolutions, trunk=critic_trunk, style=style)
        super().__init__(actor, critic, actions, shared_encoder=True)
        if orthogonal:
            orthogonalize(self, generator)
