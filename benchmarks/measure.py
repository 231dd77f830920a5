"""What a candidate returns: amounts of work with the time they took, and the tools to measure that time."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rl_training.runtime.cadence import PhaseTimer


@dataclass(frozen=True)
class Rate:
    """An amount of work and the time it took, in CPU seconds of the process and in wall-clock seconds."""

    count: int
    cpu_seconds: float
    wall_seconds: float

    @property
    def per_cpu_second(self) -> float:
        return self.count / self.cpu_seconds

    @property
    def per_wall_second(self) -> float:
        return self.count / self.wall_seconds


@dataclass(frozen=True)
class Measurement:
    """One run of one candidate. ``work`` must agree between candidates, or their rates are not comparable."""

    rates: dict[str, Rate]
    work: dict[str, int] = field(default_factory=dict)
    outcome: dict[str, float] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)  # by phase of the loop, and for compilation before it


class Stopwatch:
    """Measures the time since it was created."""

    def __init__(self) -> None:
        self._wall = time.perf_counter()
        self._cpu = time.process_time()

    def rate(self, count: int) -> Rate:
        """The rate, if this much work has been done since the start."""
        cpu = time.process_time()
        return Rate(count, cpu - self._cpu, time.perf_counter() - self._wall)


def repeat(call: Callable[[], object], times: int, count_per_call: int = 1) -> Rate:
    """The rate of calling this function repeatedly."""
    watch = Stopwatch()
    for _ in range(times):
        call()
    return watch.rate(times * count_per_call)


def timed(call: Callable[[PhaseTimer], object], warm_up: int, times: int) -> tuple[Rate, dict[str, float]]:
    """The rate of a function that times its phases, measured after some warm-up calls, and its seconds by phase."""
    from rl_training.runtime.cadence import PhaseTimer  # imports torch, which a worker may do only after ``settle``

    for _ in range(warm_up):
        call(PhaseTimer())
    watch, timer = Stopwatch(), PhaseTimer()
    for _ in range(times):
        call(timer)
    return watch.rate(times), timer.seconds
