"""Workers, which run one environment each: in this process or in a separate one, behind the same interface.

A step of a worker process is announced by ``begin_step``, so that several of them can compute at the same time.
"""

from __future__ import annotations

import contextlib
import copy
import ctypes
import multiprocessing
import os
import pickle
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, Protocol

import cloudpickle
import numpy as np

from rl_training.envs.factory import EnvFactory, close_env, created
from rl_training.envs.final_info import chosen
from rl_training.envs.own_state import own_state, restore_own_state
from rl_training.errors import FOREIGN, ConfigError, RelayedError, described, shown
from rl_training.limits import address_limit, file_limit
from rl_training.tracebacks import WorkerError, frames_of
from rl_training.types import State

#: The observation, and its action mask if the environment provides one.
Observed = tuple[Any, Any]
#: The observation with its mask, the reward, terminated, truncated.
StepReturn = tuple[Observed, Any, Any, Any]
#: The open files that a worker process costs this process, those that a run needs besides, and a worker's address space.
FILES_PER_WORKER = 3
FURTHER_FILES = 8
ADDRESSES_PER_WORKER = 200_000_000
#: Seconds that a worker process has to close its environment before it is killed: usually, and after an interrupted step.
CLOSING_TIME, SHORT_CLOSING_TIME = 2.0, 0.5
#: Linux: the signal that a process gets when its parent ends, an option of prctl(2).
PR_SET_PDEATHSIG = 1


#: What Gymnasium expects of an environment, for messages.
RESET, STEP = "(observation, info)", "(observation, reward, terminated, truncated, info)"


def _observed(obs: Any, info: dict[str, Any]) -> Observed:
    try:
        return obs, info.get("action_mask")
    except AttributeError:
        raise TypeError(f"info must be a dictionary, not {shown(info)}") from None


def _not_the_api(call: str, returned: Any, expected: str) -> TypeError:
    """The error for an environment that was written for another interface, such as that of the old Gym."""
    count = f"{len(returned)} values" if isinstance(returned, tuple) else shown(returned)
    old = "; split the old done into terminated and truncated" if call == "step" else ""
    return TypeError(f"{call} returned {count}, but Gymnasium's interface is {expected}{old}")


def _kept(value: Any) -> Any:
    """A copy, because an environment may reuse the same array for every observation."""
    return value.copy() if isinstance(value, np.ndarray) else copy.deepcopy(value)


class Worker(Protocol):
    """One environment. An exception in the environment is raised by the call that caused it."""

    def reset(self, seed: int) -> Observed: ...

    def begin_step(self, action: Any) -> None:
        """Begins a step in another process; in this process there is nothing to begin."""

    def step(self, action: Any) -> StepReturn:
        """Makes a step, or waits for the one that has begun."""

    def final_info(self, keys: Sequence[str]) -> dict[str, Any]:
        """Entries of the info of the last step."""

    def play(self, actions: Sequence[Any]) -> tuple[list[StepReturn], str | None]:
        """Several steps at once, for a replay: until the episode ends or a step fails, with the failure."""

    def own_state(self) -> State | None:
        """The state that the environment saves itself; None if it does not."""

    def restore_own_state(self, seed: int, state: State) -> str | None:
        """Begins the episode of this seed and restores a saved state in it; returns what went wrong, if anything."""

    def dismiss(self, seconds: float = CLOSING_TIME) -> None:
        """Announces ``close``, so that several workers can close at the same time, within this time."""

    def close(self) -> None: ...


