"""Handles SIGINT and SIGTERM as a request to finish the current step, save and stop.

The first signal only sets a flag, which the loop reads between two steps. If an environment does not return from its step, or
the update is being compiled, a thread helps. After ``PATIENCE`` seconds it breaks the call off by an exception in the main
thread. If that has no effect, because the call is inside C code or catches everything, the thread saves the run itself, as it
was before the call. C code that keeps Python's lock stops the thread too: then nothing of the process can run, and only
SIGKILL ends it.
"""

from __future__ import annotations

import _thread
import contextlib
import os
import signal
import socket
import sys
import threading
import time
import warnings
from collections.abc import Sequence
from types import FrameType, TracebackType
from typing import Any, Protocol

from rl_training.envs.boundary import Boundary
from rl_training.errors import RLTrainingError, described

SIGNALS = (signal.SIGINT, signal.SIGTERM)
#: Seconds after a signal until an environment's step is broken off, and until the run is saved without it.
PATIENCE = 2.0
LAST_PATIENCE = 4.0
TICK = 0.1
END = 0  # asks the thread to end; no signal has this number
#: Gets the main thread out of a call. It is none of the user's signals: two of the same number may arrive as one.
INTERRUPTION: signal.Signals = getattr(signal, "SIGURG", None) or getattr(signal, "SIGBREAK")  # noqa: B009 - of Windows
NOT_SAVED = 2  # the exit code if saving fails


class Stoppable(Protocol):
    """The interface of what a signal stops: a trainer."""

    def boundaries(self) -> Sequence[Boundary]:
        """The boundaries of all pools in this process."""

    def say(self, text: str) -> None:
        """Shows a line that must not be missed."""

    def save_before(self, call: str) -> str:
        """Saves the state before the call that does not end, from another thread; returns what to tell the user."""

    def unsaved(self) -> str:
        """What is lost if the process ends now, and how to continue."""


