"""What every network of the value family can do, whatever it learns."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

import torch
from torch import Tensor, nn

from rl_training.models.mlp import MLP
from rl_training.models.value_head import ValueHead
from rl_training.types import Array


class ValueNetwork(nn.Module, ABC):
    """A trunk (an MLP, or a CNN for images) and a head. Subclasses say what the head's atoms mean."""

    def __init__(self, trunk: nn.Module, head: ValueHead) -> None:
        super().__init__()
        self.trunk = trunk
        self.head = head

    def atoms(self, obs: Tensor) -> Tensor:
        """(batch, ...) observations -> (batch, action, atom)."""
        atoms: Tensor = self.head(self.trunk(obs))
        return atoms

    @abstractmethod
    def q_values(self, obs: Tensor) -> Tensor:
        """(batch, ...) observations -> (batch, action)."""

    @abstractmethod
    def numpy_reduce(self, atoms: Array) -> Array:
        """Q-values (batch, action) of the head's output (batch, action, atom)."""

    @torch.no_grad()
    def act(self, obs: Tensor) -> Tensor:
        """The greedy actions, (batch,)."""
        return self.q_values(obs).argmax(dim=1)

    def q_function(self, noisy: bool = False) -> Callable[[Array], Array]:
        """``q_values`` on numpy arrays, the fastest way there is, with the noise of noisy layers or without. Good as long as
        the parameters stay where they are."""
        device = next(self.parameters()).device
        if device.type == "cpu" and isinstance(self.trunk, MLP):
            trunk, head = self.trunk.numpy_forward(), self.head.numpy_forward(noisy)
            return lambda obs: self.numpy_reduce(head(trunk(obs)))

        @torch.no_grad()
        def through_torch(obs: Array) -> Array:
            was_training = self.training
            self.train(noisy)
            values: Array = self.q_values(torch.as_tensor(obs, device=device)).cpu().numpy()
            self.train(was_training)
            return values

        return through_torch
