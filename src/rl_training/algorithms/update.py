"""One update, eager or compiled, with the same stages in the same order.

A stage is a loss and the optimiser that minimises it. Stages run one after another, each with the weights that the earlier
ones have left; then the target networks are updated. Random inputs of a loss are declared with its stage and drawn from the
run's ``noise`` stream, so the draws depend only on the stages.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import Any, Generic, Literal, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from rl_training.algorithms import compiled_graph
from rl_training.algorithms.compiled_graph import Groups, SubstitutedNetworks
from rl_training.algorithms.optimizer import CLEAR_EVERY, FlatOptimizer, flatten_parameters
from rl_training.models.encoder import widest_float
from rl_training.schedules import Schedule
from rl_training.types import State

InputT = TypeVar("InputT")  # a NamedTuple; its tensors are the inputs of a compiled update
#: inputs of a loss other than its batch: scheduled values (floats; tensors when compiled), random inputs, and the metrics and
#: kept values of earlier stages
Known = Mapping[str, Any]
NOTHING: Known = MappingProxyType({})


class StageLoss(NamedTuple):
    """The results of a stage before its optimiser steps."""

    loss: Tensor  # one number per sample
    metrics: Mapping[str, Tensor] = NOTHING  # reported; one number per sample each
    kept: Mapping[str, Tensor] = NOTHING  # for later stages and for the caller, not reported
    share: Tensor | None = None  # weight of each sample in the reduction; None: the mean


class Outcome(NamedTuple):
    """The results of one update."""

    metrics: dict[str, Tensor]
    kept: dict[str, Tensor]


@dataclass(frozen=True)
class Draw(Generic[InputT]):
    """A random input of a loss: its distribution, and its shape for a given batch."""

    shape: Callable[[InputT], tuple[int, ...]]
    kind: Literal["normal", "uniform"] = "normal"

    def __call__(self, inputs: InputT, rng: np.random.Generator, device: torch.device) -> Tensor:
        drawn = torch.empty(self.shape(inputs))
        (rng.standard_normal if self.kind == "normal" else rng.random)(dtype=np.float32, out=drawn.numpy())
        return drawn.to(device)


@dataclass(frozen=True)
class Stage(Generic[InputT]):
    """A loss and the optimiser that minimises it, in every ``every``-th update."""

    name: str  # the name of the loss in the metrics
    optimizer: FlatOptimizer
    loss: Callable[[InputT, Known], StageLoss]
    draws: Mapping[str, Draw[InputT]] = field(default_factory=dict)
    every: int = 1
    reported: bool = True  # whether the loss is among the metrics
    stop: Callable[[Mapping[str, Tensor]], bool] | None = None  # skip the step and end the update early; eager only


class TargetNetwork:
    """A copy of a network whose weights move towards the original's by the share ``tau`` in every ``every``-th update."""

    saved = True  # in the state of the update; otherwise, they are in that of the policy

    def __init__(self, module: nn.Module, optimizer: FlatOptimizer, *, tau: float, every: int = 1) -> None:
        """``module`` may lack the first parts of the module that ``optimizer`` trains, such as an encoder."""
        self.module = module.requires_grad_(False)
        self.vector = flatten_parameters(self.module)
        self.source = optimizer.parameters
        self.tau, self.every = tau, every

    def share(self, number: int) -> float:
        """The share in the update with this number; 0 if none is due."""
        return 0.0 if number % self.every else self.tau

    def follow(self, vector: Tensor, source: Tensor, tau: float | Tensor) -> None:
        """Moves ``vector`` towards ``source`` by the share ``tau``."""
        followed = source if len(source) == len(vector) else source[-len(vector) :]
        vector.lerp_(followed, tau)

    def reset(self) -> None:
        """Copies the original's weights."""
        self.vector.copy_(self.source[-len(self.vector) :])


class AveragedNetwork(TargetNetwork):
    """A copy of a network whose weights are an exponential moving average of the original's over about the last ``updates``
    updates (Kingma & Ba, arXiv:1412.6980, section 7.2). Until there are as many, it is the mean of all so far."""

    saved = False

    def __init__(self, module: nn.Module, optimizer: FlatOptimizer, updates: int) -> None:
        super().__init__(module, optimizer, tau=1.0 / updates)

    def share(self, number: int) -> float:
        return max(self.tau, 1.0 / number)


