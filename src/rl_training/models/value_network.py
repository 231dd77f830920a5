"""What every network of the value family can do, whatever it learns."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

import torch
from torch import Tensor, nn

from rl_training.types import Array


class ValueNetwork(nn.Module, ABC):
    """A network that can tell Q-values."""

    @abstractmethod
    def q_values(self, obs: Tensor) -> Tensor:
        """(batch, ...) observations -> (batch, action)."""

    def numpy_q_function(self) -> Callable[[Array], Array] | None:
        """``q_values`` in numpy over the parameters' own memory, where the network has such a form."""
        return None

    @torch.no_grad()
    def act(self, obs: Tensor) -> Tensor:
        """The greedy actions, (batch,)."""
        return self.q_values(obs).argmax(dim=1)

    def q_function(self) -> Callable[[Array], Array]:
        """``q_values`` on numpy arrays, the fastest way there is. Good as long as the parameters stay where they are."""
        device = next(self.parameters()).device
        in_numpy = self.numpy_q_function() if device.type == "cpu" else None
        if in_numpy is not None:
            return in_numpy

        @torch.no_grad()
        def through_torch(obs: Array) -> Array:
            values: Array = self.q_values(torch.as_tensor(obs, device=device)).cpu().numpy()
            return values

        return through_torch
