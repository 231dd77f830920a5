"""Replay that samples sequences in proportion to their priorities (Kapturowski et al. 2019, OpenReview r1lyTjAqYX)."""

from __future__ import annotations

from typing import Any

from rl_training.data.recurrent_replay_buffer import RecurrentReplayBuffer
from rl_training.types import SequenceBatch


class PrioritizedRecurrentReplayBuffer(RecurrentReplayBuffer):
    """``RecurrentReplayBuffer`` with a priority for each sequence; a batch has ``weights`` and the ``indices`` to update."""

    def __init__(self, capacity: int, obs_shape: tuple[int, ...], *, alpha: float, **options: Any) -> None:
        super().__init__(capacity, obs_shape, alpha=alpha, **options)

    def sample(self, batch_size: int, beta: float = 0.6) -> SequenceBatch:
        """Samples ``batch_size`` sequences in proportion to their priorities."""
        slots, weights = self._draw(batch_size, beta)
        return self.gather(slots)._replace(weights=weights, indices=slots)
