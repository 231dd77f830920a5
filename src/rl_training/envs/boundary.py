"""Marks calls that may never return, above all those of environments. Training can be stopped and saved during one."""

from __future__ import annotations

import threading
import time
import warnings


class SlowEnvironment(UserWarning):
    """A call of an environment takes longer than ``env_timeout``."""


class StepInterrupted(BaseException):
    """Breaks off a marked call. Not an ``Exception``, so that an environment does not catch it by accident."""


class Boundary:
    """Marks calls of environments, or others that may take long. During one of them, nothing of the pool, the learner or the
    log changes. It may therefore be broken off, and another thread may save the run as it was before.

    A compilation is an exception (``compiles``): the networks hold stand-ins for their weights while they are traced, so no
    other thread may save them, and what was broken off may not work again in the same process.
    """

    def __init__(self, name: str = "a call of the environment", *, compiles: bool = False) -> None:
        self.name, self.compiles = name, compiles  # the name is for the user
        self.since = 0.0  # when the call that is under way began; 0 if there is none
        self.calls = 1  # how many steps it makes: a replay makes many
        self.broken_off = False  # whether a call was ever broken off
        self._held = False
        self._released = threading.Event()

    def enter(self, calls: int = 1) -> None:
        self.calls = calls
        self.since = time.monotonic()

    def leave(self) -> None:
        self.since = 0.0
        if self._held:
            self._released.wait()

    def break_off(self) -> None:
        """Ends the call that is under way by an exception; only in its own thread, from the handler of a signal."""
        self.broken_off = True
        raise StepInterrupted

    def hold(self) -> bool:
        """For another thread: whether a call is under way. If so, its thread cannot leave it before ``release``."""
        self._released.clear()
        self._held = True
        if self.since:
            return True
        self.release()  # it has just left, and may already be waiting
        return False

    def release(self) -> None:
        self._held = False
        self._released.set()


class SlowCallWatch:
    """Warns while a call takes longer than ``timeout`` seconds; once for each call."""

    def __init__(self, boundary: Boundary, timeout: float, env_id: str) -> None:
        self._boundary, self._timeout, self._env_id = boundary, timeout, env_id
        self._closed = threading.Event()
        try:
            threading.Thread(target=self._watch, daemon=True, name="slow environment").start()
        except RuntimeError as error:
            warnings.warn(f"env_timeout has no effect: {error}", SlowEnvironment, stacklevel=3)

    def _watch(self) -> None:
        warned_of, pause = 0.0, self._timeout
        while not self._closed.wait(pause):
            since, now, allowed = self._boundary.since, time.monotonic(), self._timeout * self._boundary.calls
            if not since or since == warned_of:
                pause = self._timeout  # so every call that takes longer is seen at least once in time
            elif now < since + allowed:
                pause = since + allowed - now
            else:
                warned_of = since
                warnings.warn(
                    f"a step or reset of {self._env_id} takes longer than env_timeout ({self._timeout:g} s). It runs in this "
                    "process and cannot be ended; with env_workers: subprocess it would be",
                    SlowEnvironment,
                    stacklevel=1,
                )

    def close(self) -> None:
        self._closed.set()
