"""Environments that do not return: signals save and stop all the same, timeouts are faults, and no process is left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from conftest import final_fingerprint, tiny_values
from gymnasium.vector import AsyncVectorEnv
from hanging_envs import HangingEnv
from moments import PATIENCE, kill, start, start_python, wait_for_checkpoint, wait_until

from rl_training.cli import main
from rl_training.envs.boundary import Boundary, SlowEnvironment, StepInterrupted
from rl_training.envs.factory import RegisteredEnv
from rl_training.envs.pool import SeededEnvPool
from rl_training.envs.restoring import EpisodeNotReplayed
from rl_training.envs.vector_pool import VectorEnvPool
from rl_training.envs.workers import SHORT_CLOSING_TIME
from rl_training.errors import EnvironmentFault
from rl_training.experiment.run import step_directories
from rl_training.runtime import signals

HANGING = "hanging_envs:Hanging-v0"
SIGNALS = (signal.SIGINT, signal.SIGTERM)


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


# -------------------------------------------------------------------------------------------------- env_timeout


def make_pool(place: Path, *, workers: str = "subprocess", timeout: float = 3.0, **kwargs: Any) -> SeededEnvPool:
    """``timeout`` is what the steps that do not hang never need, on the busiest machine."""
    kwargs = {"place": str(place), "after": 3, **kwargs}
    return SeededEnvPool(RegisteredEnv(HANGING, kwargs), num_envs=2, env_id=HANGING, workers=workers, timeout=timeout)


def test_a_worker_that_takes_too_long_is_killed_and_its_step_is_a_fault(tmp_path: Path) -> None:
    (tmp_path / "place").mkdir()
    pool = make_pool(tmp_path / "place")
    pool.reset()
    for _ in range(3):
        pool.step(np.zeros(2, np.int64))
    with pytest.raises(EnvironmentFault, match=r"at step 4 of its episode: it has not answered within env_timeout"):
        pool.step(np.zeros(2, np.int64))
    (tmp_path / "place" / "go").touch()
    step, _ = pool.step(np.zeros(2, np.int64))  # new workers, in the state before the fault
    pool.close()
    twin = make_pool(tmp_path / "place", workers="inline", timeout=PATIENCE)
    twin.reset()
    for _ in range(4):
        expected, _ = twin.step(np.zeros(2, np.int64))
    np.testing.assert_array_equal(step.next_obs, expected.next_obs)
    twin.close()
    wait_for_end(hanging(tmp_path))


def test_the_timeout_of_a_run_leaves_a_report_and_a_run_to_resume(tmp_path: Path) -> None:
    config, run = write_config(tmp_path, "locked", env_workers="subprocess", env_timeout=3.0), tmp_path / "run"
    process = start("train", "--config", str(config), "--output-dir", str(run), "--quiet")
    _, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 2
    assert "it has not answered within env_timeout (3 s), so its worker process was killed" in errors
    assert "The run is saved at step 60" in errors
    assert len(errors.splitlines()) == 1
    report = json.loads((run / "fault-step-60.json").read_text())
    assert "env_timeout" in report["problem"]
    wait_for_end(hanging(tmp_path))
    assert_resumes_exactly(tmp_path, run)


def test_the_time_to_create_an_environment_does_not_count(tmp_path: Path) -> None:
    pool = make_pool(tmp_path, where="init", after=2, timeout=1.0)
    pool.reset()
    pool.close()


def test_a_slow_step_in_this_process_causes_a_warning_while_it_hangs(tmp_path: Path) -> None:
    """The file that ends the step is written by the warning itself."""
    pool = make_pool(tmp_path, workers="inline", timeout=1.0)
    pool.reset()
    with pytest.MonkeyPatch.context() as patch:
        shown: list[str] = []

        def show(message: Warning | str, category: type[Warning], *rest: object) -> None:
            shown.append(f"{category.__name__}: {message}")
            (tmp_path / "go").touch()

        patch.setattr(warnings, "showwarning", show)
        warnings.simplefilter("always", SlowEnvironment)
        for _ in range(3):
            pool.step(np.zeros(2, np.int64))
    pool.close()
    assert len(shown) == 1
    assert "SlowEnvironment: a step or reset of hanging_envs:Hanging-v0 takes longer than env_timeout (1 s)" in shown[0]


def test_a_worker_that_dies_in_a_replay_is_not_called_non_deterministic(tmp_path: Path) -> None:
    (tmp_path / "go").touch()
    original = make_pool(tmp_path, how="dies")
    original.reset()
    for _ in range(5):
        original.step(np.zeros(2, np.int64))
    state = original.state_dict()
    original.close()
    (tmp_path / "go").unlink()
    restored = make_pool(tmp_path, how="dies")
    with pytest.warns(EpisodeNotReplayed) as warned:
        assert restored.load_state_dict(state) == [0, 1]
    (tmp_path / "go").touch()
    restored.step(np.zeros(2, np.int64))  # of new episodes, in new processes
    restored.close()
    assert str(warned[0].message) == (
        f"{HANGING} (index 0): the replay of its episode failed because its worker process has died (exit code 7), so a new "
        "episode starts and this run is not an exact continuation"
    )


# ------------------------------------------------------------------------------------------------- the boundary


class Interrupted:
    """Something that is stopped in the calls of one boundary, and remembers what was printed."""

    def __init__(self, boundary: Boundary) -> None:
        self._boundary, self.said = boundary, list[str]()

    def boundaries(self) -> list[Boundary]:
        return [self._boundary]

    def say(self, text: str) -> None:
        self.said.append(text)

    def save_without_step(self) -> str:
        raise AssertionError

    def unsaved(self) -> str:
        return "lost"


def test_a_signal_during_a_replay_that_hangs_breaks_it_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signals, "PATIENCE", 0.1)
    monkeypatch.setattr(signals, "LAST_PATIENCE", PATIENCE)
    monkeypatch.setattr(HangingEnv, "_calls", 0)
    (tmp_path / "go").touch()
    pool = SeededEnvPool(RegisteredEnv(HANGING, {"place": str(tmp_path), "after": 0}), env_id=HANGING)
    pool.reset()
    for _ in range(5):
        pool.step(np.zeros(1, np.int64))
    state, obs = pool.state_dict(), pool.obs
    (tmp_path / "go").unlink()

    def ask_to_stop() -> None:
        while not (tmp_path / f"hangs-{os.getpid()}").exists():
            time.sleep(0.001)
        os.kill(os.getpid(), signal.SIGTERM)

    asking = threading.Thread(target=ask_to_stop)
    asking.start()
    with signals.StopRequest(Interrupted(pool.boundary)), pytest.raises(StepInterrupted):
        pool.load_state_dict(state)
    asking.join()
    (tmp_path / "go").touch()
    assert pool.load_state_dict(state) == []
    assert np.array_equal(pool.obs, obs)
    pool.close()


def test_a_signal_of_the_users_is_not_taken_for_our_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two signals of one number that a thread has not handled yet are one to the system."""
    monkeypatch.setattr(signals, "PATIENCE", 0.0)
    boundary, had_effect = Boundary(), threading.Event()
    blocked = {*SIGNALS, signals.INTERRUPTION}
    stopped, before = Interrupted(boundary), signal.signal(signal.SIGINT, lambda *_: had_effect.set())
    try:
        with signals.StopRequest(stopped):
            signal.raise_signal(signal.SIGINT)
            signal.pthread_sigmask(signal.SIG_BLOCK, blocked)
            boundary.enter()
            while not signal.sigpending() & blocked:
                time.sleep(0.001)
            signal.pthread_kill(threading.get_ident(), signal.SIGINT)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, blocked)
            boundary.leave()
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, blocked)
        signal.signal(signal.SIGINT, before)
    assert had_effect.is_set()
    assert stopped.said[-1] == "lost"


