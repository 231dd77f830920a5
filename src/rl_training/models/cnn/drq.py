"""DrQ's networks: squashed Gaussian actor and twin critics on images."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rl_training.models import observation as encoding  # it needs NatureCNN of this package
from rl_training.models.cnn.nature import NATURE_LAYERS, PAPER_LAYERS, Layer
from rl_training.models.continuous import Actor, Critics, GaussianActorCritic
from rl_training.models.custom import CustomTrunk
from rl_training.models.encoder import Encoder
from rl_training.models.mlp import PLAIN, Style, make_linear, make_mlp
from rl_training.types import ObservationSpec

PAPER_FEATURES = 50


class Trunk(nn.Module):
    """Linear, layer normalisation, tanh. Actor and critic each have one after the shared convolutions. Vectors beside the
    images are passed on as they are: among thousands of features of images they would hardly count."""

    def __init__(self, encoder: Encoder, features: int, generator: torch.Generator) -> None:
        super().__init__()
        self._beside = encoder.beside
        self.linear = make_linear(encoder.out_features - encoder.beside, features, generator)
        self.norm = nn.LayerNorm(features)
        self.out_features = features + encoder.beside

    def forward(self, x: Tensor) -> Tensor:
        vectors = x[:, x.shape[1] - self._beside :] if self._beside else None
        x = F.linear(x if vectors is None else x[:, : -self._beside], self.linear.weight, self.linear.bias)
        x = torch.tanh(F.layer_norm(x, self.norm.normalized_shape, self.norm.weight, self.norm.bias))
        return x if vectors is None else torch.cat([x, vectors], dim=1)


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
    """Images, alone or beside vectors. Actor and critic each have a CNN; or, with ``paper``, each has a trunk on
    the paper's convolutions, which they share and which belong to the critic."""

    def __init__(
        self,
        observation: ObservationSpec | Sequence[int],
        actions: int,
        hidden: Sequence[int],
        generator: torch.Generator,
        *,
        paper: bool = False,
        cnn: encoding.CNN = "nature",
        cnn_layers: Sequence[Layer] | None = None,
        cnn_features: int | None = None,
        style: Style = PLAIN,
        orthogonal: bool = True,
        encoders: Sequence[Encoder] = (),
    ) -> None:
        """``observation`` is a spec, or the shape of a channel-first image. ``encoders`` are the user's, in place of the
        CNN of actor and critic, or of the paper's convolutions."""
        spec = observation if isinstance(observation, ObservationSpec) else ObservationSpec.image(*observation)
        actor_encoder: Trunk | Encoder
        if paper:
            config = encoding.EncoderConfig(cnn_layers=cnn_layers or PAPER_LAYERS)
            convolutions = encoders[0] if encoders else encoding.make_encoder(spec, config, generator)
            actor_encoder, trunk = (Trunk(convolutions, cnn_features or PAPER_FEATURES, generator) for _ in range(2))
            features = trunk.out_features
        else:
            # Without the paper's layer normalisation, bright images must be centred, or only their brightness is learned.
            config = encoding.EncoderConfig(
                cnn=cnn, cnn_layers=cnn_layers or NATURE_LAYERS, cnn_features=cnn_features or 512, centre=True
            )
            actor_encoder, convolutions = encoders or [encoding.make_encoder(spec, config, generator) for _ in range(2)]
            features, trunk = convolutions.out_features, None
        actor = Actor(make_mlp([actor_encoder.out_features, *hidden, 2 * actions], generator, style), encoder=actor_encoder)
        critic = Critics(features, actions, hidden, generator, encoder=convolutions, trunk=trunk, style=style)
        super().__init__(actor, critic, actions, shared_encoder=paper, smooth_std=paper)
        if orthogonal:
            orthogonalize(self, generator)
