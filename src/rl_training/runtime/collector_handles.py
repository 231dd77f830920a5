"""The trainer's handles on its collectors. A collector, here or elsewhere, is asked for a stretch and answers later."""

from __future__ import annotations

import contextlib
import functools
import multiprocessing
import os
import pickle
import signal
import warnings
from abc import ABC, abstractmethod
from collections.abc import Sequence
from multiprocessing.connection import Connection, wait
from typing import Any

from rl_training.algorithms.policy import Policy
from rl_training.envs.pool import EnvPool
from rl_training.envs.workers import death, end_with_parent, leave_script
from rl_training.errors import ConfigError, described
from rl_training.runtime.cadence import PhaseTimer
from rl_training.runtime.collector import acting_copy
from rl_training.runtime.stretch_collector import (
    Answer,
    Call,
    CollectorServer,
    Reply,
    Setup,
    StretchCollector,
    arithmetic,
    packed_state,
    raise_again,
)
from rl_training.types import State

#: Seconds that a process has to end before it is killed.
CLOSING_TIME = 2.0


class CollectorLost(Exception):
    """The process or the node of a collector has died; the text is the cause."""


class Handle(ABC):
    """One collector. After ``start`` it has one call at a time, whose answer can be taken once it is ``ready``."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self.diverged: list[int] = []  # indices in the run of environments that ``start`` could not restore
        self.weights = -1  # the version of the weights that the collector has

    @abstractmethod
    def start(self, state: State | bytes | None) -> None:
        """Creates the collector, or replaces one that has died: in this state, or at the start of the run if it is None."""

    @abstractmethod
    def ask(self, call: Call) -> None:
        """Asks for a stretch. This neither fails nor waits."""

    @classmethod
    @abstractmethod
    def ready(cls, handles: Sequence[Handle], most: int, seconds: float) -> Sequence[Handle]:
        """Those of these collectors, all of this class, that have an answer or have died. Waits for one of them, or for
        ``most``, which is all that the caller needs; at most for this time."""

    @abstractmethod
    def answer(self) -> Answer:
        """The answer of a collector that is ready. Raises ``CollectorLost`` if it has died."""

    @abstractmethod
    def close(self) -> None: ...

    def taken(self, reply: Reply) -> Answer:
        """The answer in a reply from another process, whose error is raised and whose warnings are repeated."""
        for text in reply.warnings:
            warnings.warn(text, stacklevel=2)
        if reply.arithmetic is not None and reply.arithmetic != arithmetic():
            warnings.warn(
                f"the CPU of collector {self.setup.place.number} rounds differently from this one, so the run is not "
                "bit for bit the one that a single type of CPU would give",
                stacklevel=2,
            )
        self.diverged += reply.diverged
        if reply.error is not None:
            raise_again(reply.error)
        assert reply.answer is not None
        return reply.answer


class InlineHandle(Handle):
    """A collector in this process, with its own copy of the weights. It plays when ``answer`` is called."""

    def __init__(self, setup: Setup, pool: EnvPool, policy: Policy, timer: PhaseTimer) -> None:
        super().__init__(setup)
        self.pool = pool
        self._policy, self._timer = acting_copy(policy), timer
        self._collector: StretchCollector | None = None
        self._call: Call | None = None

    def start(self, state: State | bytes | None) -> None:
        self._collector = StretchCollector(self.setup, self.pool, self._policy, self._timer)
        self.diverged += self._collector.start(state)
        self.weights = -1

    def ask(self, call: Call) -> None:
        self._call = call

    @classmethod
    def ready(cls, handles: Sequence[Handle], most: int, seconds: float) -> Sequence[Handle]:
        return handles

    def answer(self) -> Answer:
        assert self._collector is not None and self._call is not None, "nothing was asked"  # noqa: PT018
        return self._collector.play(self._call)

    def close(self) -> None:
        self.pool.close()


class ProcessHandle(Handle):
    """A collector in a process of this machine, connected by a pipe."""

    _process: Any = None
    _pipe: Connection

    def start(self, state: State | bytes | None) -> None:
        self.close()
        leave_script()
        context = _context()
        self._pipe, remote = context.Pipe()
        arguments = (remote, self.setup.to_bytes(), None if state is None else packed_state(state))
        self._process = context.Process(
            target=_serve, args=arguments, daemon=True, name=f"collector {self.setup.place.number}"
        )
        try:
            self._process.start()
        except (OSError, MemoryError) as error:
            raise ConfigError(f"cannot start a collector's process ({described(error)}); lower collectors.count") from error
        finally:
            remote.close()
        self.weights = -1

    def ask(self, call: Call) -> None:
        with contextlib.suppress(OSError):  # it has died; ``answer`` will report that
            self._pipe.send_bytes(pickle.dumps(call, pickle.HIGHEST_PROTOCOL))

    @classmethod
    def ready(cls, handles: Sequence[Handle], most: int, seconds: float) -> Sequence[Handle]:
        by_pipe: dict[Any, Handle] = {handle._pipe: handle for handle in handles if isinstance(handle, ProcessHandle)}
        return [by_pipe[pipe] for pipe in wait(list(by_pipe), seconds)]

    def answer(self) -> Answer:
        try:
            reply = self._pipe.recv()
        except (EOFError, OSError) as error:
            self._process.join(CLOSING_TIME)
            raise CollectorLost(f"its process {death(self._process.exitcode)}") from error
        return self.taken(reply)

    def close(self) -> None:
        if self._process is not None:
            self._pipe.close()  # this ends the process, unless it is playing
            self._process.kill()
            self._process.join()
            self._process = None


@functools.cache
def _context() -> Any:
    """Processes are forked, where possible, from one that has already imported torch; this saves seconds for each."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["rl_training.runtime.collector_handles"])
    return context


def _serve(pipe: Connection, content: bytes, state: bytes | None) -> None:
    """The process of a collector: answers calls until the trainer closes the pipe or ends."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # these may reach a whole process group; the trainer handles them
    end_with_parent(os.getppid(), tied=True)
    server = CollectorServer(content, state)
    with contextlib.suppress(EOFError, OSError):
        while True:
            pipe.send(server.play(pipe.recv()))
