"""Values that change with the number of environment steps."""

from __future__ import annotations

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
        return self.initial + (self.final - self.initial) * (step / self.steps)


def importance_exponent(beta: float, steps: int) -> LinearSchedule:
    """The importance-sampling exponent of prioritised replay: from ``beta`` to 1 over ``steps``; constant if that is 0."""
    return LinearSchedule(beta, 1.0 if steps else beta, steps)
