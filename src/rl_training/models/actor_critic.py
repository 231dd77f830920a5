"""A policy and a value function for the on-policy algorithms, over vectors or images."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from rl_training.errors import SpaceError
from rl_training.models.action_head import make_action_head
from rl_training.models.cnn.nature import NATURE_LAYERS, Layer, NatureCNN
from rl_training.models.mlp import MLP, through_torch
from rl_training.models.normalization import ObservationNormalizer
from rl_training.types import Array, SpaceSpec

POLICY_GAIN = 0.01  # a nearly uniform policy at the start
VALUE_GAIN = 1.0


class ObservationEncoder(nn.Module):
    """What actor and critic both look through: running normalisation of vectors, if wanted, or a convolutional encoder.

    ``prepare`` has no parameters, so that an update does it once for all its passes; ``forward`` is the learned part.
    """

    def __init__(
        self,
        spec: SpaceSpec,
        generator: torch.Generator,
        *,
        normalize: bool,
        cnn_layers: Sequence[Layer] = NATURE_LAYERS,
        cnn_features: int = 512,
    ) -> None:
        super().__init__()
        shape = spec.observation.shape
        self.normalizer: ObservationNormalizer | None = None
        self.cnn: NatureCNN | None = None
        self.features = shape[0]
        if spec.observation.kind == "image":
            if normalize:
                raise SpaceError("images are always scaled to 0..1; set normalize_observations: false for them")
            self.cnn = NatureCNN(shape, generator, cnn_features, cnn_layers)
            self.features = cnn_features
            for parameter in self.cnn.parameters():
                if parameter.dim() > 1:
                    nn.init.orthogonal_(parameter, math.sqrt(2.0), generator=generator)
                else:
                    nn.init.zeros_(parameter)
        elif normalize:
            self.normalizer = ObservationNormalizer(self.features)

    def prepare(self, obs: Tensor) -> Tensor:
        return obs if self.normalizer is None else self.normalizer(obs)

    def forward(self, prepared: Tensor) -> Tensor:
        return prepared if self.cnn is None else self.cnn(prepared)

    def observe(self, obs: Array) -> None:
        """Takes raw observations (sample, ...) into the running statistics."""
        if self.normalizer is not None:
            self.normalizer.update(obs)

    def numpy_forward(self) -> Callable[[Array], Array]:
        """Raw observations to features on numpy arrays; an image goes through torch inside."""
        if self.cnn is not None:
            return through_torch(self.cnn)
        return (lambda obs: obs) if self.normalizer is None else self.normalizer.numpy_forward()


class ActorCritic(nn.Module):
    """An MLP for the actor and one for the critic. ``forward``: prepared observations -> action output, value (batch,)."""

    def __init__(
        self,
        spec: SpaceSpec,
        hidden: Sequence[int],
        generator: torch.Generator,
        *,
        activation: str = "tanh",
        normalize: bool = False,
        initial_log_std: float = 0.0,
        cnn_layers: Sequence[Layer] = NATURE_LAYERS,
        cnn_features: int = 512,
    ) -> None:
        super().__init__()
        self.encoder = ObservationEncoder(
            spec, generator, normalize=normalize, cnn_layers=cnn_layers, cnn_features=cnn_features
        )
        self.head = make_action_head(spec.action, initial_log_std)
        inputs = self.encoder.features
        self.actor = MLP([inputs, *hidden, self.head.outputs], generator, activation=activation, output_gain=POLICY_GAIN)
        self.critic = MLP([inputs, *hidden, 1], generator, activation=activation, output_gain=VALUE_GAIN)

    def forward(self, prepared: Tensor) -> tuple[Tensor, Tensor]:
        features = self.encoder(prepared)
        return self.actor(features), self.critic(features).squeeze(1)

    def value(self, prepared: Tensor) -> Tensor:
        value: Tensor = self.critic(self.encoder(prepared)).squeeze(1)
        return value

    def action_output(self, obs: Tensor) -> Tensor:
        """From raw observations."""
        output: Tensor = self.actor(self.encoder(self.encoder.prepare(obs)))
        return output

    def numpy_action_output(self) -> Callable[[Array], Array]:
        """``action_output`` on numpy arrays, the fastest way there is. Good as long as the parameters stay where they are."""
        if next(self.parameters()).device.type != "cpu":
            return through_torch(_ActionOutput(self))
        encode, actor = self.encoder.numpy_forward(), self.actor.numpy_forward()
        return lambda obs: actor(encode(obs))


class _ActionOutput(nn.Module):
    """``ActorCritic.action_output`` as a module."""

    def __init__(self, network: ActorCritic) -> None:
        super().__init__()
        self.network = network

    def forward(self, obs: Tensor) -> Tensor:
        return self.network.action_output(obs)
