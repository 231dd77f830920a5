"""Environments that do not return: signals save and stop all the same, timeouts are faults, and no process is left behind."""

from __future__ import annotations

import signal
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from conftest import final_fingerprint, tiny_values
from moments import PATIENCE, kill, start_python, wait_for_checkpoint, wait_until

from rl_training.cli import main
from rl_training.envs.factory import RegisteredEnv
from rl_training.envs.pool import SeededEnvPool
from rl_training.envs.workers import SHORT_CLOSING_TIME
from rl_training.experiment.run import step_directories
from rl_training.runtime import signals
from rl_training.runtime.learner import OffPolicyLearner

HANGING = "hanging_envs:Hanging-v0"


#: The command line with other waiting times, which are its first arguments.
WAITING = """
import sys
from rl_training.cli import main
from rl_training.runtime import signals
signals.PATIENCE, signals.LAST_PATIENCE = map(float, sys.argv[1:3])
sys.exit(main(sys.argv[3:]))
"""
SHORT = (0.2, 0.4)
ENDLESS = (PATIENCE, PATIENCE)  # for what must happen before a step is broken off


def write_config(tmp_path: Path, how: str, where: str = "step", **values: Any) -> Path:
    """A run of 120 steps of each environment that hangs after 60, or in its first reset."""
    config, place = tmp_path / "config.yaml", tmp_path / "place"
    place.mkdir()
    settings: dict[str, Any] = {
        "env_id": HANGING,
        "env_kwargs": {"place": str(place), "how": how, "where": where, "after": 60 if "step" in where else 1},
        "total_timesteps": 120 * values.get("num_envs", 1),
        "eval": {"interval": 0, "episodes": 1, "final_episodes": 1, "num_envs": 1},
        "checkpoint": {"interval": 40},
    }
    config.write_text(yaml.safe_dump(tiny_values("dqn", **{**settings, **values})))
    return config


def start_run(
    tmp_path: Path, how: str, where: str = "step", waiting: tuple[float, float] = SHORT, **values: Any
) -> tuple[subprocess.Popen[str], Path]:
    """A run whose environment hangs; the process is there when it does."""
    config, run = write_config(tmp_path, how, where, **values), tmp_path / "run"
    process = start_python("-c", WAITING, *map(str, waiting), "train", "--config", config, "--output-dir", run, "--quiet")
    workers = values.get("num_envs", 1) if values.get("env_workers") == "subprocess" else 1
    wait_until(lambda: len(hanging(tmp_path)) == workers, process)
    return process, run


def hanging(tmp_path: Path) -> list[int]:
    """The ids of the processes in which an environment hangs."""
    return [int(file.name.removeprefix("hangs-")) for file in (tmp_path / "place").glob("hangs-*")]


