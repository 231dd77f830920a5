"""Which items of the rings can be sampled: queues of their first positions, one for each environment."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rl_training.data.loaded import require
from rl_training.types import Array


@dataclass
class RingCounters:
    """The state of one environment's ring. Positions are never reused; position p is stored in slot p % slots."""

    quota: int  # maximum number of items
    written: int = 0  # number of observations written so far
    running: bool = False  # whether the newest observation's episode continues
    waiting: int = 0  # the first position whose n-step window is not complete
    queued: int = 0  # number of items completed so far
    retired: int = 0  # number of those that can no longer be sampled

    def __len__(self) -> int:
        return self.queued - self.retired

    def check(self) -> None:
        """Refuses counters that were loaded and contradict each other."""
        numbers = (self.quota, self.written, self.waiting, self.queued, self.retired)
        require(all(type(number) is int for number in numbers) and type(self.running) is bool, "its counters are not numbers")
        ordered = 0 <= self.waiting <= self.written and 0 <= self.retired <= self.queued and len(self) <= self.quota
        require(ordered and not (self.running and self.written == 0), "its counters contradict each other")


class ItemQueue:
    """The items of all rings, whose counters are shared with the buffer. The i-th item that an environment completed is at
    index i % row length."""

    def __init__(self, rings: list[RingCounters]) -> None:
        self._rings = rings
        self.positions = np.zeros((len(rings), max(ring.quota for ring in rings)), np.int64)

    def __len__(self) -> int:
        return sum(map(len, self._rings))

    def push(self, env: int, position: int) -> None:
        """Adds an item; the caller has made room for it."""
        ring = self._rings[env]
        self.positions[env, ring.queued % self.positions.shape[1]] = position
        ring.queued += 1

    def extend(self, env: int, positions: NDArray[np.int64]) -> None:
        """Adds several items, which may not be more than a row holds."""
        ring = self._rings[env]
        ring.queued += len(positions)
        self.positions[env, np.arange(ring.queued - len(positions), ring.queued) % self.positions.shape[1]] = positions

    def first(self, env: int, count: int) -> NDArray[np.int64]:
        """The positions of an environment's oldest items."""
        retired = self._rings[env].retired
        first: NDArray[np.int64] = self.positions[env, np.arange(retired, retired + count) % self.positions.shape[1]]
        return first

    def oldest(self, env: int) -> int:
        """The position of an environment's oldest item."""
        return int(self.positions[env, self._rings[env].retired % self.positions.shape[1]])

    def numbered(self, numbers: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The environments and positions of the items with these numbers, from 0 to len - 1."""
        retired = np.array([ring.retired for ring in self._rings])
        counts = np.array([len(ring) for ring in self._rings])
        ends = counts.cumsum()
        env = ends.searchsorted(numbers, side="right")
        entries = retired[env] + numbers - (ends - counts)[env]
        return env, self.positions[env, entries % self.positions.shape[1]]

    def saved(self) -> list[Array]:
        """The positions of each environment's items, oldest first."""
        return [self.positions[env, self._entries(env)] for env in range(len(self._rings))]

    def load(self, saved: list[Array]) -> None:
        """Restores what ``saved`` returned, after the counters."""
        for env, positions in enumerate(saved):
            self.positions[env, self._entries(env)] = positions

    def check(self, slots: int) -> None:
        """Refuses what was loaded if an item begins where its ring, of this many slots, has nothing."""
        for env, ring in enumerate(self._rings):
            ring.check()
            positions = self.positions[env, self._entries(env)]
            stored = (positions >= ring.written - slots) & (positions >= 0) & (positions < ring.written)
            require(bool(stored.all() and (np.diff(positions) > 0).all()), f"an item of environment {env} has no place in it")

    def _entries(self, env: int) -> NDArray[np.int64]:
        entries: NDArray[np.int64] = np.arange(self._rings[env].retired, self._rings[env].queued) % self.positions.shape[1]
        return entries
