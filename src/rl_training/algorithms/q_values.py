"""Action values in a loss: which actions are allowed, which one to bootstrap from, and the value of the one taken."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from rl_training.types import TransitionBatch

#: a network as a function of observations, and of the random inputs that it may need
Values = Callable[..., Tensor]


def allowed(q_values: Tensor, batch: TransitionBatch) -> Tensor:
    """Q-values at the next observation, minus infinity where the action is not allowed there."""
    if batch.next_action_mask is None:
        return q_values
    return q_values.masked_fill(~batch.next_action_mask, -torch.inf)


def select_actions(q_values: Tensor, batch: TransitionBatch) -> Tensor:
    """The action to bootstrap from, (batch,): the best of those allowed at the next observation."""
    return allowed(q_values, batch).argmax(dim=1)


def take_action(values: Tensor, action: Tensor) -> Tensor:
    """(batch, action, ...) and (batch,) -> the values of these actions, (batch, ...)."""
    index = action.unsqueeze(1)
    if values.dim() == 3:
        index = index.unsqueeze(2).expand(-1, 1, values.shape[2])
    return values.gather(1, index).squeeze(1)