def running(pid: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


def wait_for_end(pids: list[int]) -> None:
    deadline = time.monotonic() + PATIENCE
    while any(map(running, pids)):
        assert time.monotonic() < deadline, "a process is left behind"
        time.sleep(0.01)


def assert_resumes_exactly(tmp_path: Path, run: Path) -> None:
    """Repairs the environment, resumes the run and compares it with one that was never stopped."""
    (tmp_path / "place" / "go").touch()
    assert main(["resume", str(run), "--quiet"]) == 0
    assert main(["train", "--config", str(tmp_path / "config.yaml"), "--output-dir", str(tmp_path / "whole"), "--quiet"]) == 0
    assert final_fingerprint(run) == final_fingerprint(tmp_path / "whole")


# ------------------------------------------------------------------------------------------------------- signals


@pytest.mark.parametrize(
    ("how", "number"), [("sleep", signal.SIGINT), ("stubborn", signal.SIGTERM), ("deadlock", signal.SIGINT)]
)
def test_a_signal_during_a_step_that_hangs_saves_and_stops(how: str, number: signal.Signals, tmp_path: Path) -> None:
    process, run = start_run(tmp_path, how)
    process.send_signal(number)
    output, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 128 + number, errors
    assert "Traceback" not in errors
    assert errors.startswith("finishing the step and saving; ")
    assert f"stopped and saved at step 60; continue with: rl-training resume {run}" in output + errors
    assert step_directories(run)[0].name == "step-0000000060"
    assert not list(run.glob("fault-*"))
    assert_resumes_exactly(tmp_path, run)


def test_a_run_that_hangs_has_stopped_within_ten_seconds() -> None:
    """The waiting times of the worst case; saving a small run takes a fraction of a second."""
    assert signals.PATIENCE < signals.LAST_PATIENCE
    assert signals.LAST_PATIENCE + 2 * SHORT_CLOSING_TIME <= 5


def test_a_signal_while_worker_processes_hang_saves_and_stops(tmp_path: Path) -> None:
    process, run = start_run(tmp_path, "locked", env_workers="subprocess", num_envs=3)
    workers = hanging(tmp_path)
    process.send_signal(signal.SIGTERM)
    output, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 128 + signal.SIGTERM, errors
    assert f"stopped and saved at step 180; continue with: rl-training resume {run}" in output
    wait_for_end(workers)


def test_a_signal_during_the_first_reset_stops_before_the_first_step(tmp_path: Path) -> None:
    process, run = start_run(tmp_path, "sleep", "reset")
    process.send_signal(signal.SIGTERM)
    output, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 128 + signal.SIGTERM, errors
    assert output == f"stopped before the first step; start again with: rl-training resume {run}\n"
    assert not step_directories(run)


@pytest.mark.parametrize(("how", "step"), [("sleep", 81), ("deadlock", 80)])
def test_a_signal_while_an_environment_saves_its_own_state_saves_and_stops(how: str, step: int, tmp_path: Path) -> None:
    process, run = start_run(tmp_path, how, "state", env_id="hanging_envs:HangingState-v0")
    process.send_signal(signal.SIGTERM)
    output, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 128 + signal.SIGTERM, errors
    assert f"stopped and saved at step {step}; continue with: rl-training resume {run}" in output + errors
    assert_resumes_exactly(tmp_path, run)


def test_a_signal_while_environments_for_evaluation_are_created_stops(tmp_path: Path) -> None:
    process, run = start_run(tmp_path, "sleep", "created")
    process.send_signal(signal.SIGTERM)
    output, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 128 + signal.SIGTERM, errors
    assert "stopped and saved at step 120" in output
    assert_resumes_exactly(tmp_path, run)


def test_an_environment_that_hangs_when_it_is_closed_does_not_keep_the_process(tmp_path: Path) -> None:
    process, _ = start_run(tmp_path, "sleep", "step-close")
    process.send_signal(signal.SIGTERM)
    output, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 128 + signal.SIGTERM, errors
    assert "stopped and saved at step 60" in output


@pytest.mark.parametrize(("how", "number"), [("sleep", signal.SIGINT), ("deadlock", signal.SIGTERM)])
def test_a_second_signal_stops_at_once_and_says_what_is_lost(how: str, number: signal.Signals, tmp_path: Path) -> None:
    process, run = start_run(tmp_path, how, waiting=ENDLESS)
    wait_for_checkpoint(run, process)
    assert process.stderr is not None
    process.send_signal(number)
    how_often = "press" if number == signal.SIGINT else "send the signal"
    assert process.stderr.readline() == f"finishing the step and saving; {how_often} again to stop without saving\n"
    process.send_signal(number)
    output, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 128 + number
    assert output == ""
    assert errors == (
        "stopped without saving at step 60: the steps after 40 are lost; continue from step 40 with: rl-training resume "
        f"{run}\n"
    )
    assert [path.name for path in step_directories(run)] == ["step-0000000040"]
    if how == "sleep":
        assert_resumes_exactly(tmp_path, run)


def test_a_second_signal_before_the_first_checkpoint(tmp_path: Path) -> None:
    process, run = start_run(tmp_path, "sleep", waiting=ENDLESS, checkpoint={"interval": 0})
    assert process.stderr is not None
    process.send_signal(signal.SIGINT)
    process.stderr.readline()
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=PATIENCE)
    assert errors == (
        "stopped without saving at step 60: nothing had been saved, so all steps are lost; start again with: rl-training "
        f"resume {run}\n"
    )
    assert_resumes_exactly(tmp_path, run)


