"""Compiles a function of tensors into one graph, with no Python between its operations.

The function is traced once into a graph of tensor operations, which torch's compiler turns into machine code. Its Python code
does not run again, so everything it reads or changes must be a tensor that is passed to the graph.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.func import functional_call

from rl_training.algorithms import matrix_products
from rl_training.errors import CompilationError, NetworkError

T = TypeVar("T")
#: lists of tensors by name
Groups = Mapping[str, Sequence[Tensor]]


class CompiledGraph:
    """``function(state, batch)``, which returns a list of tensors, compiled once for each shape of batch.

    The state always consists of the same tensors, which the function may change in place.
    """

    def __init__(self, function: Callable[[Groups, Sequence[Tensor]], Sequence[Tensor]], state: Groups) -> None:
        self._function, self._groups = function, {name: len(tensors) for name, tensors in state.items()}
        self._state = [tensor for tensors in state.values() for tensor in tensors]
        self._graphs: dict[Any, Callable[..., Sequence[Tensor]]] = {}
        self._last: tuple[Sequence[Tensor], Callable[..., Sequence[Tensor]]] | None = None  # the last batch and its graph

    def __call__(self, batch: Sequence[Tensor]) -> Sequence[Tensor]:
        # A replay reuses the memory of its batches: the same tensors have the same shapes.
        if self._last is None or not all(map(operator.is_, batch, self._last[0])):
            self._last = batch, self._graphs.get(_layout(batch)) or self.prepare(batch)
        with torch.no_grad():
            return self._last[1](*self._state, *batch)

    def prepare(self, batch: Sequence[Tensor]) -> Callable[..., Sequence[Tensor]]:
        """Compiles the graph for batches shaped like this one. Neither the state nor the batch is changed."""
        import torch._inductor  # takes a second to import, so only when compiling

        inputs: list[Any] = [*self._state, *batch]
        # On a CPU the kernels are also called from C++: this compiles faster and saves 6 % of a small DQN's update.
        options = {"cpp_wrapper": all(tensor.device.type == "cpu" for tensor in inputs)}
        try:
            traced = self.trace(batch)  # an error of ours in here is a bug, not a failure of the compiler
        except NetworkError as error:
            raise CompilationError(str(error)) from error
        if matrix_products.onednn_is_faster():
            matrix_products.use_onednn(traced)
        try:
            with torch.no_grad():
                graph: Callable[..., Sequence[Tensor]] = torch._inductor.compile(traced, inputs, options)
        except Exception as error:  # compilers fail in many ways: not installed, an unsupported device, a full disk
            raise CompilationError(next(iter(str(error).strip().splitlines()), type(error).__name__)) from error
        self._graphs[_layout(batch)] = graph
        return graph

    def trace(self, batch: Sequence[Tensor]) -> torch.fx.GraphModule:
        """The function as a graph that is not compiled yet."""
        from torch.fx.experimental.proxy_tensor import make_fx

        with torch.no_grad():
            return make_fx(self._flat, tracing_mode="fake")(*self._state, *batch)

    def _flat(self, *tensors: Tensor) -> Sequence[Tensor]:
        state, start = {}, 0
        for name, count in self._groups.items():
            state[name] = tensors[start : start + count]
            start += count
        return self._function(state, tensors[start:])


def _layout(tensors: Sequence[Tensor]) -> tuple[Any, ...]:
    return tuple((tensor.shape, tensor.stride()) for tensor in tensors)


class SubstitutedNetworks(nn.Module):
    """Networks whose parameters and buffers can be replaced by other tensors for the duration of a call."""

    def __init__(self, networks: Sequence[nn.Module]) -> None:
        super().__init__()
        self.networks = nn.ModuleList(networks)

    def call(self, function: Callable[[], T], parameters: Sequence[Tensor], buffers: Sequence[Tensor]) -> T:
        """Calls ``function`` with each network's parameters taken from its flat vector, and with these buffers."""
        tensors = dict(zip((name for name, _ in self.named_buffers()), buffers, strict=True))
        for i, (network, flat) in enumerate(zip(self.networks, parameters, strict=True)):
            owners = dict(network.named_parameters())
            parts = torch.split(flat, [owner.numel() for owner in owners.values()])
            for (name, owner), part in zip(owners.items(), parts, strict=True):
                tensors[f"networks.{i}.{name}"] = part.view(owner.shape)
        result: T = functional_call(self, tensors, (function,))
        return result

    def forward(self, function: Callable[[], T]) -> T:
        return function()
