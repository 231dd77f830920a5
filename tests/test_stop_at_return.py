"""Runs that stop when their evaluations reach a return, and the best policy that they keep."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
from conftest import metrics_without_time, tiny_config
from test_hooks import at, resume, train
from test_hooks import plain as plain

from rl_training.cli import main
from rl_training.errors import ConfigError


def test_a_run_stops_when_its_evaluations_reach_a_return(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    returns = [r["return_mean"] for r in metrics_without_time(stopped(tmp_path / "all", None)) if r["kind"] == "eval"]
    means = [(a + b) / 2 for a, b in itertools.pairwise(returns)]
    target = max(means)
    first = next(i for i, mean in enumerate(means) if mean >= target) + 2
    run = stopped(tmp_path / "some", {"return": target, "over": 2})
    assert [r["step"] for r in metrics_without_time(run) if r["kind"] == "eval"] == [30 * (i + 1) for i in range(first)]
    assert f"over 2 evaluation(s) is {target:.1f}, and stop.return is {target:g}" in capsys.readouterr().err


def stopped(path: Path, stop: dict[str, Any] | None) -> Path:
    """A run of the command line, which a config may end early."""
    settings = ["eval.interval=30", "eval.episodes=3", *(f"stop.{key}={value!r}" for key, value in (stop or {}).items())]
    sets = [part for setting in settings for part in ("--set", setting)]
    flags = ["--total-timesteps", "300", "--output-dir", str(path), "--quiet", "--set", "algo_kwargs.learning_starts=20"]
    assert main(["train", "--algo", "dqn", "--env", "CartPole-v1", *flags, *sets]) == 0
    return path


def test_stopping_at_a_return_is_exact_across_a_resume(tmp_path: Path) -> None:
    values = {"stop": {"return": 0.0, "over": 3}, "eval": {"interval": 30, "episodes": 2}}
    assert train(tmp_path / "whole", **values).env_steps == 90
    train(tmp_path / "parted", at("on_evaluation", 2, lambda: "halt"), **values)
    result = resume(tmp_path / "parted")
    assert result.env_steps == 90
    assert "StopAtReturn" in (result.stopped_by or "")


def test_the_best_policy_need_not_be_kept(tmp_path: Path, plain: Path) -> None:
    result = train(tmp_path / "run", eval={"interval": 90, "episodes": 3, "keep_best": False})
    assert result.best_return is not None
    assert not (tmp_path / "run" / "checkpoints" / "best").exists()
    assert (plain / "checkpoints" / "best").exists()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            {"stop": {"return": 1}, "eval": {"interval": 0}},
            "stop.return needs evaluations during training, but eval.interval",
        ),
        ({"stop": {"return": "high"}}, "stop.return: input should be a valid number"),
        ({"stop": {"return": 1, "over": 0}}, "stop.over: input should be greater than or equal to 1"),
        ({"stop": 475}, "stop is a group of settings (return, over), not 475"),
        ({"stop": {"retrun": 475}}, "unknown key 'stop.retrun'; did you mean 'return'?"),
    ],
)
def test_a_stop_that_makes_no_sense(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        tiny_config("dqn", **values)
    assert message in str(caught.value)