def test_a_signal_during_the_compilation_breaks_it_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def compile_for_long(learner: OffPolicyLearner) -> None:
        signal.raise_signal(signal.SIGINT)
        time.sleep(10)

    monkeypatch.setattr(OffPolicyLearner, "compile", compile_for_long)
    monkeypatch.setattr(signals, "PATIENCE", 0.1)
    monkeypatch.setattr(signals, "LAST_PATIENCE", PATIENCE)
    config = tmp_path / "config.yaml"
    config.write_text(yaml.safe_dump(tiny_values("dqn", compile="on")))
    assert main(["train", "--config", str(config), "--output-dir", str(tmp_path / "run"), "--quiet"]) == 128 + signal.SIGINT
    shown = capsys.readouterr()
    assert shown.err.splitlines() == [
        "finishing the step and saving; press again to stop without saving",
        "interrupting the compilation, which has not finished",
    ]
    assert shown.out == f"stopped and saved at step 0; continue with: rl-training resume {tmp_path / 'run'}\n"
    compiled: list[OffPolicyLearner] = []
    monkeypatch.setattr(OffPolicyLearner, "compile", lambda learner: compiled.append(learner))
    assert main(["resume", str(tmp_path / "run"), "--quiet"]) == 0
    assert len(compiled) == 1, "the decision was still open"


#: Notes in a file that the first signal has been handled: until then, a second one is the same to Python.
LEARN_TWICE = f"""
import sys
from pathlib import Path
from rl_training import DQN
from rl_training.runtime import signals
config, run, go, handled = sys.argv[1:]
signals.PATIENCE = {PATIENCE}
on_first = signals.StopRequest._on_first
def noted(*arguments):
    on_first(*arguments)
    Path(handled).touch()
signals.StopRequest._on_first = noted
agent = DQN.from_config(config, output_dir=run)
try:
    agent.learn()
except KeyboardInterrupt:
    print("interrupted", flush=True)
Path(go).touch()
agent.learn()
agent.close()
"""


def test_a_second_ctrl_c_in_python_is_a_keyboard_interrupt(tmp_path: Path) -> None:
    """It must not end the user's process, which may be a notebook. The agent can go on learning, exactly."""
    run, place, config = tmp_path / "run", tmp_path / "place", write_config(tmp_path, "sleep")
    process = start_python("-c", LEARN_TWICE, config, run, place / "go", tmp_path / "handled")
    wait_until(lambda: bool(hanging(tmp_path)), process)
    wait_for_checkpoint(run, process)
    assert process.stderr is not None
    process.send_signal(signal.SIGINT)
    assert "press again to stop without saving" in process.stderr.readline()
    wait_until((tmp_path / "handled").exists, process)
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=PATIENCE)
    assert (process.returncode, output) == (0, "interrupted\n"), errors
    assert errors.startswith("stopped without saving at step 60: the steps after 40 are lost; continue from step 40")
    assert main(["train", "--config", str(config), "--output-dir", str(tmp_path / "whole"), "--quiet"]) == 0
    assert final_fingerprint(run) == final_fingerprint(tmp_path / "whole")


# ------------------------------------------------------------------------------------- processes and their parent


@pytest.mark.parametrize("how", ["sleep", "locked"])
def test_no_worker_outlives_its_parent(how: str, tmp_path: Path) -> None:
    process, _ = start_run(tmp_path, how, env_workers="subprocess", num_envs=2)
    workers = hanging(tmp_path)
    assert all(map(running, workers))
    kill(process)
    wait_for_end(workers)


def test_a_worker_that_waits_ends_with_its_parent_on_any_system(tmp_path: Path) -> None:
    """Without the signal that only Linux has: the worker is started by another thread than the main one."""
    code = (
        "import sys, threading\n"
        "from rl_training.cli import main\n"
        "thread = threading.Thread(target=main, args=(sys.argv[1:],))\n"
        "thread.start()\n"
        "thread.join()\n"
    )
    arguments = ["train", "--config", str(write_config(tmp_path, "sleep", env_workers="subprocess"))]
    process = start_python("-c", code, *arguments, "--output-dir", tmp_path / "run", "--quiet")
    wait_until(lambda: bool(hanging(tmp_path)), process)
    workers = hanging(tmp_path)
    kill(process)
    wait_for_end(workers)


def test_a_worker_goes_on_when_the_thread_that_started_it_ends() -> None:
    made: list[SeededEnvPool] = []
    factory = RegisteredEnv("CartPole-v1")
    starter = threading.Thread(target=lambda: made.append(SeededEnvPool(factory, workers="subprocess")))
    starter.start()
    starter.join()
    (pool,) = made
    pool.reset()
    pool.step(np.zeros(1, np.int64))
    pool.close()
