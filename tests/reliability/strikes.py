"""A process that ends itself without warning, at a moment that is counted in what it does and not in seconds.

Python's profiling hooks report every call and return of a thread, calls into C included. A moment is a number of such events:
of the main thread, counted from an env step on, or of a thread that writes a checkpoint. The process sends SIGKILL to itself
when the count is reached, so that a moment is the same on a slow machine, on a fast one and on a busy one.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

from rl_training.experiment.run import Run
from rl_training.runtime.collector import Collected, Collector


@dataclass(frozen=True)
class Moment:
    """``events`` of the main thread after env step ``at``; or, if ``saving``, of the thread that writes the first checkpoint
    of that step or a later one."""

    saving: bool
    at: int
    events: int


@dataclass
class Progress:
    """The events of a whole run, from which moments are drawn."""

    main: int = 0  # events of the main thread since the first step
    collected: int = 0  # steps of the pool
    saves: list[int] = field(default_factory=list)  # events in the writing of each checkpoint


def place_of(frame: FrameType, event: str, argument: Any) -> str:
    """Where the process is: the function, and what it calls or returns from in C."""
    called = f" {event} {argument.__name__}" if event.startswith("c_") else ""
    return f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_code.co_name}{called}"  # noqa: PTH119


def strike(moment: Moment, tell: Callable[[dict[str, str]], None]) -> None:
    """Arranges the end of this process at this moment; it reports the place just before."""

    def die(frame: FrameType, event: str, argument: Any) -> None:
        tell({"place": place_of(frame, event, argument)})
        os.kill(os.getpid(), signal.SIGKILL)

    left = moment.events

    def count_down(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal left
        left -= 1
        if left <= 0:
            die(frame, event, argument)

    if moment.saving:
        _in_writers(lambda step: count_down if step >= moment.at else None)
    else:
        _before_each_step(lambda env_steps: sys.setprofile(count_down) if env_steps >= moment.at else None)


def count_progress() -> Progress:
    """Counts the events of this process from now on, without disturbing it."""
    progress = Progress()

    def count_main(frame: FrameType, event: str, argument: Any) -> None:
        progress.main += 1

    def count_writer(frame: FrameType, event: str, argument: Any) -> None:
        progress.saves[-1] += 1

    def begin(env_steps: int) -> None:
        progress.collected += 1
        if sys.getprofile() is None:
            sys.setprofile(count_main)

    def begin_save(step: int) -> Any:
        progress.saves.append(0)
        return count_writer

    _before_each_step(begin)
    _in_writers(begin_save)
    return progress


def _before_each_step(act: Any) -> None:
    original = Collector.collect

    def collect(self: Collector, env_steps: int) -> Collected:
        act(env_steps)
        return original(self, env_steps)

    Collector.collect = collect  # type: ignore[method-assign]


def _in_writers(hook_of: Any) -> None:
    """Gives the thread that writes the checkpoint of a step its profiling hook, from its first event on."""
    original = Run.save

    def save(self: Run, step: int, *arguments: Any, **options: Any) -> None:
        threading.setprofile(hook_of(step))
        try:
            original(self, step, *arguments, **options)
        finally:
            threading.setprofile(None)

    Run.save = save  # type: ignore[method-assign]
