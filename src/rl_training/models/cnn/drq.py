"""DrQ's networks: squashed Gaussian actor and twin critics on images."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rl_training.models.cnn.nature import NATURE_LAYERS, Layer, NatureCNN, scale_images
from rl_training.models.continuous import Actor, GaussianActorCritic, TwinCritic
from rl_training.models.mlp import MLP, make_linear

#: the convolutions of DrQ's and DrQ-v2's papers
PAPER_LAYERS: tuple[Layer, ...] = ((32, 3, 2), (32, 3, 1), (32, 3, 1), (32, 3, 1))
PAPER_FEATURES = 50


class Trunk(nn.Module):
    """Linear, layer normalisation, tanh: what each of actor and critic makes of the convolutions they share."""

    def __init__(self, inputs: int, features: int, generator: torch.Generator) -> None:
        super().__init__()
        self.linear = make_linear(inputs, features, generator)
        self.norm = nn.LayerNorm(features)

    def forward(self, x: Tensor) -> Tensor:
        x = F.linear(x, self.linear.weight, self.linear.bias)
        return torch.tanh(F.layer_norm(x, self.norm.normalized_shape, self.norm.weight, self.norm.bias))


def orthogonalize(module: nn.Module, generator: torch.Generator) -> None:
    """The initialisation of both papers' code: orthogonal weights, scaled by sqrt(2) in convolutions, and no biases."""
    for layer in module.modules():
        if isinstance(layer, nn.Linear | nn.Conv2d):
            gain = math.sqrt(2.0) if isinstance(layer, nn.Conv2d) else 1.0
            nn.init.orthogonal_(layer.weight, gain, generator=generator)
            assert layer.bias is not None
            nn.init.zeros_(layer.bias)


class CNNDrQModel(GaussianActorCritic):
    """Channel-first uint8 images. Actor and critic have a ``NatureCNN`` each, or (``paper``) share the paper's convolutions,
    which then belong to the critic, and have a trunk each."""

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
        encoders: list[nn.Module]
        convolutions = None
        if paper:
            features = cnn_features or PAPER_FEATURES
            convolutions = NatureCNN(shape, generator, None, cnn_layers or PAPER_LAYERS)
            encoders = [Trunk(convolutions.features, features, generator) for _ in range(2)]
        else:
            features = cnn_features or 512
            encoders = [NatureCNN(shape, generator, features, cnn_layers or NATURE_LAYERS) for _ in range(2)]
        actor = Actor(MLP([features, *hidden, 2 * actions], generator), encoder=encoders[0])
        parts = {"encoder": convolutions, "trunk": encoders[1]} if paper else {"encoder": encoders[1]}
        critic = TwinCritic(features, actions, hidden, generator, **parts)
        super().__init__(actor, critic, actions, shared_encoder=paper, smooth_std=paper)
        orthogonalize(self, generator)

    def prepare(self, obs: Tensor) -> Tensor:
        # Without the paper's layer normalisation, bright pictures must be centred or nothing else in them is seen for long.
        return scale_images(obs) if self.shared_encoder else scale_images(obs).sub_(0.5)