class Update(Generic[InputT]):
    """Runs the stages that are due, then updates the target networks. ``compile`` turns the same stages into one graph."""

    def __init__(
        self,
        stages: Sequence[Stage[InputT]],
        *,
        rng: np.random.Generator,
        schedules: Mapping[str, Schedule],
        targets: Mapping[str, TargetNetwork] | None = None,
        networks: Sequence[tuple[nn.Module, Tensor]] = (),
    ) -> None:
        """``schedules`` holds ``learning_rate`` and any other scheduled values that the losses use; ``networks`` are modules
        that they use other than trained and target networks, each with the vector that holds its parameters."""
        self.updates = 0
        self._stages, self._schedules, self._targets = list(stages), dict(schedules), dict(targets or {})
        self._always_due = all(stage.every == 1 for stage in self._stages)
        self._draws = any(stage.draws for stage in self._stages)
        self._networks = list(networks)
        self._rng = rng
        self._device = self._stages[0].optimizer.parameters.device
        self._held: dict[str, Mapping[str, Tensor]] = {}  # last metrics of the stages that are not due in every update
        self._compiled: dict[tuple[str, ...], _CompiledStages[InputT]] = {}

    def why_not_compiled(self) -> str | None:
        """The reason why these stages cannot be one graph; None if they can."""
        for stage in self._stages:
            if stage.stop is not None:
                return f"its stage '{stage.name}' may stop between the loss and the step"
        return None

    @property
    def stages(self) -> int:
        """The number of stages."""
        return len(self._stages)

    def scheduled(self, env_steps: int) -> dict[str, float]:
        """The scheduled values at a step."""
        return {name: schedule(env_steps) for name, schedule in self._schedules.items()}

    def __call__(self, inputs: InputT, env_steps: int = 0) -> Outcome | None:
        """One update; None if a stage stopped it."""
        number = self.updates + 1
        stages = self._stages if self._always_due else [stage for stage in self._stages if number % stage.every == 0]
        known: dict[str, Any] = self.scheduled(env_steps)
        draws = self.draw(inputs, stages) if self._draws else {}
        if self._compiled:
            compiled = self._compiled[tuple(stage.name for stage in stages)]
            shares = {name: target.share(number) for name, target in self._targets.items()}
            return self._finish(compiled(inputs, draws, known, shares))
        known.update(draws)
        done = _run_stages(stages, known, partial(_descend, inputs))
        if done is None:
            return None
        for target in self._targets.values():
            share = target.share(number)
            if share:
                target.follow(target.vector, target.source, share)
        return self._finish(done)

    def draw(self, inputs: InputT, stages: Sequence[Stage[InputT]] | None = None) -> dict[str, Tensor]:
        """Draws the random inputs of these stages, or of all stages, from the run's stream."""
        chosen = self._stages if stages is None else stages
        return {name: draw(inputs, self._rng, self._device) for stage in chosen for name, draw in stage.draws.items()}

    def _finish(self, done: Mapping[str, StageLoss]) -> Outcome:
        """Counts the update and collects its metrics."""
        self.updates += 1
        if self.updates % CLEAR_EVERY == 0:
            for stage in self._stages:
                stage.optimizer.clear_vanished()
        metrics: dict[str, Tensor] = {}
        kept: dict[str, Tensor] = {}
        for stage in self._stages:
            output = done.get(stage.name)
            if output is None:
                metrics.update(self._held.get(stage.name, {}))
                continue
            measured = {stage.name: output.loss, **output.metrics} if stage.reported else output.metrics
            if stage.every > 1:
                self._held[stage.name] = measured
            metrics.update(measured)
            kept.update(output.kept)
        return Outcome(metrics, kept)

    def compile(self, *examples: InputT) -> None:
        """Compiles every combination of stages that can be due together, for inputs shaped like each of the examples."""
        cycle = math.lcm(*(stage.every for stage in self._stages))
        all_compiled: dict[tuple[str, ...], _CompiledStages[InputT]] = {}
        for number in range(1, cycle + 1):
            stages = [stage for stage in self._stages if number % stage.every == 0]
            key = tuple(stage.name for stage in stages)
            if key not in all_compiled:
                compiled = _CompiledStages(stages, self._all_networks(), self._targets, self._schedules, examples[0])
                for example in examples:
                    # Zeros, so that nothing is drawn; separate tensors, because one used twice would be traced as one input.
                    draws = {
                        name: torch.zeros(draw.shape(example), device=self._device)
                        for stage in stages
                        for name, draw in stage.draws.items()
                    }
                    compiled.prepare(example, draws)
                all_compiled[key] = compiled
        self._compiled = all_compiled  # only now: an update is compiled in every combination or in none

    def _all_networks(self) -> list[tuple[nn.Module, Tensor]]:
        trained = [(stage.optimizer.module, stage.optimizer.parameters) for stage in self._stages]
        following = [(target.module, target.vector) for target in self._targets.values()]
        return [*trained, *self._networks, *following]

    def reset_targets(self) -> None:
        """Copies the online weights to the target networks."""
        for target in self._targets.values():
            target.reset()

    def state_dict(self) -> State:
        """Everything except the trained weights."""
        return {
            "updates": self.updates,
            "optimizers": {stage.name: stage.optimizer.state_dict() for stage in self._stages},
            "targets": {name: target.vector.clone() for name, target in self._targets.items() if target.saved},
            "held": {
                name: {metric: value.mean() for metric, value in measured.items()} for name, measured in self._held.items()
            },
        }

    def load_state_dict(self, state: State) -> None:
        self.updates = int(state["updates"])
        for stage in self._stages:
            stage.optimizer.load_state_dict(state["optimizers"][stage.name])
        for name, target in self._targets.items():
            if target.saved:
                target.vector.copy_(state["targets"][name])
        self._held = dict(state["held"])


