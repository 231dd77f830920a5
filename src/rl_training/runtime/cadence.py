"""When periodic work is due, counted in environment steps, and how long each phase of training takes."""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import time
from collections.abc import Iterator

import torch
from threadpoolctl import ThreadpoolController


class Due:
    """Counts the steps since some work was last done: it is due once every ``interval`` steps. Unlike ``step % interval``,
    this cannot skip a due point when several environments advance together. With an interval of 0 it is never due."""

    def __init__(self, interval: int, owed: int = 0) -> None:
        self.interval = interval
        self.owed = owed

    def add(self, steps: int) -> None:
        if self.interval:
            self.owed += steps

    def count(self) -> int:
        """How many times the work is due now."""
        return self.owed // self.interval if self.interval else 0

    def settle(self) -> int:
        """Marks the work as done and returns how many times it was due."""
        times = self.count()
        self.owed -= times * self.interval
        return times


class PhaseTimer:
    """Time spent in each phase of training. ``lap(phase)`` adds the time since the last lap to that phase."""

    PHASES = ("compilation", "environment", "acting", "sampling", "update", "evaluation", "waiting", "rest")

    def __init__(self) -> None:
        self.seconds = dict.fromkeys(self.PHASES, 0.0)
        self.now = time.perf_counter()

    def start(self) -> None:
        """Starts a lap; the time before it is not counted."""
        self.now = time.perf_counter()

    def lap(self, phase: str) -> None:
        now = time.perf_counter()
        self.seconds[phase] += now - self.now
        self.now = now

    @property
    def total(self) -> float:
        return sum(self.seconds.values())


def cpu_seconds() -> float:
    """CPU time of this process and of its finished child processes, such as a compiler."""
    children = os.times()
    return time.process_time() + children.children_user + children.children_system


@contextlib.contextmanager
def cpu_threads(count: int) -> Iterator[None]:
    """Limits torch and numpy's BLAS to this many threads inside the block, so that sums have the same order everywhere."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        with _libraries(len(sys.modules)).limit(limits=count, user_api="blas"):
            yield
    finally:
        torch.set_num_threads(before)


@functools.lru_cache(maxsize=1)
def _libraries(modules: int) -> ThreadpoolController:
    """The loaded libraries; searched again whenever another module has been imported."""
    return ThreadpoolController()
