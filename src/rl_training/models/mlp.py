"""A multi-layer perceptron that runs on torch for learning and on numpy for acting, from the same memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from rl_training.models.encoder import Encoder, on_cpu, unchanged
from rl_training.models.noisy import NoisyArrays, NoisyLinear
from rl_training.models.uninitialised import require_room, uninitialised
from rl_training.types import Array

Activation = Literal["relu", "tanh", "gelu", "silu", "elu", "leaky_relu"]
#: By name, the same function for torch and, if acting should avoid torch, for numpy. Those that can overwrite their input,
#: which nothing else needs, do. This saves a tenth of SAC's update (256-256, batch 256): that memory is already in the cache.
ACTIVATIONS: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[NDArray[np.float32]], Any] | None]] = {
    "relu": (torch.relu_, lambda x: np.maximum(x, 0.0, out=x)),
    "tanh": (torch.tanh_, lambda x: np.tanh(x, out=x)),
    "gelu": (F.gelu, None),
    "silu": (F.silu, None),
    "elu": (F.elu, None),
    "leaky_relu": (F.leaky_relu, None),
}


@dataclass(frozen=True)
class Style:
    """How the dense layers of a network are made."""

    activation: Activation = "relu"
    layer_norm: bool = False  # normalise the inputs of every activation
    orthogonal: bool = (
        False  # orthogonal weights instead of PyTorch's default; noisy layers have an initialisation of their own
    )

    def gain(self, output: float = 1.0) -> float | None:
        """The scale of the weights of an output layer; None for PyTorch's default initialisation."""
        return output if self.orthogonal else None


PLAIN = Style()


def make_linear(inputs: int, outputs: int, generator: torch.Generator, gain: float | None = None) -> nn.Linear:
    """A linear layer initialised from ``generator``: with a ``gain``, orthogonal weights of that scale and zero bias (Saxe et
    al., arXiv:1312.6120); without one, PyTorch's default initialisation, U(+-1/sqrt(inputs))."""
    require_room(outputs, inputs)
    layer = uninitialised(nn.Linear(inputs, outputs, device="meta"))
    if gain is not None:
        nn.init.orthogonal_(layer.weight, gain, generator=generator)
        nn.init.zeros_(layer.bias)
        return layer
    bound = 1.0 / math.sqrt(inputs)
    for parameter in (layer.weight, layer.bias):
        nn.init.uniform_(parameter, -bound, bound, generator=generator)
    return layer


class MLP(Encoder):
    """Linear (or noisy) layers of these sizes, with an activation between them and, with ``activate_last``, after the last;
    with ``layer_norm``, a layer normalisation before each activation.

    With ``output_gain`` linear layers are orthogonal, with gain sqrt(2) in hidden layers and ``output_gain`` in the last.
    """

    def __init__(
        self,
        sizes: Sequence[int],
        generator: torch.Generator,
        *,
        noisy: bool = False,
        activation: str = "relu",
        activate_last: bool = False,
        output_gain: float | None = None,
        layer_norm: bool = False,
    ) -> None:
        super().__init__()
        self.linears: list[nn.Linear | NoisyLinear] = []
        for i, (inputs, outputs) in enumerate(pairwise(sizes), start=2):
            gain = output_gain if i == len(sizes) or output_gain is None else math.sqrt(2.0)
            make = NoisyLinear(inputs, outputs, generator) if noisy else make_linear(inputs, outputs, generator, gain)
            self.linears.append(make)
        self.layers = nn.ModuleList(self.linears)
        #: the dictionaries of the linear layers' parameters; looking up ``layer.weight`` takes a microsecond
        self._owned: list[dict[str, Any]] = [
            {} if isinstance(layer, NoisyLinear) else layer._parameters for layer in self.linears
        ]
        self.activation = activation
        self._activate = ACTIVATIONS[activation][0]
        self.activate_last = activate_last
        self.out_features = sizes[-1]
        activated = sizes[1:] if activate_last else sizes[1:-1]
        self.norms = nn.ModuleList(nn.LayerNorm(size) for size in activated) if layer_norm else None

    def forward(self, x: Tensor) -> Tensor:
        # F.linear on the parameters: calling each layer as a module takes as long again as the arithmetic.
        norms, activated = self.norms, len(self.linears) - (not self.activate_last)
        for i, (layer, owned) in enumerate(zip(self.linears, self._owned, strict=True)):
            x = F.linear(x, owned["weight"], owned["bias"]) if owned else F.linear(x, layer.weight, layer.bias)
            if i < activated:
                x = self._activate(x if norms is None else norms[i](x))
        return x

    @property
    def output_bias(self) -> Tensor:
        """The bias of the last layer, without noise."""
        last = self.linears[-1]
        return last.bias_mean if isinstance(last, NoisyLinear) else last.bias

    def has_numpy(self) -> bool:
        return on_cpu(self) and self.norms is None and ACTIVATIONS[self.activation][1] is not None

    def numpy_forward(self, noisy: bool = False) -> Callable[[Array], Array]:
        """The same function on numpy arrays, with or without the noise of noisy layers. On the CPU it reads the parameters in
        place, so it sees every in-place update."""
        if not self.linears:
            return unchanged
        return NumpyMLP(self, noisy) if self.has_numpy() else super().numpy_forward()


def make_mlp(
    sizes: Sequence[int],
    generator: torch.Generator,
    style: Style,
    *,
    noisy: bool = False,
    activate_last: bool = False,
    output_gain: float = 1.0,
) -> MLP:
    """An ``MLP`` in this style; ``output_gain`` is the scale of an orthogonal output layer."""
    return MLP(
        sizes,
        generator,
        noisy=noisy,
        activation=style.activation,
        activate_last=activate_last,
        output_gain=style.gain(output_gain),
        layer_norm=style.layer_norm,
    )


class NumpyMLP:
    """An ``MLP`` on the CPU without torch's overhead per call, which exceeds the time of the arithmetic on a few rows."""

    def __init__(self, mlp: MLP, noisy: bool) -> None:
        self._layers: list[tuple[NDArray[np.float32], NDArray[np.float32]]] = []
        self._noisy = [NoisyArrays(layer, noisy) for layer in mlp.linears if isinstance(layer, NoisyLinear)]
        if not self._noisy:
            self._layers = [(layer.weight.detach().numpy().T, layer.bias.detach().numpy()) for layer in mlp.linears]
        self._active = [True] * (len(mlp.linears) - 1) + [mlp.activate_last]
        activate = ACTIVATIONS[mlp.activation][1]
        assert activate is not None
        self._activate = activate

    def __call__(self, x: NDArray[np.float32]) -> NDArray[np.float32]:
        layers = [layer.current() for layer in self._noisy] if self._noisy else self._layers
        for (weight, bias), active in zip(layers, self._active, strict=False):
            x = x.dot(weight)  # the same as ``@``, in less time
            x += bias
            if active:
                self._activate(x)
        return x
