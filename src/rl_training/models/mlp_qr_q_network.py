"""Quantiles of the return, for each discrete action: what QR-DQN learns."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from rl_training.models.mlp import MLP
from rl_training.models.value_head import ValueHead
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
        trunk = MLP([obs_dim, *hidden[:-1]], generator, activate_last=True)
        super().__init__(trunk, ValueHead(trunk.features, hidden[-1:], action_dim, generator, atoms=num_quantiles))