class StopRequest:
    """While active, the first SIGINT or SIGTERM sets ``signal_number``. A second one stops at once: if the process is ours
    (``owns_process``), it prints what is lost and exits; otherwise the signal has the effect that it had before."""

    def __init__(self, stoppable: Stoppable | None = None, *, owns_process: bool = False) -> None:
        self.signal_number: int | None = None
        self._stoppable, self._owns_process = stoppable, owns_process
        self._previous: dict[int, Any] = {}
        self._pipe: tuple[socket.socket, socket.socket] | None = None  # a pair of sockets, which Windows can wait for too
        self._thread: threading.Thread | None = None
        self._woken = False  # whether Python writes the signals' numbers into our pipe, even while the main thread is busy
        self._asked_at = self._interrupted = 0.0
        self._interrupting = False
        self._saved = False

    def __bool__(self) -> bool:
        return self.signal_number is not None

    def __enter__(self) -> StopRequest:
        if threading.current_thread() is threading.main_thread():
            if self._stoppable is not None:
                self._start_thread()
            for number in SIGNALS:
                self._previous[number] = signal.signal(number, self._on_first)
            if self._thread is not None:
                self._previous[INTERRUPTION] = signal.signal(INTERRUPTION, self._on_interruption)
            _active.append(self)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._restore()
        self._end_thread()
        if self in _active:
            _active.remove(self)

    def give_up(self) -> None:
        """For a forked process, where the signals are not for us and the thread does not run."""
        if self._woken:
            signal.set_wakeup_fd(-1)
        self._restore()
        self._woken, self._thread = False, None

    # ------------------------------------------------------------------------------------------- in the main thread

    def _on_first(self, number: int, frame: FrameType | None) -> None:
        self.signal_number = number
        for handled in SIGNALS:
            signal.signal(handled, self._on_later)
        self._tell_thread(number)

    def _on_interruption(self, number: int, frame: FrameType | None) -> None:
        """Breaks off the call that is under way, but only if the thread asked for it: other code may send this signal too."""
        if self._interrupting:
            assert self._stoppable is not None
            self._interrupting = False
            for boundary in self._stoppable.boundaries():
                if boundary.since:
                    boundary.break_off()

    def _on_later(self, number: int, frame: FrameType | None) -> None:
        if self._thread is not None and self._owns_process:
            self._tell_thread(number)  # which ends the process
        else:
            self._interrupting = False  # a second signal has its usual effect
            for handled in SIGNALS:
                signal.signal(handled, self._previous[handled])
            if self._stoppable is not None:
                self._stoppable.say(self._stoppable.unsaved())
            signal.raise_signal(number)

    def _tell_thread(self, number: int) -> None:
        if self._pipe is not None and not self._woken:
            self._pipe[1].send(bytes([number]))

    def _restore(self) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _start_thread(self) -> None:
        self._pipe = reader, writer = socket.socketpair()
        writer.setblocking(False)  # as ``set_wakeup_fd`` asks for
        self._thread = threading.Thread(target=self._watch, args=(reader,), daemon=True, name="signals")
        self._main = threading.get_ident()
        try:
            self._thread.start()
        except RuntimeError as error:
            self._thread = None
            self._end_thread()
            warnings.warn(f"a step of an environment that hangs cannot be broken off by a signal: {error}", stacklevel=4)
            return
        former = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
        self._woken = former == -1
        if not self._woken:  # somebody else's, for instance an event loop's
            signal.set_wakeup_fd(former)

    def _end_thread(self) -> None:
        if self._pipe is None:
            return
        if self._woken:
            signal.set_wakeup_fd(-1)
        if self._thread is not None:
            self._pipe[1].send(bytes([END]))
            self._thread.join()
            self._thread = None
        for end in self._pipe:
            end.close()
        self._pipe = None

    # ------------------------------------------------------------------------------------------------ in the thread

    def _watch(self, reader: socket.socket) -> None:
        assert self._stoppable is not None
        first = 0
        while True:
            try:
                received = reader.recv(64)
            except TimeoutError:
                received = b""
            for number in received:
                if number == END:
                    return
                if number not in SIGNALS:
                    continue
                if not first:
                    first, self._asked_at = number, time.monotonic()
                    reader.settimeout(TICK)
                    how = "press again" if number == signal.SIGINT else "send the signal again"
                    self._stoppable.say(f"finishing the step and saving; {how} to stop without saving")
                elif self._owns_process:
                    self._stoppable.say(self._stoppable.unsaved())
                    _exit(128 + number)
            if first:
                for boundary in self._stoppable.boundaries():
                    self._help(boundary, first)

    def _interrupt_main_thread(self) -> None:
        if hasattr(signal, "pthread_kill"):
            signal.pthread_kill(self._main, INTERRUPTION)
        else:  # Windows: the handler runs as soon as the main thread is back from C code
            _thread.interrupt_main(INTERRUPTION)

    def _help(self, boundary: Boundary, number: int) -> None:
        """Gets the main thread out of a call that does not end, or does what it would have done."""
        assert self._stoppable is not None
        since = boundary.since
        waited = time.monotonic() - max(since, self._asked_at)
        ends = self._owns_process or number == signal.SIGTERM
        if not since or waited < PATIENCE or (boundary.compiles and not ends):
            return
        if since != self._interrupted:
            self._interrupted = since
            self._interrupting = True
            self._stoppable.say(f"interrupting {boundary.name}, which has not finished")
            self._interrupt_main_thread()
        elif waited > LAST_PATIENCE and boundary.compiles:
            self._stoppable.say(self._stoppable.unsaved())
            _exit(128 + number)
        elif waited > LAST_PATIENCE and not self._saved and boundary.hold():
            self._saved = True
            code = 128 + number
            try:
                self._stoppable.say(self._stoppable.save_before(boundary.name))
            except Exception as error:  # whatever it is, the process must end, or the main thread be released
                code = NOT_SAVED
                reason = str(error) if isinstance(error, RLTrainingError) else described(error)
                self._stoppable.say(f"error: the run could not be saved: {reason}")
            if ends:
                _exit(code)
            boundary.release()


def _exit(code: int) -> None:
    """Ends the process without waiting for the main thread, which may never return."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # no one reads it any more
            stream.flush()
    os._exit(code)


#: The requests that are active. A process that forks off this one gets the handlers and the pipe too, and gives them up.
_active: list[StopRequest] = []


def _give_up() -> None:
    for request in _active:
        request.give_up()
    _active.clear()


if hasattr(os, "register_at_fork"):  # not on Windows, where nothing forks
    os.register_at_fork(after_in_child=_give_up)
