"""When to do what, counted in environment steps."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator

import torch
from threadpoolctl import threadpool_limits


class Due:
    """A debt of steps: every ``interval`` of them makes the work due once. Unlike ``step % interval`` this cannot be
    stepped over when several environments advance together. An interval of 0 is never due."""

    def __init__(self, interval: int, owed: int = 0) -> None:
        self.interval = interval
        self.owed = owed

    def add(self, steps: int) -> None:
        if self.interval:
            self.owed += steps

    def count(self) -> int:
        """How often the work is due now."""
        return self.owed // self.interval if self.interval else 0

    def settle(self) -> int:
        """Takes the work as done and returns how often it was due."""
        times = self.count()
        self.owed -= times * self.interval
        return times


class PhaseTimer:
    """Where the time goes. ``lap(name)`` books the time since the last lap."""

    PHASES = ("compilation", "environment", "acting", "sampling", "update", "evaluation", "rest")

    def __init__(self) -> None:
        self.seconds = dict.fromkeys(self.PHASES, 0.0)
        self.now = time.perf_counter()

    def start(self) -> None:
        """Begins a lap; the time before it belongs to nobody."""
        self.now = time.perf_counter()

    def lap(self, phase: str) -> None:
        now = time.perf_counter()
        self.seconds[phase] += now - self.now
        self.now = now

    @property
    def total(self) -> float:
        return sum(self.seconds.values())


def cpu_seconds() -> float:
    """CPU time of this process and of those that it has started and seen end, such as a compiler's."""
    children = os.times()
    return time.process_time() + children.children_user + children.children_system


@contextlib.contextmanager
def cpu_threads(count: int) -> Iterator[None]:
    """Torch and the BLAS behind numpy on this many threads, inside the block: the same sums in the same order anywhere."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        with threadpool_limits(limits=count, user_api="blas"):
            yield
    finally:
        torch.set_num_threads(before)
