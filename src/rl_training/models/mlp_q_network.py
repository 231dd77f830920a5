"""Q-values, one per discrete action: what DQN learns."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from rl_training.models.value_body import make_value_body
from rl_training.models.value_network import ValueNetwork
from rl_training.types import Array


class QNetwork(ValueNetwork):
    """``forward``: (batch, ...) -> Q-values (batch, action)."""

    def forward(self, obs: Tensor) -> Tensor:
        return self.atoms(obs).squeeze(2)

    def q_values(self, obs: Tensor) -> Tensor:
        return self.forward(obs)

    def numpy_reduce(self, atoms: Array) -> Array:
        return atoms[:, :, 0]


class MLPQNetwork(QNetwork):
    """``QNetwork`` on vector observations, with hidden layers of these widths."""

    def __init__(self, obs_dim: int, action_dim: int, hidden: Sequence[int], generator: torch.Generator) -> None:
        super().__init__(*make_value_body((obs_dim,), action_dim, hidden, generator))
