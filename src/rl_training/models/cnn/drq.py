"""DrQ's networks: squashed Gaussian actor and twin critics on images."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rl_training.models.cnn.nature import NATURE_LAYERS, PAPER_LAYERS, Layer, NatureCNN
from rl_training.models.continuous import Actor, GaussianActorCritic, TwinCritic
from rl_training.models.custom import CustomTrunk
from rl_training.models.encoder import Encoder
from rl_training.models.mlp import PLAIN, Style, make_linear, make_mlp

PAPER_FEATURES = 50


class Trunk(nn.Module):
    """Linear, layer normalisation, tanh. Actor and critic each have one after the shared convolutions."""

    def __init__(self, inputs: int, features: int, generator: torch.Generator) -> None:
        super().__init__()
        self.out_features = features
        self.linear = make_linear(inputs, features, generator)
        self.norm = nn.LayerNorm(features)

    def forward(self, x: Tensor) -> Tensor:
        x = F.linear(x, self.linear.weight, self.linear.bias)
        return torch.tanh(F.layer_norm(x, self.norm.normalized_shape, self.norm.weight, self.norm.bias))


def orthogonalize(module: nn.Module, generator: torch.Generator) -> None:
    """The initialisation of both papers' code: orthogonal weights, scaled by sqrt(2) in convolutions, and zero biases. The
    user's own modules keep theirs."""
    own = {layer for trunk in module.modules() if isinstance(trunk, CustomTrunk) for layer in trunk.modules()}
    for layer in module.modules():
        if isinstance(layer, nn.Linear | nn.Conv2d) and layer not in own:
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
        style: Style = PLAIN,
        orthogonal: bool = True,
        encoders: Sequence[Encoder] = (),
    ) -> None:
        """``encoders`` are the user's, in place of the ``NatureCNN`` of actor and critic, or of the paper's convolutions."""
        actor_encoder: Trunk | Encoder
        if paper:
            convolutions = encoders[0] if encoders else NatureCNN(shape, generator, None, cnn_layers or PAPER_LAYERS)
            features = cnn_features or PAPER_FEATURES
            actor_encoder, trunk = (Trunk(convolutions.out_features, features, generator) for _ in range(2))
        else:
            # Without the paper's layer normalisation, bright images must be centred, or only their brightness is learned.
            features, trunk, layers = cnn_features or 512, None, cnn_layers or NATURE_LAYERS
            actor_encoder, convolutions = encoders or [
                NatureCNN(shape, generator, features, layers, centre=True) for _ in range(2)
            ]
            features = convolutions.out_features
        actor = Actor(make_mlp([actor_encoder.out_features, *hidden, 2 * actions], generator, style), encoder=actor_encoder)
        critic = TwinCritic(features, actions, hidden, generator, encoder=convolutions, trunk=trunk, style=style)
        super().__init__(actor, critic, actions, shared_encoder=paper, smooth_std=paper)
        if orthogonal:
            orthogonalize(self, generator)
