"""A distribution of the return over fixed atoms, for each discrete action: what C51 learns."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from rl_training.models.value_head import ValueHead
from rl_training.models.value_network import ValueNetwork
from rl_training.types import Array


class CategoricalQNetwork(ValueNetwork):
    """``forward``: (batch, ...) -> logits (batch, action, atom) over ``support``. A Q-value is the distribution's mean."""

    support: Tensor

    def __init__(self, trunk: nn.Module, head: ValueHead, v_min: float, v_max: float) -> None:
        super().__init__(trunk, head)
        self.register_buffer("support", torch.linspace(v_min, v_max, head.atoms))

    def forward(self, obs: Tensor) -> Tensor:
        return self.atoms(obs)

    def q_values(self, obs: Tensor) -> Tensor:
        return self.forward(obs).softmax(dim=2) @ self.support

    def numpy_reduce(self, atoms: Array) -> Array:
        weights = np.exp(atoms - atoms.max(axis=2, keepdims=True))
        values: Array = (weights @ self.support.numpy()) / weights.sum(axis=2)
        return values
