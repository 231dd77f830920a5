"""An environment that does not return from a call until a file exists, in each of the ways in which code can hang."""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import os
import threading
import time
from pathlib import Path
from typing import Any

import gymnasium as gym
from rl_training_test_envs import Obs, RandomWalkEnv


class HangingEnv(RandomWalkEnv):
    """A random walk. Its calls ``where`` (created, step, reset, state, step-close) hang once this process has made ``after``
    of them. With ``init``, creating it in a worker process takes ``after`` seconds.

    It writes its process id into ``place / hangs-<pid>`` when it begins to hang, and goes on when ``place / go`` exists.
    """

    _calls = 0

    def __init__(self, place: str, how: str = "sleep", where: str = "step", after: int = 60) -> None:
        super().__init__()
        self._place, self._how, self._where, self._after = Path(place), how, where, after
        self._visit("created")
        if where == "init" and multiprocessing.parent_process() is not None:
            time.sleep(after)

    def _visit(self, where: str) -> None:
        if where not in self._where.split("-"):
            return
        HangingEnv._calls += 1
        if HangingEnv._calls > self._after and not self._goes_on():
            (self._place / f"hangs-{os.getpid()}").write_text(str(os.getpid()))
            getattr(self, f"_{self._how}")()

    def _goes_on(self) -> bool:
        return (self._place / "go").exists()

    def _sleep(self) -> None:
        """Python code that waits."""
        while not self._goes_on():
            time.sleep(0.01)

    def _stubborn(self) -> None:
        """Python code that catches everything."""
        while not self._goes_on():
            with contextlib.suppress(BaseException):
                self._sleep()

    def _deadlock(self) -> None:
        """C code that releases Python's lock and cannot be interrupted: it waits for a mutex that it holds itself."""
        mutex = ctypes.create_string_buffer(64)
        library = ctypes.CDLL(None)
        library.pthread_mutex_lock(mutex)

        def unlock() -> None:
            self._sleep()
            library.pthread_mutex_unlock(mutex)

        threading.Thread(target=unlock, daemon=True).start()
        library.pthread_mutex_lock(mutex)

    def _dies(self) -> None:
        os._exit(7)

    def _locked(self) -> None:
        """C code that keeps Python's lock, so that no thread of the process can run. Nothing but SIGKILL ends it."""
        ctypes.PyDLL(None).sleep(100_000)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Obs, dict[str, Any]]:
        self._visit("reset")
        return super().reset(seed=seed)

    def step(self, action: int) -> tuple[Obs, float, bool, bool, dict[str, Any]]:
        self._visit("step")
        return super().step(action)

    def close(self) -> None:
        self._visit("close")


class HangingStateEnv(HangingEnv):
    """Saves its own state, which hangs as other calls do."""

    def get_state(self) -> dict[str, Any]:
        self._visit("state")
        return {"position": self._position, "steps": self._steps}

    def set_state(self, state: dict[str, Any]) -> None:
        self._position, self._steps = state["position"], state["steps"]


gym.register("Hanging-v0", entry_point=f"{__name__}:HangingEnv")
gym.register("HangingState-v0", entry_point=f"{__name__}:HangingStateEnv")
