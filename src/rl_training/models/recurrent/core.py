"""The interface of recurrent cores: unroll whole sequences for learning, and step for acting and export."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from rl_training.types import Array, Carry

#: (batch, inputs) and the state -> the next state, on numpy arrays
NumpyStep = Callable[..., Carry]


class RecurrentCore(nn.Module, ABC):
    """Layers of a recurrent network. A state has one array per name, each (batch, layer, hidden): batch first, so that each
    environment's state is a row. The last layer of the first array is the output.

    An episode starts from zeros: acting resets the rows, and learning uses sequences that never cross an episode boundary.
    """

    state_names: ClassVar[tuple[str, ...]]

    def __init__(self, hidden: int, layers: int) -> None:
        super().__init__()
        self.hidden, self.layers = hidden, layers

    def initialise(self, layers: nn.RNNBase, generator: torch.Generator) -> None:
        """Makes the weights of each gate orthogonal and all biases zero."""
        for name, parameter in layers.named_parameters():
            if name.startswith("weight"):
                for gate in torch.split(parameter.data, self.hidden):
                    nn.init.orthogonal_(gate, generator=generator)
            else:
                nn.init.zeros_(parameter)

    def initial_state(self, batch: int) -> Carry:
        """The state at the start of an episode."""
        return tuple(np.zeros((batch, self.layers, self.hidden), np.float32) for _ in self.state_names)

    @abstractmethod
    def forward(self, x: Tensor, *state: Tensor) -> tuple[Tensor, ...]:
        """(time, batch, inputs) from a state -> outputs (time, batch, hidden), then the state after the last step."""

    @abstractmethod
    def step(self, x: Tensor, *state: Tensor) -> tuple[Tensor, ...]:
        """One step, (batch, inputs) -> next state, using only operations that every runtime supports."""

    def numpy_step(self) -> NumpyStep:
        """``step`` on numpy arrays, for acting. Uses torch unless a subclass has a faster way."""
        device = next(self.parameters()).device

        @torch.no_grad()
        def step(x: Array, *state: Array) -> Carry:
            tensors = (torch.as_tensor(array, device=device) for array in (x, *state))
            return tuple(tensor.cpu().numpy() for tensor in self.step(*tensors))

        return step
