"""One update as one compiled graph: loss, gradient, clipping, Adam and target update without Python in between.

The update is traced once into a graph of tensor operations, which torch's compiler turns into machine code. Nothing of the
Python is looked at again: all that an update reads or changes must be a tensor that the graph is given.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn
from torch.func import functional_call

from rl_training.algorithms.optimizer import FlatAdam
from rl_training.errors import CompilationError

T = TypeVar("T")
#: batch, and settings with what earlier stages handed on -> a loss per sample, and what to hand on
Losses = Callable[[Sequence[Tensor], Mapping[str, Tensor]], tuple[Tensor, Mapping[str, Tensor]]]
#: lists of tensors by name
Groups = Mapping[str, Sequence[Tensor]]


class Stage(NamedTuple):
    """A loss and who goes down it."""

    name: str  # of the loss, among what the step hands on
    optimizer: FlatAdam
    losses: Losses


class CompiledStep:
    """One step of one or more optimisers, each with the weights that those before it have left, and a target update after
    them, as one graph.

    The stages' ``losses`` are the eager path's own: they run once for each shape of batch, while the networks' parameters
    and buffers are the graph's. Settings are numbers that may change with every step: ``learning_rate``; ``tau``, the share
    of a target update, 0 for none; and further ones by name.
    """

    def __init__(
        self,
        stages: Sequence[Stage],
        networks: Sequence[tuple[nn.Module, Tensor]],  # each with its flat parameters, which two may share
        *,
        settings: Sequence[str] = (),
        target: tuple[Tensor, Tensor] | None = None,  # flat parameters that follow others
    ) -> None:
        self._stages, self._target = stages, target
        self._networks = Networks(*(network for network, _ in networks))
        self._vectors = [vector for _, vector in networks]
        owned = {id(stage.optimizer.parameters) for stage in stages}
        self._others = list({id(vector): vector for vector in self._vectors if id(vector) not in owned}.values())
        names = ("learning_rate", *settings, *(() if target is None else ("tau",)))
        number = torch.zeros((), dtype=torch.float64, device=self._vectors[0].device)
        self._settings = {name: number.clone() for name in names}
        self._outputs: list[str] = []
        self._graph = CompiledGraph(
            self._step,
            {
                **{stage.name: stage.optimizer.tensors for stage in stages},
                "others": self._others,
                "settings": list(self._settings.values()),
                "buffers": list(self._networks.buffers()),
            },
        )

    def prepare(self, batch: Sequence[Tensor]) -> None:
        """Compiles for batches like this one."""
        self._graph.prepare(batch)

    def __call__(self, batch: Sequence[Tensor], **settings: float) -> dict[str, Tensor]:
        """The losses per sample, and what else the stages hand on."""
        for name, value in settings.items():
            self._settings[name].fill_(value)
        return dict(zip(self._outputs, self._graph(batch), strict=True))

    def _step(self, state: Groups, batch: Sequence[Tensor]) -> Sequence[Tensor]:
        settings = dict(zip(self._settings, state["settings"], strict=True))
        given = {id(vector): tensor for vector, tensor in zip(self._others, state["others"], strict=True)}
        given.update({id(stage.optimizer.parameters): state[stage.name][0] for stage in self._stages})
        outputs: dict[str, Tensor] = {}

        def losses(stage: Stage, parameters: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
            vectors = {**given, id(stage.optimizer.parameters): parameters}
            loss, handed_on = self._networks.call(
                lambda: stage.losses(batch, {**settings, **outputs}),
                [vectors[id(vector)] for vector in self._vectors],
                state["buffers"],
            )
            return loss, {stage.name: loss, **handed_on}

        for stage in self._stages:
            tensors, rate = state[stage.name], settings["learning_rate"]
            outputs.update(stage.optimizer.traced_step(tensors, partial(losses, stage), rate))
        if self._target is not None:
            target, followed = (given[id(vector)] for vector in self._target)
            target.lerp_(followed, settings["tau"].to(target.dtype))
        self._outputs = list(outputs)
        return list(outputs.values())


class CompiledGraph:
    """``function(state, batch)`` to a list of tensors, compiled once for each shape of batch.

    The state is always the same tensors, which the function may change in place.
    """

    def __init__(self, function: Callable[[Groups, Sequence[Tensor]], Sequence[Tensor]], state: Groups) -> None:
        self._function, self._groups = function, {name: len(tensors) for name, tensors in state.items()}
        self._state = [tensor for tensors in state.values() for tensor in tensors]
        self._graphs: dict[Any, Callable[..., Sequence[Tensor]]] = {}

    def __call__(self, batch: Sequence[Tensor]) -> Sequence[Tensor]:
        graph = self._graphs.get(_layout(batch)) or self.prepare(batch)
        with torch.no_grad():
            return graph(*self._state, *batch)

    def prepare(self, batch: Sequence[Tensor]) -> Callable[..., Sequence[Tensor]]:
        """The graph for batches like this one. Neither the state nor the batch is touched."""
        import torch._inductor  # a second of imports, for those who compile

        inputs: list[Any] = [*self._state, *batch]
        # On a CPU the calls of the kernels become C++ too: quicker to compile, and 6 % of a small DQN's update.
        options = {"cpp_wrapper": all(tensor.device.type == "cpu" for tensor in inputs)}
        traced = self.trace(batch)  # an error in here is ours, not the compiler's
        try:
            with torch.no_grad():
                graph: Callable[..., Sequence[Tensor]] = torch._inductor.compile(traced, inputs, options)
        except Exception as error:  # a compiler fails in many ways: not installed, a device it does not know, a full disk
            raise CompilationError(next(iter(str(error).strip().splitlines()), type(error).__name__)) from error
        self._graphs[_layout(batch)] = graph
        return graph

    def trace(self, batch: Sequence[Tensor]) -> torch.fx.GraphModule:
        """The operations on state and batch, not yet compiled."""
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


class Networks(nn.Module):
    """Networks whose parameters and buffers can be other tensors for the length of a call."""

    def __init__(self, *networks: nn.Module) -> None:
        super().__init__()
        self.networks = nn.ModuleList(networks)

    def call(self, function: Callable[[], T], parameters: Sequence[Tensor], buffers: Sequence[Tensor]) -> T:
        """``function()`` while the networks take their parameters from these flat vectors, one each, and these buffers."""
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