def test_a_vector_environment_whose_step_was_broken_off_does_not_hang_when_it_is_closed(tmp_path: Path) -> None:
    """Its own close waits for the answers of all members."""

    def make() -> HangingEnv:
        return HangingEnv(str(tmp_path), after=3)

    pool = VectorEnvPool(AsyncVectorEnv([make, make]))
    pool.reset()

    main_thread = threading.get_ident()

    def interrupt() -> None:
        while len(list(tmp_path.glob("hangs-*"))) < 2:
            time.sleep(0.001)
        signal.pthread_kill(main_thread, signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, lambda *_: pool.boundary.break_off())
    try:
        with pytest.raises(StepInterrupted):
            threading.Thread(target=interrupt).start()
            while True:
                pool.step(np.zeros(2, np.int64))
    finally:
        signal.signal(signal.SIGUSR1, before)
    pool.close()
    (tmp_path / "go").touch()
    (closing,) = [thread for thread in threading.enumerate() if thread.name == "closing"]
    closing.join(PATIENCE)
    assert not closing.is_alive()


def test_a_call_that_is_held_cannot_be_left_before_it_is_released() -> None:
    boundary, left = Boundary(), threading.Event()
    assert not boundary.hold()  # no call is under way
    boundary.leave()
    boundary.enter()
    assert boundary.hold()

    def leave() -> None:
        boundary.leave()
        left.set()

    caller = threading.Thread(target=leave)
    caller.start()
    while boundary.since:
        time.sleep(0.001)
    assert not left.is_set()
    boundary.release()
    assert left.wait(PATIENCE)


def test_a_process_that_is_forked_off_has_its_own_signals() -> None:
    stop = signals.StopRequest(Silent())
    before = [signal.getsignal(number) for number in SIGNALS]
    with stop:
        child = os.fork()
        if child == 0:
            os._exit(int([signal.getsignal(number) for number in SIGNALS] != before))
        assert os.waitpid(child, 0)[1] == 0
        child = os.fork()
        if child == 0:
            signal.signal(signal.SIGTERM, lambda *_: os._exit(7))
            os.kill(os.getpid(), signal.SIGTERM)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert not stop


class Silent:
    """Nothing to save, and nothing may be said."""

    def boundaries(self) -> list[Boundary]:
        return []

    def say(self, text: str) -> None:
        raise AssertionError(text)

    def save_without_step(self) -> str:
        raise AssertionError

    def unsaved(self) -> str:
        raise AssertionError
