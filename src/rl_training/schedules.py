"""Values that change with the number of environment steps."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass

#: a value as a function of the env steps
Schedule = Callable[[int], float]


@dataclass(frozen=True)
class LinearSchedule:
    """Moves linearly from ``initial`` to ``final`` over ``steps`` steps, then stays there; 0 steps means ``final`` always."""

    initial: float
    final: float
    steps: int

    def __call__(self, step: int) -> float:
        if step >= self.steps:
            return self.final
        return self.initial + (self.final - self.initial) * self._share(step)

    def _share(self, step: int) -> float:
        """How much of the way has been covered, from 0 to 1."""
        return step / self.steps


class CosineSchedule(LinearSchedule):
    """Moves from ``initial`` to ``final`` along half a cosine wave over ``steps`` steps, then stays there."""

    def _share(self, step: int) -> float:
        return 0.5 * (1.0 - math.cos(math.pi * step / self.steps))


@dataclass(frozen=True)
class PiecewiseSchedule:
    """Moves linearly from each point (step, value) to the next. It is constant before the first and after the last point; two
    points at the same step are a jump."""

    points: tuple[tuple[int, float], ...]

    def __call__(self, step: int) -> float:
        after = bisect_right([at for at, _ in self.points], step)
        if after in (0, len(self.points)):
            return self.points[min(after, len(self.points) - 1)][1]
        (start, value), (end, next_value) = self.points[after - 1 : after + 1]
        return value + (next_value - value) * ((step - start) / (end - start))


def importance_exponent(beta: float, steps: int) -> LinearSchedule:
    """The importance-sampling exponent of prioritised replay: from ``beta`` to 1 over ``steps``; constant if that is 0."""
    return LinearSchedule(beta, 1.0 if steps else beta, steps)
