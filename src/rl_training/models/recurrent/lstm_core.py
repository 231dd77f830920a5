"""An LSTM that unrolls whole sequences on torch for learning and steps on numpy for acting, from the same memory."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rl_training.models.encoder import on_cpu
from rl_training.models.recurrent.core import NumpyStep, RecurrentCore
from rl_training.models.uninitialised import require_room, uninitialised
from rl_training.types import Array


class LSTMCore(RecurrentCore):
    """Layers of LSTM (Hochreiter & Schmidhuber 1997); a state is (h, c).

    Initial weights are orthogonal and biases zero, except the forget gate's bias: at 0 the gate would halve the memory in
    each step, and a larger bias makes the memory last longer (Jozefowicz et al. 2015).
    """

    state_names = ("h", "c")

    def __init__(
        self, inputs: int, hidden: int, layers: int, generator: torch.Generator, *, forget_bias: float = 0.0
    ) -> None:
        super().__init__(hidden, layers)
        require_room(4 * hidden, max(inputs, hidden), layers)
        self.lstm = uninitialised(nn.LSTM(inputs, hidden, layers, device="meta"))
        self.initialise(self.lstm, generator)
        for k in range(layers):
            nn.init.constant_(getattr(self.lstm, f"bias_ih_l{k}").data[hidden : 2 * hidden], forget_bias)

    def forward(self, x: Tensor, *state: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        h, c = state
        out, (h_after, c_after) = self.lstm(x, (h.transpose(0, 1).contiguous(), c.transpose(0, 1).contiguous()))
        return out, h_after.transpose(0, 1), c_after.transpose(0, 1)

    def step(self, x: Tensor, *state: Tensor) -> tuple[Tensor, Tensor]:
        h, c = state
        new_h, new_c = [], []
        for k in range(self.layers):
            weights = [getattr(self.lstm, f"{name}_l{k}") for name in ("weight_ih", "bias_ih", "weight_hh", "bias_hh")]
            gates = F.linear(x, *weights[:2]) + F.linear(h[:, k], *weights[2:])
            enter, keep, candidate, leave = gates.chunk(4, dim=1)
            cell = torch.sigmoid(keep) * c[:, k] + torch.sigmoid(enter) * torch.tanh(candidate)
            x = torch.sigmoid(leave) * torch.tanh(cell)
            new_h.append(x)
            new_c.append(cell)
        return torch.stack(new_h, dim=1), torch.stack(new_c, dim=1)

    def numpy_step(self) -> NumpyStep:
        """One step on numpy arrays. On the CPU it reads the parameters in place."""
        if not on_cpu(self):
            return super().numpy_step()
        layers = []
        for k in range(self.layers):
            views = [getattr(self.lstm, f"{name}_l{k}").detach().numpy() for name in ("weight_ih", "weight_hh")]
            biases = [getattr(self.lstm, f"{name}_l{k}").detach().numpy() for name in ("bias_ih", "bias_hh")]
            layers.append((views[0].T, views[1].T, *biases))
        hidden = self.hidden

        def step(x: Array, h: Array, c: Array) -> tuple[Array, Array]:
            new_h, new_c = np.empty_like(h), np.empty_like(c)
            for k, (weight_in, weight_state, bias_in, bias_state) in enumerate(layers):
                gates = x @ weight_in
                gates += h[:, k] @ weight_state
                gates += bias_in
                gates += bias_state
                candidate = np.tanh(gates[:, 2 * hidden : 3 * hidden])
                # sigmoid(x) = (1 + tanh(x / 2)) / 2, which cannot overflow
                gates *= 0.5
                np.tanh(gates, out=gates)
                gates += 1.0
                gates *= 0.5
                keep = gates[:, hidden : 2 * hidden] * c[:, k]
                keep += gates[:, :hidden] * candidate
                new_c[:, k] = keep
                x = np.tanh(keep, out=keep)
                x *= gates[:, 3 * hidden :]
                new_h[:, k] = x
            return new_h, new_c

        return step
