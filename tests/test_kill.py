"""The real command line, killed without warning or asked to stop: every run ends where it would have ended anyway."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from conftest import ALGORITHMS, CLI, final_fingerprint, settings_of, tiny_values

from rl_training.experiment.run import step_directories

#: what has a state of its own: priorities and their tree, noise, further streams
SWITCHES = ("double", "dueling", "noisy", "prioritized")


def write_config(path: Path, algo: str) -> Path:
    """A run of a few seconds that is almost always in the middle of saving."""
    values: dict[str, Any] = tiny_values(
        algo,
        num_envs=2,
        total_timesteps=2000,
        checkpoint={"interval": 100, "replay_every": 2},
        eval={"interval": 700, "episodes": 2, "final_episodes": 2, "num_envs": 2},
        algo_kwargs=settings_of(algo, {"n_step": 3, "buffer_size": 2500, "train_freq": 4, **dict.fromkeys(SWITCHES, True)}),
    )
    path.write_text(yaml.safe_dump(values))
    return path


def start(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen([*CLI, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def train_whole(config: Path, run: Path) -> dict[str, Any]:
    subprocess.run([*CLI, "train", "--config", str(config), "--output-dir", str(run)], check=True, capture_output=True)
    return final_fingerprint(run)


def wait_for(path: Path, process: subprocess.Popen[str]) -> None:
    while not path.exists() and process.poll() is None:
        time.sleep(0.005)


def is_saving(run: Path) -> bool:
    return any((run / "checkpoints").glob(".writing-*"))


def kill_and_resume(config: Path, run: Path, delay: float, *, aimed: bool) -> tuple[dict[str, Any], bool]:
    """Kills the run ``delay`` seconds after it began to exist, or if ``aimed`` when it saves after that; resumes it to its
    end, and says whether it was saving."""
    process = start("train", "--config", str(config), "--output-dir", str(run))
    wait_for(run / "config.yaml", process)
    time.sleep(delay)
    while aimed and not is_saving(run) and process.poll() is None:
        time.sleep(0.0005)
    process.kill()
    process.communicate()
    assert process.returncode == -signal.SIGKILL, "the run was over before the kill: the moment was too late"
    saving = is_saving(run)
    finished = subprocess.run([*CLI, "resume", str(run)], capture_output=True, text=True)
    assert finished.returncode == 0, finished.stderr
    return final_fingerprint(run), saving


def kill_at_random_moments(algo: str, times: int, tmp_path: Path) -> int:
    """Every fourth one waits for a checkpoint under way. Returns how many came while one was being written."""
    config = write_config(tmp_path / "config.yaml", algo)
    whole = tmp_path / "whole"
    undisturbed = train_whole(config, whole)
    span = json.loads((whole / "metrics.jsonl").read_text().splitlines()[-1])["time/seconds"]
    moments = random.Random(algo)
    saving = 0
    for i in range(times):
        delay, aimed = moments.uniform(0.0, 0.7 * span), i % 4 == 3
        fingerprint, hit = kill_and_resume(config, tmp_path / f"killed-{i}", delay, aimed=aimed)
        assert fingerprint == undisturbed
        saving += hit
    return saving


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_a_killed_run_ends_bit_for_bit(algo: str, tmp_path: Path) -> None:
    kill_at_random_moments(algo, 1, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("algo", ALGORITHMS)
def test_twenty_killed_runs_end_bit_for_bit(algo: str, tmp_path: Path) -> None:
    assert kill_at_random_moments(algo, 20, tmp_path) > 0, "no kill came while saving"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_saves_at_the_current_step_and_says_how_to_go_on(number: signal.Signals, tmp_path: Path) -> None:
    config = write_config(tmp_path / "config.yaml", "dqn")
    undisturbed = train_whole(config, tmp_path / "whole")
    run = tmp_path / "stopped"
    process = start("train", "--config", str(config), "--output-dir", str(run))
    wait_for(run / "checkpoints" / "latest", process)
    process.send_signal(number)
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 128 + number, errors
    assert "Traceback" not in errors
    assert f"rl-training resume {run}" in output
    step = int(step_directories(run)[0].name.removeprefix("step-"))
    assert f"saved at step {step}" in output
    assert step < 2000
    resumed = subprocess.run([*CLI, "resume", str(run)], capture_output=True, text=True, check=True)
    assert f"at step {step}" in resumed.stderr
    assert final_fingerprint(run) == undisturbed


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_to_all_processes_is_no_fault_of_the_environments(number: signal.Signals, tmp_path: Path) -> None:
    """What Ctrl-C in a terminal does: the workers of the environments get the signal too."""
    values = tiny_values("dqn", num_envs=2, env_workers="subprocess", total_timesteps=100_000)
    config, run = tmp_path / "config.yaml", tmp_path / "run"
    config.write_text(yaml.safe_dump(values))
    command = [*CLI, "train", "--config", str(config), "--output-dir", str(run)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)
    wait_for(run / "checkpoints" / "latest", process)
    os.killpg(process.pid, number)
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 128 + number, errors
    assert "rl-training resume" in output
    assert not list(run.glob("fault-*"))
