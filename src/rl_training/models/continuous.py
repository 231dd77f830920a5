"""Actors and twin critics for continuous actions, on vectors or images, and the tanh-squashed Gaussian.

Actor and critic have no parameters in common, so that each has a separate optimiser and no loss can change the other's
weights. A shared encoder belongs to the critic; the actor uses it without a gradient.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rl_training.models.encoder import Encoder, through_torch
from rl_training.models.mlp import MLP, PLAIN, Style, make_mlp
from rl_training.models.normalization import ObservationNormalizer
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


class TwinCritic(nn.Module):
    """Two Q-functions of (observation, action) on one encoder and one trunk. ``encode`` is a separate first step, so that its
    result can be used twice, and by the actor if the encoder is shared."""

    def __init__(
        self,
        features: int,
        actions: int,
        hidden: Sequence[int],
        generator: torch.Generator,
        *,
        encoder: Encoder | None = None,
        trunk: nn.Module | None = None,
        style: Style = PLAIN,
    ) -> None:
        super().__init__()
        self.encoder = encoder
        self.trunk = trunk
        self.q1 = make_mlp([features + actions, *hidden, 1], generator, style)
        self.q2 = make_mlp([features + actions, *hidden, 1], generator, style)

    def encode(self, prepared: Tensor) -> Tensor:
        features: Tensor = prepared if self.encoder is None else self.encoder(prepared)
        return features

    def values(self, features: Tensor, action: Tensor) -> Tensor:
        """(batch, encoded), (batch, action) -> (2, batch)."""
        x = torch.cat([features if self.trunk is None else self.trunk(features), action], dim=1)
        return torch.stack([self.q1(x), self.q2(x)]).squeeze(2)


class ContinuousActorCritic(nn.Module):
    """The networks of SAC, DrQ and DrQ-v2. The first ``actions`` outputs of the actor are the mean before the tanh."""

    normalizer: ObservationNormalizer | None = None  # of vectors; what it prepares is for actor and critic

    def __init__(self, actor: Actor, critic: TwinCritic, actions: int, *, shared_encoder: bool = False) -> None:
        super().__init__()
        self.actor = actor
        self.critic = critic
        self.actions = actions
        self.shared_encoder = shared_encoder  # whether the actor takes observations encoded by the critic

    def prepare(self, obs: Tensor) -> Tensor:
        """Prepares observations for the encoders. This has no parameters, so an update does it once for all its passes."""
        standardised: Tensor = obs if self.normalizer is None else self.normalizer(obs)
        return standardised if self.critic.encoder is None else self.critic.encoder.scale(standardised)

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
        normalize = self.normalizer.numpy_forward()
        return lambda obs: output(normalize(obs))


class GaussianActorCritic(ContinuousActorCritic):
    """The actor gives the mean and the log standard deviation, clamped or, with ``smooth_std``, bounded by a tanh."""

    def __init__(
        self, actor: Actor, critic: TwinCritic, actions: int, *, shared_encoder: bool = False, smooth_std: bool = False
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


class MLPActorCritic(GaussianActorCritic):
    """SAC's networks on vectors, or on the features of one encoder each for actor and critic."""

    def __init__(
        self,
        obs_dim: int,
        actions: int,
        hidden: Sequence[int],
        generator: torch.Generator,
        *,
        style: Style = PLAIN,
        encoders: tuple[Encoder, Encoder] | None = None,
        standardise: bool = False,
    ) -> None:
        actor_encoder, critic_encoder = encoders or (None, None)
        sizes = [obs_dim if encoder is None else encoder.out_features for encoder in (actor_encoder, critic_encoder)]
        actor = Actor(make_mlp([sizes[0], *hidden, 2 * actions], generator, style), actor_encoder)
        super().__init__(
            actor, TwinCritic(sizes[1], actions, hidden, generator, encoder=critic_encoder, style=style), actions
        )
        if standardise:
            self.normalizer = ObservationNormalizer(obs_dim)
