"""A GRU that unrolls whole sequences on torch for learning and steps for acting, from the same memory."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rl_training.models.recurrent.core import RecurrentCore
from rl_training.models.uninitialised import require_room, uninitialised


class GRUCore(RecurrentCore):
    """Layers of GRU (Cho et al. 2014, arXiv:1406.1078, in the form of torch's); a state is (h,).

    Weights start orthogonal and biases at zero.
    """

    state_names = ("h",)

    def __init__(self, inputs: int, hidden: int, layers: int, generator: torch.Generator) -> None:
        super().__init__(hidden, layers)
        require_room(3 * hidden, max(inputs, hidden), layers)
        self.gru = uninitialised(nn.GRU(inputs, hidden, layers, device="meta"))
        self.initialise(self.gru, generator)

    def forward(self, x: Tensor, *state: Tensor) -> tuple[Tensor, Tensor]:
        (h,) = state
        out, after = self.gru(x, h.transpose(0, 1).contiguous())
        return out, after.transpose(0, 1)

    def step(self, x: Tensor, *state: Tensor) -> tuple[Tensor]:
        (h,) = state
        after = []
        for k in range(self.layers):
            weights = [getattr(self.gru, f"{name}_l{k}") for name in ("weight_ih", "bias_ih", "weight_hh", "bias_hh")]
            reset, update, candidate = F.linear(x, *weights[:2]).chunk(3, dim=1)
            h_reset, h_update, h_candidate = F.linear(h[:, k], *weights[2:]).chunk(3, dim=1)
            proposed = torch.tanh(candidate + torch.sigmoid(reset + h_reset) * h_candidate)
            keep = torch.sigmoid(update + h_update)
            x = (1.0 - keep) * proposed + keep * h[:, k]
            after.append(x)
        return (torch.stack(after, dim=1),)
