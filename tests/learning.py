"""Tests that learn until a figure is reached. What they measure depends on the seed and on how a CPU rounds, so each of them
needs a margin: ``python -m reliability.margins`` measures it over 20 seeds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from rl_training.experiment.config import TrainConfig
from rl_training.runtime.trainer import Trainer


@dataclass(frozen=True)
class LearningTask:
    """Something that is learned from a seed, with the bound that the result must keep."""

    name: str
    measure: Callable[[int], float]
    bound: float
    above: bool

    def holds(self, value: float) -> bool:
        return value > self.bound if self.above else value < self.bound

    def check(self, seed: int = 0) -> None:
        """The test itself."""
        value = self.measure(seed)
        side = "above" if self.above else "below"
        assert self.holds(value), f"{self.name}, seed {seed}: {value} is not {side} {self.bound}"


#: All of them, once the test modules are imported.
TASKS: list[LearningTask] = []


def must_be(
    *, above: float | None = None, below: float | None = None, name: str | None = None
) -> Callable[[Callable[[int], float]], LearningTask]:
    """Declares a function of a seed as such a task."""

    def declare(measure: Callable[[int], float]) -> LearningTask:
        bound = above if above is not None else below
        assert bound is not None
        title = name or measure.__name__.replace("_", " ")
        task = LearningTask(title, measure, bound, above is not None)
        TASKS.append(task)
        return task

    return declare


def mean_return(config: TrainConfig) -> float:
    """The mean return of the final evaluation of a run that writes nothing."""
    trainer = Trainer(config)
    try:
        evaluation = trainer.train().evaluation
    finally:
        trainer.close()
    assert evaluation is not None
    return evaluation.mean_return
