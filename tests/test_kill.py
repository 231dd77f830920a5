"""The real command line, killed without warning or asked to stop: every run ends where it would have ended anyway."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from conftest import ALGORITHMS, FEW, env_of_tests, final_fingerprint, settings_of, tiny_values
from moments import (
    PATIENCE,
    froze,
    frozen_while_saving,
    kill,
    logged_step,
    start,
    wait_for_checkpoint,
    wait_until,
    waiting_at,
)

from rl_training.cli import main
from rl_training.experiment.run import step_directories

#: options with state of their own: priorities and their tree, noise, additional streams
SWITCHES = ("double", "dueling", "noisy", "prioritized")
TOTAL = 600
TRIES = 20
HELD_AT = 500  # a run that a test stops does not pass this step


def write_config(path: Path, algo: str) -> Path:
    """A run that is almost always in the middle of saving."""
    values: dict[str, Any] = tiny_values(
        algo,
        **env_of_tests(algo, "Waiting"),
        num_envs=2,
        total_timesteps=TOTAL,
        checkpoint={"interval": 40, "replay_every": 2},
        eval={"interval": 210, "episodes": 2, "final_episodes": 2, "num_envs": 2},
        log={"interval": 10, "tensorboard": False},
        algo_kwargs=settings_of(algo, {"n_step": 3, "buffer_size": 700, "train_freq": 4, **dict.fromkeys(SWITCHES, True)}),
    )
    path.write_text(yaml.safe_dump(values))
    return path


@pytest.fixture(scope="module")
def undisturbed_dqn(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A config, and what its run ends with."""
    folder = tmp_path_factory.mktemp("dqn")
    config = write_config(folder / "config.yaml", "dqn")
    return config, train_whole(config, folder / "whole")


def train_whole(config: Path, run: Path) -> dict[str, Any]:
    assert main(["train", "--config", str(config), "--output-dir", str(run), "--quiet"]) == 0
    return final_fingerprint(run)


def resume(run: Path) -> dict[str, Any]:
    assert main(["resume", str(run), "--quiet"]) == 0
    return final_fingerprint(run)


def kill_and_resume(config: Path, run: Path, step: int, *, saving: bool) -> dict[str, Any]:
    """Kills the run once it has logged this step, or when it next saves after it; then resumes it to its end."""
    if saving:
        return kill_while_saving(config, run, step)
    process = start("train", "--config", str(config), "--output-dir", str(run), env=waiting_at(HELD_AT))
    wait_until(lambda: logged_step(run) >= step, process)
    kill(process)
    return resume(run)


def kill_while_saving(config: Path, folder: Path, step: int) -> dict[str, Any]:
    """Tries again with a run that ends before it is seen saving: on a fast disk, a save takes less than a step."""
    for attempt in range(TRIES):
        run = folder / str(attempt)
        env = frozen_while_saving(run, step)
        process = start("train", "--config", str(config), "--output-dir", str(run), env=env)
        if froze(process):
            kill(process)
            assert any((run / "checkpoints").glob(".writing-*"))
            return resume(run)
    pytest.fail(f"{TRIES} runs ended, and none was ever seen writing a checkpoint")


def kill_at_random_steps(algo: str, times: int, tmp_path: Path) -> None:
    """Every fourth kill comes while a checkpoint is being written."""
    config = write_config(tmp_path / "config.yaml", algo)
    undisturbed = train_whole(config, tmp_path / "whole")
    steps = random.Random(algo)
    for i in range(times):
        step = steps.randrange(10, HELD_AT - 100)
        assert kill_and_resume(config, tmp_path / f"killed-{i}", step, saving=i % 4 == 3) == undisturbed


@pytest.mark.parametrize("algo", sorted(FEW))
def test_a_killed_run_ends_bit_for_bit(algo: str, tmp_path: Path) -> None:
    kill_at_random_steps(algo, 1, tmp_path)


@pytest.mark.slow  # 25 seconds; three algorithms are fast
def test_a_killed_run_of_every_algorithm_ends_bit_for_bit(tmp_path: Path) -> None:
    """In processes forked from one that has imported everything: see ``reliability.kills``."""
    command = [sys.executable, "-m", "reliability.kills", "--once", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    records = [json.loads(line) for line in done.stdout.splitlines()]
    assert [record["algo"] for record in records] == ALGORITHMS
    for record in records:
        assert record["kills"], record
        assert record["outcome"] == "identical", record
        assert not any(kill["orphans"] for kill in record["kills"])


@pytest.mark.slow
@pytest.mark.parametrize("algo", ALGORITHMS)
def test_twenty_killed_runs_end_bit_for_bit(algo: str, tmp_path: Path) -> None:
    kill_at_random_steps(algo, 20, tmp_path)


def test_a_run_killed_while_saving_ends_bit_for_bit(undisturbed_dqn: Any, tmp_path: Path) -> None:
    config, undisturbed = undisturbed_dqn
    assert kill_and_resume(config, tmp_path / "killed", 150, saving=True) == undisturbed


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_saves_at_the_current_step_and_shows_how_to_resume(
    number: signal.Signals, undisturbed_dqn: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config, undisturbed = undisturbed_dqn
    run = tmp_path / "stopped"
    process = start("train", "--config", str(config), "--output-dir", str(run), env=waiting_at(HELD_AT))
    wait_for_checkpoint(run, process)
    process.send_signal(number)
    output, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 128 + number, errors
    assert "Traceback" not in errors
    assert f"rl-training resume {run}" in output
    step = int(step_directories(run)[0].name.removeprefix("step-"))
    assert f"saved at step {step}" in output
    assert step < TOTAL
    assert resume(run) == undisturbed
    assert f"at step {step}" in capsys.readouterr().err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_to_all_processes_is_no_fault_of_the_environments(number: signal.Signals, tmp_path: Path) -> None:
    """As Ctrl-C in a terminal: the worker processes of the environments receive the signal too."""
    values = tiny_values("dqn", num_envs=2, env_workers="subprocess", total_timesteps=10**8, compile="off")
    config, run = tmp_path / "config.yaml", tmp_path / "run"
    config.write_text(yaml.safe_dump(values))
    process = start("train", "--config", str(config), "--output-dir", str(run), start_new_session=True)
    wait_for_checkpoint(run, process)
    os.killpg(process.pid, number)
    output, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 128 + number, errors
    assert "rl-training resume" in output
    assert not list(run.glob("fault-*"))
