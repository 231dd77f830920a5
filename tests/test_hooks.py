"""Hooks: when they are called, how they ask to stop, that their state is exact, and that their failures lose nothing."""

from __future__ import annotations

import signal
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import final_fingerprint, metrics_without_time, tiny_config, tiny_values
from moments import finish_python

from rl_training import DQN, Callback
from rl_training.envs.pool import Episode
from rl_training.errors import ConfigError, DivergenceError, EnvironmentFault, HookError
from rl_training.experiment.checkpoint import verify_checkpoint
from rl_training.runtime.evaluation import EvaluationResult
from rl_training.runtime.hooks import EVENTS, STOPPING, Training
from rl_training.runtime.result import TrainResult
from rl_training.runtime.sessions import resume_training, start_training

TOTAL = 240


def train(path: Path, *hooks: object, **values: Any) -> TrainResult:
    trainer = start_training(tiny_config("dqn", output_dir=str(path), **values), command="test")
    try:
        return trainer.train(callbacks=hooks)
    finally:
        trainer.close()


def resume(path: Path, *hooks: object) -> TrainResult:
    trainer = resume_training(path, warn=warnings.warn)
    try:
        return trainer.train(callbacks=hooks)
    finally:
        trainer.close()


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run without hooks."""
    path = tmp_path_factory.mktemp("plain") / "run"
    train(path)
    return path


class Watch:
    """Notes everything. It does not inherit from anything, and has all methods."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, int, Any]] = []

    def on_start(self, training: Training) -> None:
        self.training = training
        self.note("on_start", training)

    def note(self, event: str, value: Any) -> None:
        self.seen.append((event, self.training.env_steps, value))

    def on_episode(self, episode: Episode) -> None:
        self.note("on_episode", episode)

    def on_update(self, metrics: Mapping[str, float]) -> None:
        self.note("on_update", metrics)

    def on_evaluation(self, result: EvaluationResult) -> None:
        self.note("on_evaluation", result)

    def on_checkpoint(self, path: Path) -> None:
        self.note("on_checkpoint", (path, verify_checkpoint(path)["info"]["step"]))

    def on_fault(self, error: BaseException) -> None:
        self.note("on_fault", error)

    def on_stop(self, result: TrainResult) -> None:
        self.note("on_stop", result)

    def of(self, event: str) -> list[tuple[int, Any]]:
        return [(step, value) for name, step, value in self.seen if name == event]


class Counter:
    """A hook with a state in which every event counts, an array among it."""

    def __init__(self) -> None:
        self.counts = np.zeros(4, np.int64)
        self.returns: list[float] = []

    def on_episode(self, episode: Episode) -> None:
        self.counts[0] += 1
        self.returns.append(episode.episode_return)

    def on_update(self, metrics: Mapping[str, float]) -> None:
        self.counts[1] += 1

    def on_evaluation(self, result: EvaluationResult) -> None:
        self.counts[2] += 1

    def on_checkpoint(self, path: Path) -> None:
        self.counts[3] += 1

    def state_dict(self) -> dict[str, Any]:
        return {"counts": self.counts, "returns": self.returns, "best": -float("inf")}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.counts, self.returns = state["counts"], state["returns"]


class Quiet(Counter):
    """The same, except that it does not count checkpoints: a run that is stopped has one more."""

    on_checkpoint = Callback.on_checkpoint  # type: ignore[assignment]


def at(event: str, count: int, action: Callable[[], str | None]) -> object:
    """A hook that acts when it is called for an event for this many times."""
    times = [0]

    def method(self: object, value: object) -> str | None:
        times[0] += 1
        return action() if times[0] == count else None

    return type("Acting", (), {event: method})()


def failing() -> str | None:
    raise ValueError("it is\nbroken")


