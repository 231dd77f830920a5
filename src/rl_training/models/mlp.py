"""A multi-layer perceptron that runs on torch for learning and on numpy for acting, from the same memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

#: By name, the same function for torch and, in place, for numpy.
ACTIVATIONS: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[NDArray[np.float32]], Any]]] = {
    "relu": (F.relu, lambda x: np.maximum(x, 0.0, out=x)),
    "tanh": (torch.tanh, lambda x: np.tanh(x, out=x)),
}


def make_linear(inputs: int, outputs: int, generator: torch.Generator, gain: float | None = None) -> nn.Linear:
    """A linear layer drawn from ``generator``: with a ``gain`` orthogonal weights of that scale and no bias (Saxe et al.,
    arXiv:1312.6120), without one PyTorch's usual initialisation, U(+-1/sqrt(inputs))."""
    layer = nn.Linear(inputs, outputs, device="meta").to_empty(device="cpu")  # no draw from the global generator
    if gain is not None:
        nn.init.orthogonal_(layer.weight, gain, generator=generator)
        nn.init.zeros_(layer.bias)
        return layer
    bound = 1.0 / math.sqrt(inputs)
    for parameter in (layer.weight, layer.bias):
        nn.init.uniform_(parameter, -bound, bound, generator=generator)
    return layer


class MLP(nn.Module):
    """Linear layers with an activation between them and none after the last.

    With ``output_gain`` the layers are orthogonal: sqrt(2) inside, that gain at the end.
    """

    def __init__(
        self,
        inputs: int,
        hidden: Sequence[int],
        outputs: int,
        generator: torch.Generator,
        activation: str = "relu",
        output_gain: float | None = None,
    ) -> None:
        super().__init__()
        sizes = list(pairwise([inputs, *hidden, outputs]))
        inner_gain = None if output_gain is None else math.sqrt(2.0)
        self.linears = [make_linear(i, o, generator, inner_gain) for i, o in sizes[:-1]]
        self.linears.append(make_linear(*sizes[-1], generator, output_gain))
        self.layers = nn.ModuleList(self.linears)
        self.activation = activation
        self._activate = ACTIVATIONS[activation][0]

    def forward(self, x: Tensor) -> Tensor:
        # F.linear on the parameters: calling each layer as a module would cost as much again as the arithmetic.
        *inner, last = self.linears
        for layer in inner:
            x = self._activate(F.linear(x, layer.weight, layer.bias))
        return F.linear(x, last.weight, last.bias)

    def numpy_forward(self) -> NumpyMLP:
        """The same function on numpy arrays. It reads the parameters where they lie, so it follows every in-place update."""
        return NumpyMLP(self)


class NumpyMLP:
    """An ``MLP`` on the CPU without torch's overhead per call: 5 times faster on the few observations of a vector step."""

    def __init__(self, mlp: MLP) -> None:
        layers = [(layer.weight.detach().numpy().T, layer.bias.detach().numpy()) for layer in mlp.linears]
        *self._inner, (self._weight, self._bias) = layers
        self._activate = ACTIVATIONS[mlp.activation][1]

    def __call__(self, x: NDArray[np.float32]) -> NDArray[np.float32]:
        for weight, bias in self._inner:
            x = x @ weight
            x += bias
            self._activate(x)
        x = x @ self._weight
        x += self._bias
        return x