def _run_stages(
    stages: Sequence[Stage[InputT]],
    known: dict[str, Any],
    descend: Callable[[Stage[InputT], Known], StageLoss | None],
) -> dict[str, StageLoss] | None:
    """Runs the stages in order and adds the results of each to ``known``; None if one stopped the update."""
    done = {}
    for stage in stages:
        output = descend(stage, known)
        if output is None:
            return None
        known.update(output.metrics)
        known.update(output.kept)
        done[stage.name] = output
    return done


def _descend(inputs: InputT, stage: Stage[InputT], known: Known) -> StageLoss | None:
    """One eager step of one stage."""
    output = stage.loss(inputs, known)
    if not output.loss.dim():
        raise TypeError(f"the stage '{stage.name}' must return one loss per sample; the update takes the mean")
    if stage.stop is not None and stage.stop(output.metrics):
        return None
    stage.optimizer.step(output.loss, known["learning_rate"], output.share)
    return StageLoss(output.loss.detach(), _detached(output.metrics), _detached(output.kept))


def _detached(tensors: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """Without the graph that led to them, so that later stages cannot reach back into it."""
    for tensor in tensors.values():
        if tensor.requires_grad:
            return {name: tensor.detach() for name, tensor in tensors.items()}
    return tensors


class _CompiledStages(Generic[InputT]):
    """Some stages and all target networks as one graph.

    The losses are those of the eager path: they are traced once for each shape of inputs, with the graph's tensors in place
    of the networks' parameters and buffers. Schedules and target shares are tensors, so a new value needs no compilation.
    """

    def __init__(
        self,
        stages: Sequence[Stage[InputT]],
        networks: Sequence[tuple[nn.Module, Tensor]],  # each with its flat parameters, which two networks may share
        targets: Mapping[str, TargetNetwork],
        schedules: Mapping[str, Schedule],
        example: InputT,
    ) -> None:
        self._stages, self._targets = stages, targets
        self._networks = SubstitutedNetworks([network for network, _ in networks])
        self._vectors = [vector for _, vector in networks]
        owned = {id(stage.optimizer.parameters) for stage in stages}
        self._others = list({id(vector): vector for vector in self._vectors if id(vector) not in owned}.values())
        fields: Any = example
        self._make_inputs = type(example)
        self._size = len(fields)
        self._fields = [i for i, value in enumerate(fields) if isinstance(value, Tensor)]
        self._draws = [name for stage in stages for name in stage.draws]
        device = self._vectors[0].device
        number = torch.zeros((), dtype=widest_float(device), device=device)
        self._settings = {name: number.clone() for name in schedules}
        self._shares = {name: number.clone() for name in targets}
        self._last: dict[int, float] = {}  # what the tensors of settings and shares hold
        #: by stage: where its loss, its metrics and what it keeps are among the outputs of the graph
        self._outputs: list[tuple[str, int, dict[str, int], dict[str, int]]] = []
        self._graph = compiled_graph.CompiledGraph(
            self._step,
            {
                **{stage.name: stage.optimizer.tensors for stage in stages},
                "others": self._others,
                "settings": list(self._settings.values()),
                "shares": list(self._shares.values()),
                "buffers": list(self._networks.buffers()),
            },
        )

    def _tensors(self, inputs: InputT, draws: Mapping[str, Tensor]) -> list[Tensor]:
        fields: Any = inputs
        return [*[fields[i] for i in self._fields], *[draws[name] for name in self._draws]]

    def prepare(self, inputs: InputT, draws: Mapping[str, Tensor]) -> None:
        """Compiles for inputs like these."""
        self._graph.prepare(self._tensors(inputs, draws))

    def __call__(
        self, inputs: InputT, draws: Mapping[str, Tensor], settings: Mapping[str, float], shares: Mapping[str, float]
    ) -> dict[str, StageLoss]:
        for tensors, values in ((self._settings, settings), (self._shares, shares)):
            for name, value in values.items():
                tensor = tensors[name]
                if self._last.get(id(tensor)) != value:
                    self._last[id(tensor)] = value
                    tensor.fill_(value)
        outputs = self._graph(self._tensors(inputs, draws))
        return {
            name: StageLoss(
                outputs[loss], {key: outputs[i] for key, i in metrics.items()}, {key: outputs[i] for key, i in kept.items()}
            )
            for name, loss, metrics, kept in self._outputs
        }

    def _step(self, state: Groups, tensors: Sequence[Tensor]) -> Sequence[Tensor]:
        given = {id(vector): tensor for vector, tensor in zip(self._others, state["others"], strict=True)}
        given.update({id(stage.optimizer.parameters): state[stage.name][0] for stage in self._stages})
        split = len(self._fields)
        fields: list[Any] = [None] * self._size
        for i, tensor in zip(self._fields, tensors[:split], strict=True):
            fields[i] = tensor
        inputs = self._make_inputs(*fields)
        settings = dict(zip(self._settings, state["settings"], strict=True))
        rate = settings["learning_rate"]
        known: dict[str, Any] = {name: value.float() for name, value in settings.items()}
        known.update(zip(self._draws, tensors[split:], strict=True))

        def descend(stage: Stage[InputT], known: Known) -> StageLoss:
            def losses(parameters: Tensor) -> tuple[Tensor, tuple[Tensor, Mapping[str, Tensor], Mapping[str, Tensor]]]:
                vectors = {**given, id(stage.optimizer.parameters): parameters}
                output = self._networks.call(
                    lambda: stage.loss(inputs, known), [vectors[id(vector)] for vector in self._vectors], state["buffers"]
                )
                mean = output.loss.mean() if output.share is None else (output.loss * output.share).sum()
                return mean, (output.loss, dict(output.metrics), dict(output.kept))

            return StageLoss(*stage.optimizer.traced_step(state[stage.name], losses, rate))

        done = _run_stages(self._stages, known, descend)
        assert done is not None
        for target, share in zip(self._targets.values(), state["shares"], strict=True):
            vector = given[id(target.vector)]
            target.follow(vector, given[id(target.source)], share.to(vector.dtype))
        self._outputs = []
        values: list[Tensor] = []
        for name, output in done.items():
            first = len(values)
            values += [output.loss, *output.metrics.values(), *output.kept.values()]
            places = iter(range(first + 1, len(values)))
            metrics = dict(zip(output.metrics, places, strict=False))
            self._outputs.append((name, first, metrics, dict(zip(output.kept, places, strict=False))))
        return values
