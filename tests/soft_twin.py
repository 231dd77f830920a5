"""What plain programs of the soft actor-critics have in common: torch's own Adam, the temperature, and the target."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rl_training.algorithms.sac import EntropyAlgorithm
from rl_training.rng import RandomStreams

LEARNING_RATE, TAU, ALPHA = 1e-2, 0.1, 0.3
#: The settings of the algorithm that a twin is compared with.
SETTINGS: dict[str, Any] = {"learning_rate": LEARNING_RATE, "tau": TAU, "alpha": ALPHA}


class SoftTwin:
    """Copies of an algorithm's networks, learned step by step in the order critics, actor, temperature, target."""

    def __init__(self, algorithm: EntropyAlgorithm[Any]) -> None:
        self._algorithm = algorithm
        copies: Any = copy.deepcopy((algorithm.policy.network, algorithm.target))
        self.network, self.target = copies
        self._log_alpha = torch.tensor(np.log(ALPHA), dtype=torch.float32, requires_grad=True)
        self._critic = torch.optim.Adam(self.network.critic.parameters(), lr=LEARNING_RATE)
        self._actor = torch.optim.Adam(self.network.actor.parameters(), lr=LEARNING_RATE)
        self._temperature = torch.optim.Adam([self._log_alpha], lr=LEARNING_RATE)
        self._noise = RandomStreams(0)["noise"]

    @property
    def alpha(self) -> Tensor:
        return self._log_alpha.detach().exp()

    def draw(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """Squashed Gaussian actions and their log-densities."""
        mean, log_std = self.network.actor(obs).chunk(2, dim=1)
        normal = torch.distributions.Normal(mean, log_std.exp())
        noise = self._noise.standard_normal(tuple(mean.shape), np.float32)
        u = mean + log_std.exp() * torch.from_numpy(noise)
        density = normal.log_prob(u)  # type: ignore[no-untyped-call]
        return torch.tanh(u), (density - torch.log(1.0 - torch.tanh(u).square())).sum(1)

    def learn_critic(self, loss: Tensor) -> None:
        _descend(self._critic, loss)

    def learn_actor(self, loss: Tensor) -> None:
        _descend(self._actor, loss)

    def learn_temperature(self, entropy: Tensor, wanted: float) -> None:
        """Moves the entropy (batch,) towards the wanted one; then the target follows the critic."""
        _descend(self._temperature, (self._log_alpha.exp() * (entropy.detach() - wanted)).mean())
        with torch.no_grad():
            for parameter, online in zip(self.target.parameters(), self.network.critic.parameters(), strict=True):
                parameter.lerp_(online, TAU)

    def assert_equal(self) -> None:
        """Compares all weights and the temperature with the algorithm's."""
        expected = self.network.state_dict()
        for name, value in self._algorithm.policy.network.state_dict().items():
            torch.testing.assert_close(value, expected[name], rtol=1e-3, atol=1e-4)
        torch.testing.assert_close(self._algorithm.alpha, self.alpha)
        for found, twin in zip(self._algorithm.target.parameters(), self.target.parameters(), strict=True):
            torch.testing.assert_close(found, twin, rtol=1e-3, atol=1e-4)


def _descend(optimizer: torch.optim.Optimizer, loss: Tensor) -> None:
    optimizer.zero_grad()
    torch.autograd.backward(loss)
    optimizer.step()