def test_every_event_comes_at_its_time(tmp_path: Path, plain: Path) -> None:
    watch = Watch()
    result = train(tmp_path / "run", watch)
    records = {kind: [r for r in metrics_without_time(plain) if r["kind"] == kind] for kind in ("train", "eval")}
    assert [step for step, _ in watch.of("on_start")] == [0]
    assert watch.training.run_dir == tmp_path / "run"
    assert watch.training.total_timesteps == TOTAL
    assert len(watch.of("on_episode")) == result.episodes > 5
    ends = np.cumsum([episode.length for _, episode in watch.of("on_episode")])
    assert [step for step, _ in watch.of("on_episode")] == ends.tolist()
    updates = [
        {"kind": "train", "step": step, **{key: value for key, value in metrics.items() if not key.startswith("time/")}}
        for step, metrics in watch.of("on_update")
    ]
    assert updates == records["train"]
    assert all("time/steps_per_second" in metrics for _, metrics in watch.of("on_update"))
    evaluations = [{"kind": "eval", "step": step, **value.summary()} for step, value in watch.of("on_evaluation")]
    assert evaluations == records["eval"]
    assert [(step, saved) for step, (_, saved) in watch.of("on_checkpoint")] == [(step, step) for step in (70, 140, 210, 240)]
    assert watch.of("on_stop") == [(TOTAL, result)]
    assert result.evaluation is not None
    assert watch.of("on_fault") == []


def test_hooks_that_only_watch_change_no_bit(tmp_path: Path, plain: Path) -> None:
    train(tmp_path / "run", Watch(), Watch())
    assert final_fingerprint(tmp_path / "run") == final_fingerprint(plain)