class LocalWorker:
    """An environment in this process. With ``fresh``, a new one is created for each episode. Environments such as
    BipedalWalker need this, because their ``reset`` leaves state behind."""

    def __init__(self, factory: EnvFactory, fresh: bool = False) -> None:
        self._factory = factory
        self._fresh = fresh
        self.env = created(factory)
        self._used = False
        self._info: Any = {}

    def reset(self, seed: int) -> Observed:
        if self._fresh and self._used:
            close_env(self.env)
            self.env = created(self._factory)
        self._used = True
        returned = self._reset(seed)
        if not isinstance(returned, tuple) or len(returned) != 2:
            raise _not_the_api("reset", returned, RESET)
        return _observed(*returned)

    def _reset(self, seed: int) -> Any:
        try:
            return self.env.reset(seed=seed)
        except TypeError as error:
            if "unexpected keyword argument 'seed'" not in str(error):
                raise
            raise TypeError(
                "reset takes no seed, but Gymnasium's interface is reset(self, *, seed=None, options=None), which calls "
                "super().reset(seed=seed)"
            ) from error

    def begin_step(self, action: Any) -> None:
        pass

    def step(self, action: Any) -> StepReturn:
        # An environment may change its action in place; the caller keeps it for replays.
        returned = self.env.step(action.copy() if isinstance(action, np.ndarray) else action)
        try:
            obs, reward, terminated, truncated, info = returned
        except (TypeError, ValueError):
            raise _not_the_api("step", returned, STEP) from None
        self._info = info
        mask = info.get("action_mask") if type(info) is dict else _observed(obs, info)[1]
        return (obs, mask), reward, terminated, truncated

    def final_info(self, keys: Sequence[str]) -> dict[str, Any]:
        return chosen(self._info, keys)

    def play(self, actions: Sequence[Any]) -> tuple[list[StepReturn], str | None]:
        results: list[StepReturn] = []
        try:
            for action in actions:
                (obs, mask), reward, terminated, truncated = self.step(action)
                results.append(((_kept(obs), _kept(mask)), reward, terminated, truncated))
                if terminated or truncated:
                    break
        except FOREIGN as error:
            return results, described(error)
        return results, None

    def own_state(self) -> State | None:
        return own_state(self.env)

    def restore_own_state(self, seed: int, state: State) -> str | None:
        self.reset(seed)
        return restore_own_state(self.env, state)

    def dismiss(self, seconds: float = CLOSING_TIME) -> None:
        pass

    def close(self) -> None:
        close_env(self.env)


_ADVICE = "lower num_envs, or set env_workers: inline"
#: The exit code of a process that was started for a script and, importing it, began to train as the script does.
SCRIPT_AGAIN = 86


def leave_script() -> None:
    """Ends a process of multiprocessing that is still importing the main script; called where training starts processes."""
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        os._exit(SCRIPT_AGAIN)  # an exception would become a traceback of every process


def death(exit_code: int | None) -> str:
    """What became of a process that has died."""
    hint = "; a script that starts processes must train below if __name__ == '__main__':, because they import it"
    return f"has died (exit code {exit_code}){hint if exit_code == SCRIPT_AGAIN else ''}"


def require_room_for_workers(count: int) -> None:
    """Refuses more worker processes than the limits on open files and on memory allow, before one is started."""
    limit = file_limit()
    folder = Path("/dev/fd")
    now_open = len(list(folder.iterdir())) if folder.is_dir() else 3
    needed = now_open + FILES_PER_WORKER * count + FURTHER_FILES
    if limit is not None and needed > limit:
        raise ConfigError(
            f"{count} worker processes need {needed} open files, but this process may have {limit} (ulimit -n): raise the "
            f"limit, {_ADVICE}"
        )
    addresses = address_limit()
    if addresses is not None and addresses < ADDRESSES_PER_WORKER:
        raise ConfigError(
            f"a worker process needs {ADDRESSES_PER_WORKER / 1e9:.1f} GB of address space, but may have "
            f"{addresses / 1e9:.1f} GB (ulimit -v): raise the limit, or set env_workers: inline"
        )


class _Sent:
    """A factory on its way to a worker process of this one. Unlike pickle, cloudpickle also sends lambdas and closures."""

    def __init__(self, factory: EnvFactory) -> None:
        self.factory = factory

    def __reduce__(self) -> tuple[Any, ...]:
        return _received, (cloudpickle.dumps(self.factory),)


def _received(content: bytes) -> EnvFactory:
    return cloudpickle.loads(content)  # type: ignore[no-any-return]


class WorkerLost(RelayedError):
    """The process of an environment has died, or was killed because it did not answer."""


