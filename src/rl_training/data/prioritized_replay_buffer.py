"""Replay that samples transitions in proportion to their priorities (Schaul et al., arXiv:1511.05952)."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from rl_training.data.loaded import require
from rl_training.data.replay_buffer import ReplayBuffer
from rl_training.data.sum_tree import SumTree
from rl_training.types import SpaceSpec, State, TransitionBatch, Transitions

#: added to every priority, so that every item can be sampled
SMALLEST_PRIORITY = 1e-6


class PriorityIndex:
    """Priorities p^alpha of numbered items: proportional, stratified sampling and importance weights.

    ``alpha`` is applied once, when a priority is written. A new item whose priority is not known gets the largest one that
    was ever learned.
    """

    def __init__(self, capacity: int, alpha: float, rng: np.random.Generator) -> None:
        self.alpha = alpha
        self._tree = SumTree(capacity)
        self._rng = rng
        self._largest = 1.0  # before alpha

    @property
    def nbytes(self) -> int:
        """The memory of the priorities."""
        return self._tree.nbytes

    @property
    def leaf_nbytes(self) -> int:
        """The memory of what ``state_dict`` copies of them."""
        return 8 * self._tree.capacity

    def add(self, indices: NDArray[np.int64], priorities: NDArray[np.floating[Any]] | None = None) -> None:
        """Gives new items at these indices their initial priorities, or the largest one where they are not known."""
        self._tree.set(indices, self._initial(len(indices), priorities))

    def add_run(self, start: int, count: int, priorities: NDArray[np.floating[Any]] | None = None) -> None:
        """``add`` for consecutive items, which may go on at the first one."""
        if start + count > self._tree.capacity:
            self.add((start + np.arange(count)) % self._tree.capacity, priorities)
        else:
            self._tree.set_run(start, self._initial(count, priorities))

    def _initial(self, count: int, priorities: NDArray[np.floating[Any]] | None) -> NDArray[np.float64]:
        values = np.full(count, self._largest**self.alpha)
        if priorities is not None:
            known = np.isfinite(priorities)
            values[known] = (np.abs(priorities[known]).astype(np.float64) + SMALLEST_PRIORITY) ** self.alpha
        return values

    def update(self, indices: NDArray[np.int64], priorities: NDArray[np.floating[Any]]) -> None:
        """Sets the priorities of these items. If an index occurs twice, its last priority is kept."""
        positive = np.abs(priorities).astype(np.float64) + SMALLEST_PRIORITY
        self._largest = max(self._largest, float(positive.max()))
        self._tree.set(indices, positive**self.alpha)

    def sample(self, count: int, items: int, beta: float) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Indices, one from each of ``count`` equal strata, and weights (N P)^-beta divided by their maximum."""
        total = self._tree.total
        shares = (np.arange(count) + self._rng.random(count)) / count
        indices = self._tree.sample(shares * total)
        weights = (items * self._tree.get(indices) / total) ** -beta
        return indices, (weights / weights.max()).astype(np.float32)

    def state_dict(self, items: int) -> State:
        return {"priorities": self._tree.leaves(items), "largest": self._largest}

    def load_state_dict(self, state: State) -> None:
        self._tree.load(state["priorities"])
        self._largest = float(state["largest"])

    def check(self, held: NDArray[np.int64]) -> None:
        """Refuses priorities that were loaded, unless those of these items are above 0 and there are no others."""
        values = self._tree.leaves(self._tree.capacity)
        exact = np.count_nonzero(values) == len(held) and bool((values[held] > 0.0).all())
        require(exact, "the items with a priority are not those that it holds")
        with np.errstate(over="ignore"):
            require(bool(np.isfinite([self._tree.total, self._largest]).all()), "its priorities are not finite")


class PrioritizedReplayBuffer(ReplayBuffer):
    """``ReplayBuffer`` with priorities; a batch has ``weights`` and the ``indices`` to update."""

    def __init__(
        self, capacity: int, obs_shape: tuple[int, ...], *, alpha: float, rng: np.random.Generator, **options: Any
    ) -> None:
        super().__init__(capacity, obs_shape, rng=rng, further_bytes=SumTree.bytes_of(capacity), **options)
        self._priorities = PriorityIndex(capacity, alpha, rng)

    @property
    def nbytes(self) -> int:
        return super().nbytes + self._priorities.nbytes

    def add(self, transitions: Transitions) -> None:
        start = self._next
        super().add(transitions)
        count = 1 if np.ndim(transitions.reward) == 0 else len(transitions.reward)
        self._priorities.add_run(start, count, transitions.priority)

    def sample(self, batch_size: int, beta: float = 0.4) -> TransitionBatch:
        """Samples ``batch_size`` transitions in proportion to their priorities."""
        if len(self) == 0:
            raise ValueError("cannot sample from an empty replay buffer")
        indices, weights = self._priorities.sample(batch_size, len(self), beta)
        return self.gather(indices)._replace(weights=torch.from_numpy(weights).to(self._device), indices=indices)

    def example(self, batch_size: int) -> TransitionBatch:
        batch = super().example(batch_size)
        return batch._replace(weights=torch.ones_like(batch.reward))

    def update_priorities(self, indices: NDArray[np.int64], priorities: NDArray[np.floating[Any]]) -> None:
        self._priorities.update(indices, priorities)

    def state_dict(self) -> State:
        return {**super().state_dict(), **self._priorities.state_dict(len(self))}

    def load_state_dict(self, state: State) -> None:
        super().load_state_dict(state)
        self._priorities.load_state_dict(state)

    def check(self, spec: SpaceSpec) -> None:
        super().check(spec)
        self._priorities.check(np.arange(len(self)))

    @property
    def rest_nbytes(self) -> int:
        return self._priorities.leaf_nbytes

    def rest_dict(self) -> State:
        return {**super().rest_dict(), **self._priorities.state_dict(len(self))}

    def load_rest_dict(self, state: State) -> None:
        super().load_rest_dict(state)
        self._priorities.load_state_dict(state)