@pytest.mark.parametrize(("event", "count", "step"), [("on_start", 1, 0), ("on_update", 3, 75), ("on_checkpoint", 2, 140)])
def test_a_hook_asks_to_stop(
    event: str, count: int, step: int, tmp_path: Path, plain: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    result = train(run, at(event, count, lambda: "enough\nis enough"))
    assert result.env_steps == step
    assert result.stopped_by == "the hook Acting asked to stop: enough is enough"
    assert result.interrupted_by is None
    assert f"step {step}: the hook Acting asked to stop: enough is enough\n" in capsys.readouterr().err
    assert verify_checkpoint(run / "checkpoints" / "latest")["info"]["step"] == step
    assert resume(run).stopped_by is None
    assert final_fingerprint(run) == final_fingerprint(plain)


@pytest.mark.parametrize("step", [75, 140])
def test_a_state_continues_exactly(step: int, tmp_path: Path) -> None:
    whole, parted = Quiet(), Quiet()
    train(tmp_path / "whole", whole)
    stop_at = type("StopAt", (Watch,), {"on_episode": lambda self, e: "now" if self.training.env_steps >= step else None})()
    train(tmp_path / "parted", Quiet(), stop_at)
    resume(tmp_path / "parted", parted)
    assert final_fingerprint(tmp_path / "parted") == final_fingerprint(tmp_path / "whole")
    assert parted.counts.tolist() == whole.counts.tolist()
    assert parted.returns == whole.returns


def test_a_killed_run_calls_its_hooks_as_often_as_one_that_is_not(tmp_path: Path) -> None:
    code = (
        "import os, signal, sys; sys.path.insert(0, sys.argv[1]); import test_hooks as t; from pathlib import Path; "
        "t.train(Path(sys.argv[2]), t.Counter(), t.at('on_episode', 8, lambda: os.kill(os.getpid(), signal.SIGKILL)))"
    )
    run = tmp_path / "run"
    assert finish_python("-c", code, Path(__file__).parent, run).returncode == -signal.SIGKILL
    whole, parted = Counter(), Counter()
    train(tmp_path / "whole", whole)
    resume(run, parted)
    assert whole.counts.tolist() == parted.counts.tolist()
    assert whole.returns == parted.returns
    assert final_fingerprint(run) == final_fingerprint(tmp_path / "whole")


def test_the_same_hook_goes_on_and_a_new_one_takes_over_its_state(tmp_path: Path) -> None:
    values = {key: value for key, value in tiny_values("dqn").items() if key not in ("algo", "env_id", "algo_kwargs")}
    with DQN("CartPole-v1", **values, **tiny_values("dqn")["algo_kwargs"]) as agent:
        counter, new = Counter(), Counter()
        agent.learn(100, callbacks=[counter])
        counter.returns.append(1e9)
        agent.learn(150, callbacks=[counter])
        assert 1e9 in counter.returns
        agent.learn(200, callbacks=[new])
        assert new.returns[: len(counter.returns)] == counter.returns
        assert new.counts[1] == 200 // 25
        with pytest.warns(UserWarning, match=r"the state of a hook \(Counter\) that it is not given now"):
            agent.learn(240)


def test_two_hooks_of_a_kind_keep_their_own_states(tmp_path: Path) -> None:
    first, second = Counter(), Counter()
    second.returns.append(-1.0)
    train(tmp_path / "run", first, second)
    loaded = Counter(), Counter()
    resume(tmp_path / "run", *loaded)
    assert loaded[0].returns == first.returns
    assert loaded[1].returns == second.returns == [-1.0, *first.returns]


@pytest.mark.parametrize("event", sorted(STOPPING))
def test_a_hook_that_raises_loses_nothing(event: str, tmp_path: Path, plain: Path) -> None:
    run, counter, watch = tmp_path / "run", Counter(), Watch()
    with pytest.raises(HookError) as caught:
        train(run, watch, at(event, 1, failing), counter)
    step = verify_checkpoint(run / "checkpoints" / "latest")["info"]["step"]
    assert str(caught.value) == (
        f"the hook Acting failed in {event}: ValueError: it is broken. The run is saved at step {step}; once the hook is "
        f"fixed, resume {run} with the same hooks"
    )
    assert isinstance(caught.value.__cause__, ValueError)
    assert watch.of("on_fault") == [(step, caught.value)]
    assert watch.of("on_stop") == []
    resume(run, counter_now := Counter())
    whole = Counter()
    train(tmp_path / "whole", whole)
    assert counter_now.counts[:3].tolist() == whole.counts[:3].tolist()
    assert final_fingerprint(run)["metrics"] == final_fingerprint(plain)["metrics"]
    assert final_fingerprint(run)["files"]["policy.safetensors"] == final_fingerprint(plain)["files"]["policy.safetensors"]


def test_several_episodes_of_one_step_reach_every_hook(tmp_path: Path) -> None:
    """Environments that end together: one hook fails at the first of them, the others get them all."""
    short = {"env_id": "rl_training_test_envs:Counting-v0", "num_envs": 4}
    watch, counter = Watch(), Counter()
    with pytest.raises(HookError, match="failed in on_episode"):
        train(tmp_path / "run", watch, at("on_episode", 1, failing), counter, **short)
    step = watch.of("on_episode")[0][0]
    assert len([at_step for at_step, _ in watch.of("on_episode") if at_step == step]) == counter.counts[0]


def test_a_failure_in_on_stop_or_on_fault(tmp_path: Path) -> None:
    with pytest.raises(HookError, match=r"Acting failed in on_stop: ValueError: it is broken\. The run is saved at step 240"):
        train(tmp_path / "stop", at("on_stop", 1, failing))
    with (
        pytest.warns(UserWarning, match="Acting failed in on_fault: ValueError: it is broken; ignored"),
        pytest.raises(HookError, match="Acting-2 failed in on_update"),
    ):
        train(tmp_path / "fault", at("on_fault", 1, failing), at("on_update", 1, failing))


def test_on_fault_gets_the_error_of_an_environment_and_of_learning(tmp_path: Path) -> None:
    watch = Watch()
    with pytest.raises(EnvironmentFault) as fault:
        train(tmp_path / "env", watch, env_id="rl_training_test_envs:Faulty-v0", env_kwargs={"fault": "raise"})
    assert [value for _, value in watch.of("on_fault")] == [fault.value]
    watch = Watch()
    with pytest.raises(DivergenceError) as divergence:
        train(tmp_path / "nan", watch, algo_kwargs={"learning_rate": 1e30, "max_grad_norm": None})
    assert [value for _, value in watch.of("on_fault")] == [divergence.value]


@pytest.mark.parametrize(
    ("state", "problem"),
    [
        ([1], "the state is [1], but must be a dictionary"),
        ({"a": {1}}, "the state['a'] is {1}, which is not plain data"),
        ({"a": {2: 3}}, "the state['a'] has the key 2, but keys are text that does not begin with $"),
    ],
)
def test_a_state_that_cannot_be_saved(state: Any, problem: str, tmp_path: Path, plain: Path) -> None:
    hook = type("Odd", (Counter,), {"state_dict": lambda self: state})()
    with pytest.raises(HookError) as caught:
        train(tmp_path / "run", hook)
    assert f"the hook Odd failed in state_dict: TypeError: {problem}. The run is saved at step 70;" in str(caught.value)
    resume(tmp_path / "run")
    assert final_fingerprint(tmp_path / "run")["metrics"] == final_fingerprint(plain)["metrics"]


def test_a_state_that_cannot_be_loaded_stays(tmp_path: Path) -> None:
    counter = Counter()
    train(tmp_path / "run", counter)
    bad = type("Counter", (Counter,), {"load_state_dict": lambda self, state: state["no"]})()
    with pytest.raises(HookError, match="the hook Counter failed in load_state_dict: KeyError: 'no'"):
        resume(tmp_path / "run", bad)
    loaded = Counter()
    resume(tmp_path / "run", loaded)
    assert loaded.returns == counter.returns


class Typo:
    def on_evalution(self, result: object) -> None: ...


class NoArgument:
    def on_stop(self) -> None: ...


class HalfAState:
    def on_stop(self, result: object) -> None: ...

    def state_dict(self) -> dict[str, Any]:
        return {}


class NotAMethod:
    on_episode = 3


@pytest.mark.parametrize(
    ("callbacks", "message"),
    [
        (3, "callbacks must be a list of hooks, not 3"),
        ("on_start", "callbacks must be a list of hooks, not 'on_start'"),
        (Counter(), "callbacks must be a list of hooks, not <"),
        (
            [print],
            "the builtin_function_or_method <built-in function print> is no hook: it has none of the methods on_start, ",
        ),
        ([Counter], "callbacks: Counter is a class; pass an object: Counter()"),
        ([Callback()], "callbacks: Callback is no hook: it has none of the methods on_start"),
        ([Typo()], "Typo has the method on_evalution, which no event has; did you mean 'on_evaluation'?"),
        ([NoArgument()], "NoArgument.on_stop must be a method with one argument: def on_stop(self, result)"),
        ([NotAMethod()], "NotAMethod.on_episode must be a method with one argument: def on_episode(self, episode)"),
        ([HalfAState()], "HalfAState has no load_state_dict; a hook with a state has both state_dict and load_state_dict"),
    ],
)
def test_the_wrong_shape_is_refused_before_anything_happens(callbacks: Any, message: str, tmp_path: Path) -> None:
    with DQN("CartPole-v1", output_dir=str(tmp_path / "run")) as agent, pytest.raises(ConfigError) as caught:
        agent.learn(100, callbacks=callbacks)
    assert message in str(caught.value)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(("event", "expected"), [("on_update", "None, or a text, the reason to stop"), ("on_stop", "None")])
def test_an_answer_that_is_none(event: str, expected: str, tmp_path: Path) -> None:
    message = f"the hook Acting returned True from {event}, which must return {expected}"
    answer: Any = True
    with pytest.raises(HookError, match=message):
        train(tmp_path / "run", at(event, 1, lambda: answer))


def test_the_base_class_has_every_event_and_none_is_listened_to() -> None:
    assert [*EVENTS] == [name for name in vars(Callback) if not name.startswith("_")]
    assert [name for name in EVENTS if getattr(Callback(), name)(None) is not None] == []
