"""``plot``: which runs it finds, how it groups and names them, which numbers it draws, and how the drawing looks."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from matplotlib import pyplot

from rl_training.cli import main
from rl_training.experiment.curves import compare, find_runs, read_curves, smoothed
from rl_training.experiment.metrics import EPISODES_FILE, METRICS_FILE
from rl_training.runtime.plot import plot_runs

CONFIG: dict[str, Any] = {"algo": "dqn", "env_id": "CartPole-v1", "seed": 1, "algo_kwargs": {"batch_size": 64, "gamma": 0.99}}


def make_run(path: Path, log: list[dict[str, Any]] | None = None, **changes: Any) -> Path:
    """A run directory as ``plot`` reads it: settings and a log."""
    (path / "checkpoints").mkdir(parents=True)
    algo_kwargs = {**CONFIG["algo_kwargs"], **changes.pop("algo_kwargs", {})}
    (path / "config.yaml").write_text(yaml.safe_dump({**CONFIG, "algo_kwargs": algo_kwargs, **changes}))
    records = log or [{"kind": "train", "step": step, "return_mean": step / 10, "loss": 1.0} for step in (100, 200, 300)]
    (path / METRICS_FILE).write_text("".join(f"{json.dumps(record)}\n" for record in records))
    return path


def labels(*paths: Path) -> list[str]:
    return [group.label for group in compare(find_runs(paths)).groups]


def test_runs_are_found_below_a_directory_and_each_is_taken_once(tmp_path: Path) -> None:
    runs = [make_run(tmp_path / "sweep" / name, seed=k) for k, name in enumerate(("a", "b/c"))]
    assert find_runs([tmp_path, runs[0]]) == runs
    (group,) = compare(find_runs([tmp_path])).groups
    assert (group.label, group.runs) == ("dqn on CartPole-v1", runs)


def test_labels_name_what_differs_and_the_title_what_does_not(tmp_path: Path) -> None:
    small = make_run(tmp_path / "a", algo_kwargs={"batch_size": 9})
    large = make_run(tmp_path / "b", algo_kwargs={"batch_size": 10})
    both = make_run(tmp_path / "c", algo_kwargs={"batch_size": 10, "gamma": 0.5}, num_envs=2)
    ppo = make_run(tmp_path / "d", algo="ppo")
    assert labels(small, large) == ["batch_size=9", "batch_size=10"]
    assert labels(small, both) == ["batch_size=9, gamma=0.99, num_envs=None", "batch_size=10, gamma=0.5, num_envs=2"]
    assert labels(small, large, ppo) == ["dqn, batch_size=9", "dqn, batch_size=10", "ppo"]
    assert compare([small, large]).title == "dqn on CartPole-v1"
    assert compare([small, ppo]).title == "Learning curves on CartPole-v1"
    elsewhere = make_run(tmp_path / "e", env_id="Acrobot-v1")
    assert labels(elsewhere, small) == ["Acrobot-v1", "CartPole-v1"]
    assert compare([elsewhere, small]).title == "dqn on Acrobot-v1, CartPole-v1"


def test_many_differences_are_shortened_and_labels_stay_apart(tmp_path: Path) -> None:
    same = {"batch_size": 1, "gamma": 0.5, "n_step": 3}
    first = make_run(tmp_path / "a", algo_kwargs={**same, "noisy": True})
    second = make_run(tmp_path / "b", algo_kwargs={**same, "noisy": False})
    other = make_run(tmp_path / "c")
    shown = "batch_size=1, gamma=0.5, n_step=3, and 1 more"
    assert labels(first, second, other)[:2] == [f"{shown} #1", f"{shown} #2"]


def test_labels_show_the_arguments_of_wrappers(tmp_path: Path) -> None:
    runs = [
        make_run(tmp_path / name, wrappers=[{"name": "my_package.wrappers:ScaledReward", "scale": scale}, {"name": "atari"}])
        for name, scale in (("a", 2.0), ("b", 3.5))
    ]
    assert labels(*runs) == ["wrappers=ScaledReward(scale=2), atari", "wrappers=ScaledReward(scale=3.5), atari"]


def test_the_metric_is_chosen_by_its_name(tmp_path: Path) -> None:
    log = [
        {"kind": "train", "step": 1, "return_mean": 5.0, "loss": 0.5, "time/seconds": 2},
        {"kind": "train", "step": 2, "return_mean": None, "loss": float("nan")},
        {"kind": "eval", "step": 2, "return_mean": 7.0},
        {"kind": "train", "step": 3, "return_mean": 6.0, "loss": 0.25},
    ]
    run, untested = make_run(tmp_path / "a", log), make_run(tmp_path / "b", log[:1], seed=2)
    often = make_run(tmp_path / "c", [*log, *({**log[2], "step": step} for step in (4, 6))], seed=3)
    assert read_curves([often]) == ("eval/return_mean", [([2, 4, 6], [7.0] * 3)])
    assert read_curves([run]) == ("eval/return_mean", [([2], [7.0])]), "no metric has three points"
    trained = [{**log[0], "step": step} for step in (1, 2, 3)]
    assert read_curves([make_run(tmp_path / "d", [*trained, log[2]])])[0] == "train/return_mean", "too few evaluations"
    assert read_curves([often, run], "eval/return_mean")[0] == "eval/return_mean"
    assert read_curves([run, untested]) == ("train/return_mean", [([1, 3], [5.0, 6.0]), ([1], [5.0])])
    assert read_curves([run], "train/return_mean") == ("train/return_mean", [([1, 3], [5.0, 6.0])])
    assert read_curves([run], "loss") == ("train/loss", [([1, 3], [0.5, 0.25])])
    assert read_curves([run], "time/seconds") == ("train/time/seconds", [([1], [2.0])])


def test_smoothing_averages_with_the_points_before() -> None:
    assert smoothed([1.0, 3.0, 8.0, 0.0], 1) == [1.0, 3.0, 8.0, 0.0]
    assert smoothed([1.0, 3.0, 8.0, 0.0], 3) == pytest.approx([1.0, 2.0, 4.0, 11 / 3])


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> Callable[[], Any]:
    """The axes of the last figure, which plotting would close."""
    monkeypatch.setattr(pyplot, "close", lambda figure: None)
    return lambda: pyplot.gcf().axes[0]


def test_runs_of_the_same_seed_are_not_called_seeds(tmp_path: Path) -> None:
    log = [{"kind": "train", "step": step, "return_mean": 1.0} for step in (10, 20, 30)]
    for name in ("a", "b"):
        make_run(tmp_path / "runs" / name, log, seed=3)
    assert plot_runs([tmp_path / "runs"], tmp_path / "a.svg") == ["dqn on CartPole-v1 (training, 2 runs)"]
    make_run(tmp_path / "runs" / "c", log, seed=4)
    assert plot_runs([tmp_path / "runs"], tmp_path / "a.svg") == ["dqn on CartPole-v1 (training, 3 runs of 2 seeds)"]


def test_what_is_drawn(tmp_path: Path, drawn: Callable[[], Any]) -> None:
    for seed in (1, 2):
        log = [{"kind": "train", "step": step, "return_mean": seed * step, "loss": 1.0} for step in range(10, 60, 10)]
        make_run(tmp_path / "runs" / f"{seed}", log, seed=seed)
    assert plot_runs([tmp_path / "runs"], tmp_path / "a.png", smooth=2) == ["dqn on CartPole-v1 (training, 2 seeds)"]
    axes = drawn()
    (line,) = axes.get_lines()
    np.testing.assert_allclose(line.get_xydata(), np.array([(10, 15), (20, 22.5), (30, 37.5), (40, 52.5), (50, 67.5)]))
    assert line.get_marker() == "o"
    assert len(axes.collections) == 1, "the band of the seeds"
    assert axes.get_title() == "dqn on CartPole-v1"
    assert axes.get_ylabel() == "return in training (mean of 2 points)"
    log = [{"kind": "train", "step": step, "loss": 1.0} for step in range(100)]
    plot_runs([make_run(tmp_path / "long", log)], tmp_path / "b.png", metric="loss", title="Mine")
    assert drawn().get_lines()[0].get_marker() == "None"
    assert (drawn().get_title(), drawn().get_ylabel()) == ("Mine", "train/loss")


def test_a_run_that_ended_before_its_first_line_is_drawn_from_its_episodes(tmp_path: Path) -> None:
    run = make_run(tmp_path / "short", [{"kind": "change", "step": 30, "log.interval": 100}])
    episodes = [(10, 1.0), (30, 2.0), (30, 4.0)]
    records = ({"kind": "episode", "step": step, "return": value, "length": 10} for step, value in episodes)
    (run / EPISODES_FILE).write_text("".join(f"{json.dumps(record)}\n" for record in records))
    assert read_curves([run]) == ("train/return_mean", [([10, 30], [1.0, 3.0])])
    logged = make_run(tmp_path / "logged")
    (logged / EPISODES_FILE).write_bytes((run / EPISODES_FILE).read_bytes())
    assert read_curves([logged])[1] == [([100, 200, 300], [10.0, 20.0, 30.0])]


def test_a_run_without_the_metric_is_left_out(tmp_path: Path, drawn: Callable[[], Any]) -> None:
    make_run(tmp_path / "runs" / "good")
    make_run(tmp_path / "runs" / "fresh", [{"kind": "change", "step": 0}], num_envs=2)
    for metric in ("return", "loss"):
        with pytest.warns(UserWarning, match=r"fresh has logged no .*; it is left out of the plot"):
            assert len(plot_runs([tmp_path / "runs"], tmp_path / "a.png", metric=metric)) == 1
        assert len(drawn().get_lines()) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["empty"], "there is no run below empty"),
        (["run", "--metric", "los"], "run has logged no 'los'; did you mean 'loss'?"),
        (["run", "--smooth", "0"], "must be at least 1"),
        (["fresh"], "fresh has logged no returns yet"),
    ],
)
def test_what_cannot_be_plotted(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("empty").mkdir()
    make_run(Path("run"))
    make_run(Path("fresh"), [{"kind": "train", "step": 1, "loss": 1.0}])
    with contextlib.suppress(SystemExit):
        assert main(["plot", *arguments]) == 2
    assert message in capsys.readouterr().err
    assert not Path("learning_curves.png").exists()
