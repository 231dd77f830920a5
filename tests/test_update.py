"""One update of several stages: the same eagerly and compiled, whatever an author's losses use."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import rl_training.algorithms.compiled_graph as compiled_graph
from rl_training.algorithms.config import AlgorithmConfig
from rl_training.algorithms.optimizer import CLEAR_EVERY, FlatAdam, make_optimizer
from rl_training.algorithms.update import Draw, Known, Stage, StageLoss, TargetNetwork, Update
from rl_training.errors import CompilationError
from rl_training.schedules import LinearSchedule


class Inputs(NamedTuple):
    x: Tensor
    weights: Tensor | None = None


class TracedGraph(compiled_graph.CompiledGraph):
    """Runs the operations of the graph one by one instead of compiling them."""

    def prepare(self, batch: object) -> object:  # type: ignore[override]
        graph = self._graphs[compiled_graph._layout(batch)] = self.trace(batch)  # type: ignore[arg-type]
        return graph


class Two:
    """Two layers with an optimiser each: the second stage uses what the first one kept, and is due every other time."""

    def __init__(self, *, stop: bool = False) -> None:
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(3, 4), nn.Linear(4, 1)
        self.target_module = nn.Linear(3, 4)
        optimizers = [FlatAdam(module, max_norm=None) for module in (self.first, self.second)]
        self.target = TargetNetwork(self.target_module, optimizers[0], tau=0.5, every=3)
        self.target.reset()
        self.seen: list[Known] = []
        self.update = Update(
            [
                Stage("a", optimizers[0], self.loss_a, {"noise": Draw(lambda inputs: (len(inputs.x), 4))}),
                Stage("b", optimizers[1], self.loss_b, every=2, stop=(lambda metrics: True) if stop else None),
            ],
            rng=np.random.default_rng(0),
            schedules={"learning_rate": LinearSchedule(0.1, 0.05, 10), "scale": LinearSchedule(1.0, 2.0, 10)},
            targets={"target": self.target},
        )

    def loss_a(self, inputs: Inputs, known: Known) -> StageLoss:
        features = self.first(inputs.x) + known["noise"]
        loss = (features - self.target_module(inputs.x) - known["scale"]).square().mean(dim=1)
        return StageLoss(loss + 0.0 * known["learning_rate"], {"size": features.mean(dim=1)}, {"features": features})

    def loss_b(self, inputs: Inputs, known: Known) -> StageLoss:
        return StageLoss((self.second(known["features"]).squeeze(1) - known["size"] - 1.0).square())

    def weights(self) -> list[Tensor]:
        modules = (self.first, self.second, self.target_module)
        return [parameter.detach().clone() for module in modules for parameter in module.parameters()]


def batches() -> list[Inputs]:
    generator = torch.Generator().manual_seed(1)
    return [Inputs(torch.randn(5, 3, generator=generator)) for _ in range(7)]


def test_both_modes_do_the_same_and_stages_are_due_when_they_should(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled_graph, "CompiledGraph", TracedGraph)
    eager, fast = Two(), Two()
    fast.update.compile(batches()[0])
    for step, inputs in enumerate(batches()):
        before = eager.weights()
        outcomes = [two.update(inputs, env_steps=step) for two in (eager, fast)]
        assert outcomes[0] is not None
        assert outcomes[1] is not None
        for name, value in outcomes[0].metrics.items():
            torch.testing.assert_close(value, outcomes[1].metrics[name])
            assert not value.requires_grad
        for one, other in zip(eager.weights(), fast.weights(), strict=True):
            torch.testing.assert_close(one, other)
        moved = [not torch.equal(old, new) for old, new in zip(before, eager.weights(), strict=True)]
        assert moved == [True] * 2 + [step % 2 == 1] * 2 + [step % 3 == 2] * 2
        assert ("b" in outcomes[0].metrics) == (step >= 1)  # then the last measurement stays


def test_a_compilation_that_fails_halfway_leaves_the_update_eager(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []

    class SecondFails(TracedGraph):
        def prepare(self, batch: object) -> object:  # type: ignore[override]
            made.append(True)
            if len(made) == 2:
                raise CompilationError("no space left")
            return super().prepare(batch)

    monkeypatch.setattr(compiled_graph, "CompiledGraph", SecondFails)
    eager, failed = Two(), Two()
    with pytest.raises(CompilationError):
        failed.update.compile(batches()[0])
    for step, inputs in enumerate(batches()):
        for two in (eager, failed):
            two.update(inputs, env_steps=step)
    assert all(torch.equal(one, other) for one, other in zip(eager.weights(), failed.weights(), strict=True))


def test_a_stage_that_may_stop_stops_before_its_step_and_is_not_compiled() -> None:
    two = Two(stop=True)
    assert two.update.why_not_compiled() == "its stage 'b' may stop between the loss and the step"
    assert Two().update.why_not_compiled() is None
    first, second = batches()[:2]
    assert two.update(first) is not None
    before = two.weights()
    assert two.update(second) is None
    assert all(torch.equal(old, new) for old, new in zip(before[2:4], two.weights()[2:4], strict=True))
    assert two.update.updates == 1


def test_a_loss_that_is_already_reduced_is_refused() -> None:
    layer = nn.Linear(3, 1)
    stage = Stage[Inputs]("a", FlatAdam(layer, max_norm=None), lambda inputs, known: StageLoss(layer(inputs.x).mean()))
    update = Update([stage], rng=np.random.default_rng(0), schedules={"learning_rate": LinearSchedule(0.1, 0.1, 0)})
    with pytest.raises(TypeError, match="the stage 'a' must return one loss per sample"):
        update(batches()[0])


def test_the_state_continues_exactly() -> None:
    original, restored = Two(), Two()
    for inputs in batches()[:3]:
        original.update(inputs)
    for one, other in zip((original.first, original.second), (restored.first, restored.second), strict=True):
        other.load_state_dict(one.state_dict())
    restored.update.load_state_dict(original.update.state_dict())
    restored.update._rng.bit_generator.state = original.update._rng.bit_generator.state
    for inputs in batches()[3:]:
        for two in (original, restored):
            two.update(inputs)
    assert all(torch.equal(one, other) for one, other in zip(original.weights(), restored.weights(), strict=True))


class Inactive(nn.Module):
    """Weights of which half get a gradient of 0 from the 20th update on, until update 1100."""

    QUIET, AWAKE, END = 20, 1100, 1200  # what shrinks by 10 % in an update needs about 850 to become subnormal

    def __init__(self, settings: dict[str, Any]) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(-2.0, 2.0, 40))
        self.optimizer = make_optimizer(self, AlgorithmConfig(**settings), max_norm=1.0)
        self.update: Update[Inputs] = Update(
            [Stage("loss", self.optimizer, lambda inputs, known: StageLoss(inputs.x @ self.weight))],
            rng=np.random.default_rng(0),
            schedules={"learning_rate": LinearSchedule(0.01, 0.001, self.END)},
        )
        rng = np.random.default_rng(1)
        self.data = [torch.from_numpy(rng.standard_normal((4, 40), np.float32)) for _ in range(20)]

    def run(self, updates: int) -> None:
        for _ in range(updates):
            number = self.update.updates
            inputs = self.data[number % 20].clone()
            inputs[:, 20:] *= float(not self.QUIET <= number < self.AWAKE)
            self.update(Inputs(inputs), env_steps=number)

    def subnormals(self) -> int:
        tensors = [tensor for tensor in self.optimizer.tensors if tensor.dim()]
        return sum(int(((tensor != 0) & (tensor.abs() < torch.finfo(torch.float32).tiny)).sum()) for tensor in tensors)


OPTIMIZERS: dict[str, dict[str, Any]] = {
    "adam": {},
    "adamw": {"optimizer": "adamw"},
    "rmsprop": {"optimizer": "rmsprop", "rmsprop_alpha": 0.9},
    "rmsprop, momentum": {"optimizer": "rmsprop", "rmsprop_alpha": 0.9, "rmsprop_momentum": 0.9},
}


@pytest.mark.parametrize("traced", [False, True])
@pytest.mark.parametrize("case", OPTIMIZERS)
def test_vanished_averages_are_cleared_and_no_weight_changes(
    case: str, traced: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiled_graph, "CompiledGraph", TracedGraph)
    ours, twin = Inactive(OPTIMIZERS[case]), Inactive(OPTIMIZERS[case])
    for one in (ours, twin):
        if traced:
            one.update.compile(Inputs(one.data[0]))
    monkeypatch.setattr(twin.optimizer, "clear_vanished", lambda: None)
    for updates in (Inactive.AWAKE - Inactive.AWAKE % CLEAR_EVERY, Inactive.AWAKE % CLEAR_EVERY):
        ours.run(updates)
        twin.run(updates)
        assert ours.subnormals() == 0
    assert twin.subnormals() >= 20
    for one in (ours, twin):
        one.run(Inactive.END - Inactive.AWAKE)
    assert torch.equal(ours.weight, twin.weight)


def test_a_centred_optimiser_keeps_squares_that_its_means_need() -> None:
    optimizer = make_optimizer(nn.Linear(1, 1), AlgorithmConfig(optimizer="rmsprop", rmsprop_centered=True), max_norm=None)
    mean = torch.full((2,), 1e-19)  # its square is subnormal, but not 0
    optimizer.load_state_dict({"square": mean * mean, "mean": mean, "momentum": torch.zeros(0)})
    optimizer.clear_vanished()
    optimizer.step(0.0 * optimizer.module(torch.ones(1, 1)), 0.01)
    assert torch.isfinite(optimizer.parameters).all()


def test_averages_are_cleared_after_the_same_updates_in_a_resumed_run() -> None:
    whole, before, after = (Inactive({}) for _ in range(3))
    whole.run(600)
    before.run(600)
    after.optimizer.parameters.copy_(before.optimizer.parameters)
    after.update.load_state_dict(before.update.state_dict())
    cleared = 0
    for _ in range(120):  # the means fall below the bound between updates 600 and 700
        whole.run(1)
        after.run(1)
        assert all(
            torch.equal(one, other) for one, other in zip(whole.optimizer.tensors, after.optimizer.tensors, strict=True)
        )
        cleared = int((whole.optimizer.tensors[1] == 0).sum())
    assert cleared == 20


NUMBERS = torch.tensor([float("nan"), float("inf"), 1e-40, -1e-31, 2e-30]).repeat(200)


def after_clearing(dtype: torch.dtype = torch.float32, **settings: Any) -> tuple[Tensor, Tensor]:
    """What is left of an average and of a square with these values, in an optimiser with these settings."""
    optimizer = make_optimizer(nn.Linear(999, 1, dtype=dtype), AlgorithmConfig(**settings), max_norm=None)
    names = optimizer.state_names
    state = {name: torch.tensor(7.0) if name == "steps" else NUMBERS for name in names}
    if settings.get("optimizer") == "rmsprop":
        state["mean"] = torch.zeros(0)
    optimizer.load_state_dict(state)
    optimizer.clear_vanished()
    left = optimizer.state_dict()
    assert "steps" not in left or left["steps"] == 7.0
    return left["momentum" if "momentum" in names else "mean"].float(), left["square"].float()


@pytest.mark.parametrize(
    "settings", [{}, {"adam_eps": 1e-10}, {"optimizer": "adamw"}, {"optimizer": "rmsprop", "rmsprop_momentum": 0.9}], ids=str
)
def test_clearing_leaves_alone_what_is_not_a_number(settings: dict[str, Any]) -> None:
    expected = (NUMBERS * torch.tensor([1, 1, 0, 0, 1]).repeat(200), NUMBERS * torch.tensor([1, 1, 0, 1, 1]).repeat(200))
    torch.testing.assert_close(after_clearing(**settings), expected, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize(
    "settings",
    [
        {"adam_eps": 9e-11},
        {"weight_decay": 1e-3},  # weights without a gradient shrink as fast as their averages
        {"optimizer": "rmsprop", "rmsprop_momentum": 0.9, "weight_decay": 1e-3},
        {"dtype": torch.float64},
    ],
    ids=str,
)
def test_nothing_is_cleared_where_a_weight_could_notice(settings: dict[str, Any]) -> None:
    expected = (NUMBERS, NUMBERS)
    torch.testing.assert_close(after_clearing(**settings), expected, rtol=0, atol=0, equal_nan=True)
