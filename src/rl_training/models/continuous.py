"""Actors and critics for continuous actions, on vectors or images, and the tanh-squashed Gaussian.

Actor and critic have no parameters in common, so that each has a separate optimiser and no loss can change the other's
weights. A shared encoder belongs to the critic; the actor uses it without a gradient.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rl_training.models.encoder import Encoder, through_torch
from rl_training.models.interfaces import SeparateActorCritic
from rl_training.models.mlp import MLP, PLAIN, Style, make_mlp
from rl_training.types import Array

#: range of the log standard deviation
LOG_STD_MIN, LOG_STD_MAX = -10.0, 2.0
_LOG_SQRT_2_PI = 0.5 * math.log(2.0 * math.pi)
_LOG_2 = math.log(2.0)


def squashed_log_prob(u: Tensor, mean: Tensor, log_std: Tensor) -> Tensor:
    """Log-density of tanh(u), u normal: (batch, action) each -> (batch,).

    Haarnoja et al. (arXiv:1801.01290), appendix C, with log(1 - tanh(u)^2) written as 2 (log 2 - u - softplus(-2u)), which
    stays finite where the tanh rounds to 1.
    """
    assert u.shape == mean.shape == log_std.shape
    return _log_prob(u, (u - mean) * (-log_std).exp(), log_std)


def squashed_sample(mean: Tensor, log_std: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """The action tanh(mean + std * noise), (batch, action), and its log-density, (batch,), both with gradients."""
    assert mean.shape == log_std.shape == noise.shape
    u = mean + log_std.exp() * noise
    return torch.tanh(u), _log_prob(u, noise, log_std)


def _log_prob(u: Tensor, distance: Tensor, log_std: Tensor) -> Tensor:
    """``distance`` is measured from the mean in standard deviations."""
    normal = -0.5 * distance.square() - log_std - _LOG_SQRT_2_PI
    return (normal - 2.0 * (_LOG_2 - u - F.softplus(-2.0 * u))).sum(dim=1)


class Actor(nn.Module):
    """Maps prepared observations, or features of a shared encoder, to parameters of the action: (batch, outputs)."""

    def __init__(self, mlp: MLP, encoder: nn.Module | None = None) -> None:
        super().__init__()
        self.encoder = encoder
        self.mlp = mlp

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.mlp(x if self.encoder is None else self.encoder(x))
        return output


class Critics(nn.Module):
    """One or more Q-functions of (observation, action) on one encoder and one trunk. ``encode`` is a separate first step, so
    that its result can be used twice, and by the actor if the encoder is shared."""

    q1: MLP  # the first; the others are q2, q3 and so on

    def __init__(
        self,
        features: int,
        actions: int,
        hidden: Sequence[int],
        generator: torch.Generator,
        *,
        count: int = 2,
        outputs: int = 1,
        encoder: Encoder | None = None,
        trunk: nn.Module | None = None,
        style: Style = PLAIN,
    ) -> None:
        super().__init__()
        self.encoder = encoder
        self.trunk = trunk
        self.functions = [make_mlp([features + actions, *hidden, outputs], generator, style) for _ in range(count)]
        for number, function in enumerate(self.functions, start=1):
            self.add_module(f"q{number}", function)

    def encode(self, prepared: Tensor) -> Tensor:
        features: Tensor = prepared if self.encoder is None else self.encoder(prepared)
        return features

    def outputs(self, features: Tensor, action: Tensor, first: int | None = None) -> Tensor:
        """(batch, encoded), (batch, action) -> (critic, batch, output), of all critics or of the first ones."""
        x = torch.cat([features if self.trunk is None else self.trunk(features), action], dim=1)
        return torch.stack([function(x) for function in self.functions[:first]])

    def values(self, features: Tensor, action: Tensor, first: int | None = None) -> Tensor:
        """``outputs`` of critics with one output each: (critic, batch)."""
        return self.outputs(features, action, first).squeeze(2)


def make_actor(
    inputs: int,
    hidden: Sequence[int],
    outputs: int,
    generator: torch.Generator,
    style: Style,
    encoders: tuple[Encoder, Encoder] | None,
) -> Actor:
    """An actor on vectors of ``inputs`` numbers, or on the first of two encoders."""
    encoder = None if encoders is None else encoders[0]
    features = inputs if encoder is None else encoder.out_features
    return Actor(make_mlp([features, *hidden, outputs], generator, style), encoder)


def make_critics(
    inputs: int,
    actions: int,
    hidden: Sequence[int],
    generator: torch.Generator,
    style: Style,
    encoders: tuple[Encoder, Encoder] | None,
    *,
    count: int = 2,
    outputs: int = 1,
) -> Critics:
    """Critics on vectors of ``inputs`` numbers, or on the second of two encoders."""
    encoder = None if encoders is None else encoders[1]
    features = inputs if encoder is None else encoder.out_features
    return Critics(features, actions, hidden, generator, count=count, outputs=outputs, encoder=encoder, style=style)


class ContinuousActorCritic(SeparateActorCritic):
    """An actor and its critics. The first ``actions`` outputs of the actor are the mean before the tanh."""

    outputs_per_action: ClassVar[int] = 1  # outputs of the actor

    def __init__(self, actor: Actor, critic: Critics, actions: int, *, shared_encoder: bool = False) -> None:
        super().__init__()
        self.actor: Actor = actor
        self.critic: Critics = critic
        self.actions = actions
        self.shared_encoder = shared_encoder  # whether the actor takes observations encoded by the critic

    def forward(self, obs: Tensor) -> Tensor:
        """The actor's output for observations that are not prepared."""
        prepared = self.prepare(obs)
        output: Tensor = self.actor(self.critic.encode(prepared) if self.shared_encoder else prepared)
        return output

    def numpy_forward(self) -> Callable[[Array], Array]:
        """``forward`` on numpy arrays. Valid until the parameters move to other memory."""
        actor = self.actor.mlp
        if not actor.has_numpy() or self.actor.encoder is not None or self.shared_encoder:
            return through_torch(self, self)
        output = actor.numpy_forward()
        if self.normalizer is None:
            return output
        prepare = self.normalizer.numpy_forward()
        return lambda obs: output(prepare(obs))


class GaussianActorCritic(ContinuousActorCritic):
    """The actor gives the mean and the log standard deviation, clamped or, with ``smooth_std``, bounded by a tanh."""

    outputs_per_action: ClassVar[int] = 2

    def __init__(
        self, actor: Actor, critic: Critics, actions: int, *, shared_encoder: bool = False, smooth_std: bool = False
    ) -> None:
        super().__init__(actor, critic, actions, shared_encoder=shared_encoder)
        self.smooth_std = smooth_std

    def distribution(self, output: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and log standard deviation, (batch, action) each, of the actor's output (batch, 2 * action)."""
        mean, raw = output.chunk(2, dim=1)
        if self.smooth_std:
            return mean, LOG_STD_MIN + 0.5 * (LOG_STD_MAX - LOG_STD_MIN) * (torch.tanh(raw) + 1.0)
        return mean, raw.clamp(LOG_STD_MIN, LOG_STD_MAX)

    def numpy_distribution(self, output: Array) -> tuple[Array, Array]:
        """Mean and standard deviation, on numpy arrays."""
        mean, raw = output[:, : self.actions], output[:, self.actions :]
        if self.smooth_std:
            log_std = LOG_STD_MIN + 0.5 * (LOG_STD_MAX - LOG_STD_MIN) * (np.tanh(raw) + 1.0)
        else:
            log_std = np.clip(raw, LOG_STD_MIN, LOG_STD_MAX)
        return mean, np.exp(log_std)