class ProcessWorker:
    """An environment in a separate process, connected by a pipe. If an answer takes longer than ``timeout`` seconds, the
    process is killed. The time to start it and to create the environment does not count."""

    def __init__(self, factory: EnvFactory, fresh: bool = False, timeout: float | None = None) -> None:
        self._timeout = timeout
        self._created = False  # whether the process has reported that its environment exists
        self._sent = 0.0
        self._close_until: float | None = None
        leave_script()
        context = multiprocessing.get_context("spawn")
        try:
            self._pipe, remote = context.Pipe()
        except OSError as error:
            raise ConfigError(f"cannot start a worker process ({error.strerror}): {_ADVICE}") from error
        # Linux sends the parent-death signal when the thread ends that started the process. Only the main thread never does.
        tied = threading.current_thread() is threading.main_thread()
        arguments = (remote, _Sent(factory), fresh, os.getpid(), tied)
        try:
            self._process = context.Process(target=_serve, args=arguments, daemon=True)
            self._process.start()
        except (AttributeError, TypeError, ValueError, pickle.PicklingError) as error:  # for instance an open file is sent
            self._pipe.close()
            raise ConfigError(
                f"the function that creates the environment cannot be sent to a worker process ({described(error)}); give "
                "the environment by its name, or use env_workers: inline"
            ) from error
        except (OSError, MemoryError) as error:
            self._pipe.close()
            raise ConfigError(f"cannot start a worker process ({described(error)}): {_ADVICE}") from error
        finally:
            remote.close()

    def _send(self, command: str, *args: Any) -> None:
        self._sent = time.monotonic()
        try:
            self._pipe.send((command, args))
        except OSError as error:
            raise WorkerLost(f"its worker process {death(self._process.exitcode)}") from error

    def _receive(self, calls: int = 1) -> Any:
        if not self._created:
            self._answer()
            self._created, self._sent = True, time.monotonic()
        if self._timeout is not None:
            left = self._sent + calls * self._timeout - time.monotonic()
            if not self._pipe.poll(max(0.0, left)):
                self._process.kill()
                self._process.join(CLOSING_TIME)
                raise WorkerLost(
                    f"it has not answered within env_timeout ({self._timeout:g} s), so its worker process was killed"
                )
        return self._answer()

    def _answer(self) -> Any:
        try:
            failed, value = self._pipe.recv()
        except (EOFError, OSError) as error:
            self._process.join(timeout=1.0)
            raise WorkerLost(f"its worker process {death(self._process.exitcode)}") from error
        if failed:
            raise WorkerError(*value)
        return value

    def reset(self, seed: int) -> Observed:
        self._send("reset", seed)
        return self._receive()  # type: ignore[no-any-return]

    def begin_step(self, action: Any) -> None:
        self._send("step", action)

    def step(self, action: Any) -> StepReturn:
        return self._receive()  # type: ignore[no-any-return]

    def final_info(self, keys: Sequence[str]) -> dict[str, Any]:
        self._send("final_info", keys)
        return self._receive()  # type: ignore[no-any-return]

    def play(self, actions: Sequence[Any]) -> tuple[list[StepReturn], str | None]:
        self._send("play", actions)
        return self._receive(calls=len(actions))  # type: ignore[no-any-return]

    def own_state(self) -> State | None:
        self._send("own_state")
        return self._receive()  # type: ignore[no-any-return]

    def restore_own_state(self, seed: int, state: State) -> str | None:
        self._send("restore_own_state", seed, state)
        return self._receive(calls=2)  # type: ignore[no-any-return]

    def is_alive(self) -> bool:
        """Whether the process has neither died nor been killed."""
        return self._process.is_alive()

    def dismiss(self, seconds: float = CLOSING_TIME) -> None:
        self._close_until = time.monotonic() + seconds
        with contextlib.suppress(RuntimeError, OSError):
            self._send("close")

    def close(self) -> None:
        if self._close_until is None:
            self.dismiss()
        assert self._close_until is not None
        self._process.join(timeout=max(0.0, self._close_until - time.monotonic()))
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
        self._pipe.close()


def close_in_time(close: Callable[[], None], *, hanging: bool) -> None:
    """Closes environments; in a thread and for a short time only, if one of their calls was broken off."""
    if not hanging:
        close()
        return
    closing = threading.Thread(target=close, daemon=True, name="closing")
    closing.start()
    closing.join(2 * SHORT_CLOSING_TIME)


def _serve(pipe: Connection, factory: EnvFactory, fresh: bool, parent: int, tied: bool) -> None:
    """The worker process: reports that its environment exists, then answers each command with (failed, value) until it
    receives "close" or the parent exits."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches every process of a terminal; the parent handles it
    end_with_parent(parent, tied)
    with contextlib.suppress(EOFError, OSError):
        try:
            worker = LocalWorker(factory, fresh)
        except FOREIGN as error:
            pipe.send((True, (described(error), frames_of(error))))
            return
        pipe.send((False, None))
        while True:
            command, args = pipe.recv()
            if command == "close":
                break
            try:
                pipe.send((False, getattr(worker, command)(*args)))
            except FOREIGN as error:
                pipe.send((True, (described(error), frames_of(error))))
        warnings.simplefilter("ignore")  # a warning at the end of a worker process helps no one
        worker.close()


def end_with_parent(parent: int, tied: bool) -> None:
    """Makes this process end with its parent, whatever its environment is doing then. Linux does it by a signal. Elsewhere a
    thread does it, which cannot run while an environment keeps Python's lock in C code."""
    if tied and sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it has already ended
        os._exit(1)
    known = multiprocessing.parent_process()
    assert known is not None, "a worker is started by multiprocessing"
    sentinel = known.sentinel

    def watch() -> None:
        wait([sentinel])
        os._exit(1)

    with contextlib.suppress(RuntimeError):  # no more threads
        threading.Thread(target=watch, daemon=True, name="parent").start()
