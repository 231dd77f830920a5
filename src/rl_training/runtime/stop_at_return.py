"""Stopping once the policy is good enough (``stop`` in the config), as a hook."""

from __future__ import annotations

from collections import deque

from rl_training.experiment.config import TrainConfig
from rl_training.runtime.evaluation import EvaluationResult
from rl_training.types import State


class StopAtReturn:
    """Asks to stop when the mean return of the last few evaluations reaches a figure."""

    def __init__(self, reached: float, over: int) -> None:
        self._reached = reached
        self._returns: deque[float] = deque(maxlen=over)

    @classmethod
    def of(cls, config: TrainConfig) -> list[StopAtReturn]:
        """The hook that a config asks for, if it does."""
        return [] if config.stop.return_ is None else [cls(config.stop.return_, config.stop.over)]

    def on_evaluation(self, result: EvaluationResult) -> str | None:
        self._returns.append(result.mean_return)
        mean = sum(self._returns) / len(self._returns)
        if len(self._returns) < (self._returns.maxlen or 0) or mean < self._reached:
            return None
        return f"the mean return over {len(self._returns)} evaluation(s) is {mean:.1f}, and stop.return is {self._reached:g}"

    def state_dict(self) -> State:
        return {"returns": list(self._returns)}

    def load_state_dict(self, state: State) -> None:
        self._returns.extend(state["returns"])
