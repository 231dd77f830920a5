"""Quantiles of the return, for each discrete action: what QR-DQN learns."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from rl_training.models.value_body import make_value_body
from rl_training.models.value_network import ValueNetwork
from rl_training.types import Array


class QuantileQNetwork(ValueNetwork):
    """``forward``: (batch, ...) -> quantiles (batch, action, quantile). A Q-value is the mean over quantiles."""

    def forward(self, obs: Tensor) -> Tensor:
        return self.atoms(obs)

    def q_values(self, obs: Tensor) -> Tensor:
        return self.forward(obs).mean(dim=2)

    def numpy_reduce(self, atoms: Array) -> Array:
        values: Array = atoms.mean(axis=2)
        return values


class MLPQRQNetwork(QuantileQNetwork):
    """``QuantileQNetwork`` on vector observations, with hidden layers of these widths."""

    def __init__(
        self, obs_dim: int, action_dim: int, num_quantiles: int, hidden: Sequence[int], generator: torch.Generator
    ) -> None:
        super().__init__(*make_value_body((obs_dim,), action_dim, hidden, generator, atoms=num_quantiles))
