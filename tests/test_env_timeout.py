"""Environments that take too long, or hang in a replay: timeouts, warnings, and signals that break them off."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium.vector import AsyncVectorEnv
from hanging_envs import HangingEnv
from moments import PATIENCE, start
from test_hanging_envs import HANGING, assert_resumes_exactly, hanging, wait_for_end, write_config

from rl_training.envs.boundary import Boundary, SlowEnvironment, StepInterrupted
from rl_training.envs.factory import RegisteredEnv
from rl_training.envs.pool import SeededEnvPool
from rl_training.envs.restoring import EpisodeNotReplayed
from rl_training.envs.vector_pool import VectorEnvPool
from rl_training.errors import EnvironmentFault
from rl_training.runtime import signals

SIGNALS = (signal.SIGINT, signal.SIGTERM)


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


class Interrupted:
    """Something that is stopped in the calls of one boundary, and remembers what was printed."""

    def __init__(self, boundary: Boundary) -> None:
        self._boundary, self.said = boundary, list[str]()

    def boundaries(self) -> list[Boundary]:
        return [self._boundary]

    def say(self, text: str) -> None:
        self.said.append(text)

    def save_before(self, call: str) -> str:
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

    def save_before(self, call: str) -> str:
        raise AssertionError

    def unsaved(self) -> str:
        raise AssertionError
