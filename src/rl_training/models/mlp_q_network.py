"""Q-values of a vector observation, one per discrete action."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from rl_training.models.mlp import MLP
from rl_training.models.value_network import ValueNetwork
from rl_training.types import Array


class MLPQNetwork(ValueNetwork):
    """``forward``: (batch, obs_dim) -> Q-values (batch, action_dim). ``act``: the greedy actions (batch,)."""

    def __init__(self, obs_dim: int, action_dim: int, hidden: Sequence[int], generator: torch.Generator) -> None:
        super().__init__()
        self.mlp = MLP(obs_dim, hidden, action_dim, generator)

    def forward(self, obs: Tensor) -> Tensor:
        q_values: Tensor = self.mlp(obs)
        return q_values

    def q_values(self, obs: Tensor) -> Tensor:
        return self.forward(obs)

    def numpy_q_function(self) -> Callable[[Array], Array]:
        return self.mlp.numpy_forward()
