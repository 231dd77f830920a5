"""``tune``: where it searches, what it tries, that it goes on after a kill, and what it ends with."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
from pathlib import Path
from typing import Any

import pytest
import yaml
from conftest import ALGORITHMS, env_of_tests, tiny_config, tiny_values
from moments import PATIENCE, start, wait_for_checkpoint, waiting_at
from test_bad_input import assert_refused

from rl_training.bench.jobs import Job
from rl_training.bench.runner import locked
from rl_training.cli import main
from rl_training.errors import ConfigError
from rl_training.experiment.config import resolve_config
from rl_training.experiment.lock import Lock
from rl_training.experiment.packaged import packaged_configs
from rl_training.tune.space import Range, make_space, with_values

RANGES: dict[str, Any] = {
    "algo_kwargs.learning_rate": {"log": ["1e-5", 1e-2]},
    "algo_kwargs.hidden_sizes": {"choice": [[8], [16]]},
    "algo_kwargs.target_update_interval": {"log": [10, 500]},
}


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write_config(ranges: Any = None, **values: Any) -> None:
    given = {} if ranges is None else {"tune": ranges}
    Path("tiny.yaml").write_text(yaml.safe_dump({**tiny_values("dqn", **values), **given}))


# ----------------------------------------------------------------------------------------------------------- the space


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_every_algorithm_declares_where_to_search(algo: str) -> None:
    """And whatever is drawn there is a config."""
    base = {**tiny_values(algo), "total_timesteps": 20_000}
    space = make_space(base, None)
    assert {"algo_kwargs.learning_rate", "algo_kwargs.gamma"} < space.keys()
    assert len(space) >= 4
    draws = random.Random(0)
    for _ in range(5):
        values = {}
        for key, one in space.items():
            low, high = one.values[0], one.values[-1]
            drawn = draws.choice(one.values) if one.kind == "choice" else draws.choice([low, high, (low + high) / 2])
            values[key] = drawn if one.kind == "choice" else one.from_optuna(drawn)
        settings = resolve_config(with_values(base, values)).describe()["algo_kwargs"]
        assert {f"algo_kwargs.{key}": value for key, value in settings.items()}.items() >= values.items()


def test_what_a_config_fixes_otherwise_is_not_searched() -> None:
    schedule = {"kind": "linear", "from": 1e-3, "to": 1e-4, "steps": 100}
    space = make_space(tiny_values("dqn", algo_kwargs={"learning_rate": schedule, "epsilon": 0.1}), None)
    assert "algo_kwargs.learning_rate" not in space, "a schedule is not one number"
    assert "algo_kwargs.exploration_final_eps" not in space, "epsilon takes its place"
    assert "algo_kwargs.gamma" in space


def test_ranges_of_a_config() -> None:
    space = make_space(tiny_values("dqn"), RANGES)
    assert space["algo_kwargs.learning_rate"] == Range("log", (1e-5, 1e-2))
    assert space["algo_kwargs.hidden_sizes"] == Range("choice", ([8], [16]))
    assert space["algo_kwargs.target_update_interval"] == Range("log", (10, 500), whole=True)
    assert Range("log", (1e-5, 1e-2)).from_optuna(0.00123456) == 0.001235, "a number that people can read"
    assert Range("choice", ([8], [16])).to_optuna([8]) == "[8]"
    assert Range("choice", ([8], [16])).to_optuna([9]) is None
    assert Range("uniform", (0.0, 1.0)).to_optuna(1.5) is None


@pytest.mark.parametrize(
    ("ranges", "words"),
    [
        ({}, "tune must be a mapping from settings to ranges"),
        ([1], "tune must be a mapping from settings to ranges"),
        ({"algo_kwargs.learning_rat": {"log": [1e-5, 1e-2]}}, "did you mean 'algo_kwargs.learning_rate'?"),
        ({"learning_rate": {"log": [1e-5, 1e-2]}}, "did you mean 'algo_kwargs.learning_rate'?"),
        ({"eval.interval": {"choice": [1, 2]}}, "'eval.interval' is not a setting that can be searched"),
        ({"algo_kwargs.gamma": [0.9, 0.99]}, "algo_kwargs.gamma: a range is one of log: [low, high], uniform"),
        ({"algo_kwargs.gamma": {"lin": [0.9, 0.99]}}, "algo_kwargs.gamma: a range is one of log: [low, high], uniform"),
        ({"algo_kwargs.gamma": {"uniform": [0.9]}}, "uniform takes two numbers, [low, high], not [0.9]"),
        ({"algo_kwargs.gamma": {"uniform": [0.9, 2]}}, "algo_kwargs.gamma: input should be less than or equal to 1, got 2"),
        ({"algo_kwargs.gamma": {"uniform": [0.99, 0.9]}}, "the range [0.99, 0.9] is empty"),
        ({"algo_kwargs.gamma": {"log": [0, 0.9]}}, "a logarithmic range must be above 0"),
        ({"algo_kwargs.gamma": {"choice": [0.9, 0.9]}}, "the choice has the same value twice"),
        ({"algo_kwargs.double": {"uniform": [False, True]}}, "uniform is for settings that are numbers; use choice"),
    ],
)
def test_a_range_that_is_none_is_refused(ranges: Any, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        make_space(tiny_values("dqn"), ranges)
    assert words in str(caught.value)


# ------------------------------------------------------------------------------------------------------------ bad input


def test_what_cannot_be_tuned(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("optuna")
    write_config(RANGES)
    assert_refused(capsys, ("tune", "nowhere.yaml"), "nowhere.yaml")
    assert_refused(capsys, ("tune", "tiny.yaml", "--seeds", "98"), "--seeds can be up to 97")
    assert_refused(capsys, ("tune", "tiny.yaml", "--set", "eval.interval=0"), "eval.interval is 0", "--pruner none")
    Path("full").mkdir()
    Path("full/something").touch()
    assert_refused(capsys, ("tune", "tiny.yaml", "--output-dir", "full"), "full is not empty and holds no tune")
    assert_refused(capsys, ("tune", "tiny.yaml", "--output-dir", "tiny.yaml"), "cannot write in tiny.yaml")
    Path("damaged").mkdir()
    Path("damaged/study.db").write_text("no database, but something that is longer than the header of one would have to be")
    assert_refused(capsys, ("tune", "tiny.yaml", "--output-dir", "damaged"), "(DatabaseError: file is not a database);")
    Path("held").mkdir()
    with contextlib.closing(Lock(Path("held/.lock"))) as lock:
        assert lock.take()
        assert_refused(capsys, ("tune", "tiny.yaml", "--output-dir", "held"), "another tune is at work in held")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert_refused(capsys, ("tune", "tiny.yaml"), "tune needs the package 'optuna'", "pip install 'rl-training[tune]'")


def test_training_ignores_the_ranges() -> None:
    write_config(RANGES)
    assert main(["show", "tiny.yaml"]) == 0
    assert {config for config in packaged_configs() if "tune" in config} == set()


# ----------------------------------------------------------------------------------------------------------- the search

TUNE = ("tune", "tiny.yaml", "--jobs", "1", "--output-dir", "tuned")


def tried(folder: str = "tuned") -> list[tuple[str, dict[str, Any], float | None, dict[int, float]]]:
    """What a tune has tried: state, settings, score and evaluations."""
    import optuna

    study = optuna.load_study(study_name="tune", storage=f"sqlite:///{folder}/study.db")
    return [(trial.state.name, trial.params, trial.value, trial.intermediate_values) for trial in study.trials]


@pytest.mark.slow  # a process that imports torch for each run
def test_a_search_ends_with_a_config_that_is_confirmed(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("optuna")
    write_config(RANGES)
    command = [*TUNE, "--trials", "4", "--seeds", "2", "--finalists", "2", "--confirm", "2"]
    assert main(command) == 0
    shown = capsys.readouterr()
    assert "confirmed on fresh seeds 200 to 201" in shown.out
    results = json.loads(Path("tuned/results.json").read_text())
    best = yaml.safe_load(Path("tuned/best.yaml").read_text())
    assert resolve_config(best).describe() == resolve_config(with_values(tiny_values("dqn"), results["settings"])).describe()
    assert main(["train", "--config", "tuned/best.yaml", "--seed", "200", "--output-dir", "again", "--quiet"]) == 0
    again = json.loads(Path("again/evaluation.json").read_text())["return_mean"]
    assert results["confirmed"]["200"]["return"] == again
    assert results["search_seeds"] == [100, 101]
    state, settings, score, evaluations = tried()[0]
    assert (state, len(evaluations)) == ("COMPLETE", 4), "the config as it is, over both seeds"
    assert settings["algo_kwargs.learning_rate"] == tiny_config("dqn").algo_kwargs.learning_rate
    logs = [Path(f"tuned/trials/trial-0000/seed{seed}") for seed in (100, 101)]
    late = [json.loads((run / "evaluation.json").read_text())["return_mean"] for run in logs]
    assert score == pytest.approx(sum(late) / 2), "of two evaluations at 90 and 180, none is in the last quarter"
    assert not list(Path("tuned/trials").glob("*/*/checkpoints"))
    page = Path("tuned/tune.html").read_text()
    assert page.count("<svg") >= 2
    assert "hidden_sizes" in page
    before = tried()
    assert len(results["finals"]) == 2
    assert main(command) == 0, "nothing is left to do"
    assert tried() == before
    assert_refused(capsys, (*TUNE, "--trials", "4", "--seeds", "3"), "tuned holds a tune that differs in: seeds")


@pytest.mark.slow  # several processes that import torch
def test_a_killed_tune_goes_on() -> None:
    """It tries the same, and its running trial is resumed, so that all figures are those of a tune that was not killed."""
    pytest.importorskip("optuna")
    evaluation = {"interval": 90, "episodes": 2, "final_episodes": 1, "num_envs": 1}
    write_config(RANGES, **env_of_tests("dqn", "Waiting"), checkpoint={"interval": 40}, eval=evaluation)
    options = ("--trials", "2", "--finalists", "0", "--confirm", "0")
    main(["tune", "tiny.yaml", "--jobs", "1", "--output-dir", "whole", *options])
    tune = start(*TUNE, *options, env=waiting_at(200))
    run = Path("tuned/trials/trial-0000/seed100")
    wait_for_checkpoint(run, tune)
    os.kill(tune.pid, signal.SIGKILL)
    tune.communicate(timeout=PATIENCE)
    with locked(Job("trial-0000", 100, Path("tuned/trials"))):  # once its process has ended
        assert not (run / "evaluation.json").exists()
    assert [state for state, *_ in tried()] == ["RUNNING"]
    again = start(*TUNE, *options)
    _, errors = again.communicate(timeout=PATIENCE)
    assert again.returncode == 0, errors
    assert tried() == tried("whole")


@pytest.mark.slow  # a process for each trial
def test_settings_that_fail_are_told_from_a_config_that_does(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("optuna")
    write_config(RANGES, env_id="NoSuchEnv-v0")
    assert main([*TUNE, "--trials", "9"]) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert "error: 3 trials have failed and none was completed" in error
    assert "NoSuchEnv-v0" in error
    assert [state for state, *_ in tried()] == ["FAIL", "FAIL", "RUNNING"]


def test_trials_are_pruned_by_their_evaluations(place: Path) -> None:
    optuna = pytest.importorskip("optuna")
    from rl_training.tune.study import Study

    space = make_space(tiny_values("dqn"), RANGES)
    study = Study(place, space, {}, "median", evaluations=8, runs=1)
    for _ in range(5):
        trial = study.ask()
        assert not any(study.reports(trial, number, 10.0 * number) for number in range(8))
        study.tell(trial, "COMPLETE", 70.0)
    trial = study.ask()
    assert [study.reports(trial, number, 0.0) for number in range(3)] == [False, False, True], "not in the first quarter"
    study.tell(trial, "PRUNED")
    assert study.ranked()[0].number == 0, "the first of several"
    again = Study(place, space, {}, "median", evaluations=8, runs=1)
    assert [one.state for one in again.trials()] == [*[optuna.trial.TrialState.COMPLETE] * 5, optuna.trial.TrialState.PRUNED]
    with pytest.raises(ConfigError, match="holds a tune that differs in: seeds"):
        Study(place, space, {"seeds": 2}, "median", evaluations=8, runs=1)


def test_hyperband_and_no_pruner(place: Path) -> None:
    pytest.importorskip("optuna")
    from rl_training.tune.study import Study

    space = make_space(tiny_values("dqn"), RANGES)
    for name in ("hyperband", "none"):
        (place / name).mkdir()
        study = Study(place / name, space, {}, name, evaluations=9, runs=1)
        pruned = []
        for k in range(9):
            trial = study.ask()
            hopeless = any(study.reports(trial, number, -float(k)) for number in range(9))
            study.tell(trial, "PRUNED" if hopeless else "COMPLETE", None if hopeless else -float(k))
            pruned.append(hopeless)
        assert any(pruned) == (name == "hyperband")


def test_what_is_tried_depends_only_on_what_was_tried(place: Path) -> None:
    pytest.importorskip("optuna")
    from rl_training.tune.study import Study

    space = make_space(tiny_values("dqn"), RANGES)

    def search(folder: Path, reopened: bool) -> list[dict[str, Any]]:
        folder.mkdir()
        study = Study(folder, space, {}, "none", evaluations=1, runs=1)
        for k in range(14):  # beyond the first random ones
            if reopened:
                study = Study(folder, space, {}, "none", evaluations=1, runs=1)
            trial = study.ask()
            study.tell(trial, "COMPLETE", float(k % 5))
        return [study.values_of(trial) for trial in study.trials()]

    whole = search(place / "whole", reopened=False)
    assert search(place / "in parts", reopened=True) == whole
    assert len({json.dumps(values) for values in whole}) == 14
