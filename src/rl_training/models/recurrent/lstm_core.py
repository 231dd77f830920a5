"""An LSTM that unrolls whole sequences on torch for learning and steps on numpy for acting, from the same memory.

A state is a pair (h, c) of shape (batch, layer, hidden), batch first, so that each environment's state is a row. Where an
episode starts the row is zero: acting sets it so, and learning gets sequences that never cross an episode.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rl_training.models.undrawn import undrawn
from rl_training.types import Array

NumpyStep = Callable[[Array, Array, Array], tuple[Array, Array]]


class LSTMCore(nn.Module):
    """Layers of LSTM (Hochreiter & Schmidhuber 1997) with orthogonal weights at the start, and no bias but the forget
    gate's: at 0 it halves the memory in each step, the larger it is the longer the memory lasts (Jozefowicz et al. 2015)."""

    def __init__(
        self, inputs: int, hidden: int, layers: int, generator: torch.Generator, *, forget_bias: float = 0.0
    ) -> None:
        super().__init__()
        self.lstm = undrawn(nn.LSTM(inputs, hidden, layers, device="meta"))
        for name, parameter in self.lstm.named_parameters():
            if name.startswith("weight"):
                for gate in torch.split(parameter.data, hidden):
                    nn.init.orthogonal_(gate, generator=generator)
            else:
                nn.init.zeros_(parameter)
                if name.startswith("bias_ih"):
                    nn.init.constant_(parameter.data[hidden : 2 * hidden], forget_bias)
        self.hidden, self.layers = hidden, layers

    def initial_state(self, batch: int) -> tuple[Array, Array]:
        """The state in which an episode starts."""
        shape = (batch, self.layers, self.hidden)
        return np.zeros(shape, np.float32), np.zeros(shape, np.float32)

    def forward(self, x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(time, batch, inputs) from a state -> outputs (time, batch, hidden) and the state after the last step."""
        out, (h_after, c_after) = self.lstm(x, (h.transpose(0, 1).contiguous(), c.transpose(0, 1).contiguous()))
        return out, h_after.transpose(0, 1), c_after.transpose(0, 1)

    def step(self, x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        """One step in plain operations, which any runtime has: (batch, inputs), h, c -> new h, new c."""
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
        """One step on numpy arrays, (batch, inputs), h, c -> new h, new c. It reads the parameters where they lie."""
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
