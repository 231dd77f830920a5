"""What a candidate returns: amounts of work with the time they took, and the means to take that time."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rl_training.runtime.cadence import PhaseTimer


@dataclass(frozen=True)
class Rate:
    """An amount of work and its time, as CPU seconds of the process and as seconds on the wall."""

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
    seconds: dict[str, float] = field(default_factory=dict)  # by phase of the loop, and of compilation before it


class Stopwatch:
    """Runs from its making."""

    def __init__(self) -> None:
        self._wall = time.perf_counter()
        self._cpu = time.process_time()

    def rate(self, count: int) -> Rate:
        """This much work has been done since the start."""
        cpu = time.process_time()
        return Rate(count, cpu - self._cpu, time.perf_counter() - self._wall)


def repeat(call: Callable[[], object], times: int, count_per_call: int = 1) -> Rate:
    """The rate of calling this function again and again."""
    watch = Stopwatch()
    for _ in range(times):
        call()
    return watch.rate(times * count_per_call)


def timed(call: Callable[[PhaseTimer], object], warm_up: int, times: int) -> tuple[Rate, dict[str, float]]:
    """The rate of a function that laps its phases, after some calls that do not count, and its seconds by phase."""
    from rl_training.runtime.cadence import PhaseTimer  # imports torch, which a worker must not do before it has settled

    for _ in range(warm_up):
        call(PhaseTimer())
    watch, timer = Stopwatch(), PhaseTimer()
    for _ in range(times):
        call(timer)
    return watch.rate(times), timer.seconds
