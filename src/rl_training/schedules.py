"""Values that change with the number of environment steps."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class LinearSchedule:
    """From ``initial`` to ``final`` in a straight line over ``steps`` steps, then constant; 0 steps is ``final`` at once."""

    initial: float
    final: float
    steps: int

    def __call__(self, step: int) -> float:
        if step >= self.steps:
            return self.final
        return self.initial + (self.final - self.initial) * (step / self.steps)


def bias_correction(beta: float, steps: int) -> LinearSchedule:
    """The exponent of prioritised replay's importance weights: from ``beta`` to 1 over ``steps``; 0 steps: it stays."""
    return LinearSchedule(beta, 1.0 if steps else beta, steps)
