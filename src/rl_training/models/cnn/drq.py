"""DrQ's networks: squashed Gaussian actor and twin critics on images."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rl_training.models.cnn.nature import NATURE_LAYERS, Layer, NatureCNN
from rl_training.models.continuous import Actor, GaussianActorCritic, TwinCritic
from rl_training.models.mlp import MLP, make_linear

#: the convolutions of DrQ's and DrQ-v2's papers
PAPER_LAYERS: tuple[Layer, ...] = ((32, 3, 2), (32, 3, 1), (32, 3, 1), (32, 3, 1))
PAPER_FEATURES = 50


class Trunk(nn.Module):
    """Linear, layer normalisation, tanh. Actor and critic each have one after the shared convolutions."""

    def __init__(self, inputs: int, features: int, generator: torch.Generator) -> None:
        super().__init__()
        self.linear = make_linear(inputs, features, generator)
        self.norm = nn.LayerNorm(features)

    def forward(self, x: Tensor) -> Tensor:
        x = F.linear(x, self.linear.weight, self.linear.bias)
        return torch.tanh(F.layer_norm(x, self.norm.normalized_shape, self.norm.weight, self.norm.bias))


def orthogonalize(module: nn.Module, generator: torch.Generator) -> None:
    """The initialisation of both papers' code: orthogonal weights, scaled by sqrt(2) in convolutions, and zero biases."""
    for layer in module.modules():
        if isinstance(layer, nn.Linear | nn.Conv2d):
            gain = math.sqrt(2.0) if isinstance(layer, nn.Conv2d) else 1.0
            nn.init.orthogonal_(layer.weight, gain, generator=generator)
            assert layer.bias is not None
            nn.init.zeros_(layer.bias)


class CNNDrQModel(GaussianActorCritic):
    """Channel-first uint8 images. Actor and critic each have a ``NatureCNN``; or, with ``paper``, each has a trunk on the
    paper's convolutions, which they share and which belong to the critic."""

    def __init__(
        self,
        shape: Sequence[int],
        actions: int,
        hidden: Sequence[int],
        generator: torch.Generator,
        *,
        paper: bool = False,
        cnn_layers: Sequence[Layer] | None = None,
        cnn_features: int | None = None,
    ) -> None:
        actor_encoder: nn.Module
        if paper:
            features = cnn_features or PAPER_FEATURES
            convolutions = NatureCNN(shape, generator, None, cnn_layers or PAPER_LAYERS)
            actor_encoder, trunk = (Trunk(convolutions.out_features, features, generator) for _ in range(2))
        else:
            # Without the paper's layer normalisation, bright images must be centred, or only their brightness is learned.
            features, trunk = cnn_features or 512, None
            actor_encoder, convolutions = (
                NatureCNN(shape, generator, features, cnn_layers or NATURE_LAYERS, centre=True) for _ in range(2)
            )
        actor = Actor(MLP([features, *hidden, 2 * actions], generator), encoder=actor_encoder)
        critic = TwinCritic(features, actions, hidden, generator, encoder=convolutions, trunk=trunk)
        super().__init__(actor, critic, actions, shared_encoder=paper, smooth_std=paper)
        orthogonalize(self, generator)
