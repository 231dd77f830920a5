"""Evaluated episodes that do not end: they are stopped after a number of steps, or there is at least a warning."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

#: An evaluated episode of this many steps causes a warning if nothing limits it.
LONG_EPISODE = 100_000


class LongEpisode(UserWarning):
    """An evaluated episode is so long that it may never end, or was stopped."""


class EpisodeLimit:
    """Stops episodes after ``most_steps``; None: warns of long ones. Each warning is given once."""

    def __init__(self, most_steps: int | None, env_id: str) -> None:
        self._most_steps, self._env_id = most_steps, env_id
        self._warned = False

    def apply(self, lengths: Sequence[int], ended: NDArray[np.bool_], truncated: NDArray[np.bool_]) -> None:
        """Truncates the episodes that this step has made too long. ``lengths`` are those before the step."""
        most = LONG_EPISODE if self._most_steps is None else self._most_steps
        if max(lengths) + 1 < most:
            return
        for i, length in enumerate(lengths):
            if length + 1 >= most and not ended[i]:
                if self._most_steps is not None:
                    truncated[i] = True
                self._warn()

    def _warn(self) -> None:
        if self._warned:
            return
        self._warned = True
        if self._most_steps is None:
            message = (
                f"an evaluated episode of {self._env_id} has lasted {LONG_EPISODE} steps and goes on; if it never ends, set "
                "eval.max_episode_steps (rl-training eval: --max-episode-steps)"
            )
        else:
            message = (
                f"an evaluated episode of {self._env_id} was stopped after {self._most_steps} steps, so its return is that "
                "of these steps; the limit is eval.max_episode_steps or what is left of eval.budget"
            )
        warnings.warn(message, LongEpisode, stacklevel=5)
