"""An update of transitions in an algorithm that replays sequences."""

from rl_training.algorithms.r2d2 import R2D2
from rl_training.types import TransitionBatch, UpdateResult


class Mistaken(R2D2):
    """Its replay gives sequences."""

    def update(self, batch: TransitionBatch, env_steps: int = 0) -> UpdateResult:  # expect: override
        raise AssertionError
