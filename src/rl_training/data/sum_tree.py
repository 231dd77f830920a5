"""Samples leaves in proportion to their values, for prioritised replay (Schaul et al. 2016, arXiv:1511.05952, B.2.1).

Plain numpy: 16 children per node, and a running sum over the top layer, which has at most 4096 nodes. With 1e6 leaves, 256
draws and 256 updates take about 155 us on one core (209 with 4 children, 168 with 8, 175 with 32, 322 with 64; a binary tree
compiled by numba takes 135, but costs 200 MB of packages and a second of start-up). Sampling 256 of 1e6 transitions and
updating their priorities takes ``PrioritizedReplayBuffer`` 0.8 times as long as cpprb 11.0, measured in turns on one core.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

FAN_OUT = 16  # a power of two
TOP_NODES = 4096  # at most this many are searched at once


class SumTree:
    """``capacity`` non-negative values. Each leaf owns an interval as long as its value, in the order of the leaves.

    Inner nodes are recomputed from their children in a fixed order, never adjusted by a difference, so rounding errors do not
    accumulate and a tree built from saved leaves equals the saved one bit for bit.
    """

    def __init__(self, capacity: int) -> None:
        if capacity < 1:
            raise ValueError(f"a sum tree needs at least one leaf, not {capacity}")
        self.capacity = capacity
        self._layers = [np.zeros(size) for size in _layer_sizes(capacity)]
        self._top_ends: NDArray[np.float64] | None = None  # the ends of the top nodes' intervals; None if outdated

    @staticmethod
    def bytes_of(capacity: int) -> int:
        """The memory of a tree with this many leaves, including the running sum over its top layer."""
        sizes = _layer_sizes(capacity)
        return 8 * (sum(sizes) + sizes[-1])

    @property
    def nbytes(self) -> int:
        """The memory of the tree."""
        return self.bytes_of(self.capacity)

    @property
    def total(self) -> float:
        """The sum of all values."""
        return float(self._ends()[-1])

    def get(self, indices: ArrayLike) -> NDArray[np.float64]:
        """The values of these leaves."""
        return self._layers[0][self._checked(indices)]

    def set(self, indices: ArrayLike, values: ArrayLike) -> None:
        """Sets the values of leaves. If an index occurs twice, its last value is kept."""
        nodes = np.atleast_1d(self._checked(indices))
        sums = np.broadcast_to(_checked_values(values), nodes.shape)
        if nodes.size == 0:
            return
        self._layers[0][nodes] = sums
        for children, parents in zip(self._layers, self._layers[1:], strict=False):
            nodes = nodes // FAN_OUT
            parents[nodes] = _sum_rows(children.reshape(-1, FAN_OUT).take(nodes, axis=0))
        self._top_ends = None

    def set_run(self, start: int, values: ArrayLike) -> None:
        """Sets the values of consecutive leaves. Unlike ``set``, it computes every node above them once."""
        run = _checked_values(values)
        end = start + len(run)
        if not 0 <= start <= end <= self.capacity:
            raise IndexError(f"leaf indices must be from 0 to {self.capacity - 1}")
        self._layers[0][start:end] = run
        for children, parents in zip(self._layers, self._layers[1:], strict=False):
            start, end = start // FAN_OUT, -(-end // FAN_OUT)
            parents[start:end] = _sum_rows(children.reshape(-1, FAN_OUT)[start:end])
        self._top_ends = None

    def sample(self, targets: ArrayLike) -> NDArray[np.int64]:
        """The leaves whose intervals contain these points of [0, total). A leaf with value 0 is never returned."""
        ends = self._ends()
        if not ends[-1] > 0.0:
            raise ValueError("cannot sample from a tree whose values are all 0")
        remainder = np.minimum(np.asarray(targets, np.float64), _just_below(ends[-1]))
        nodes: NDArray[np.int64] = ends.searchsorted(remainder, side="right")
        remainder = remainder - np.where(nodes > 0, ends[nodes - 1], 0.0)
        for layer in reversed(self._layers[:-1]):
            ends = layer.reshape(-1, FAN_OUT).take(nodes, axis=0).cumsum(axis=1)  # (target, child)
            # Rounding can leave a remainder at the end of its node. Moved just below that end, it selects a child whose
            # value increases the running sum, and therefore never a child with value 0.
            remainder = np.minimum(remainder, _just_below(ends[:, -1]))
            children = (ends > remainder[:, None]).argmax(axis=1)
            starts = np.take(ends, np.arange(0, ends.size, FAN_OUT) + children - 1, mode="wrap")
            remainder = remainder - np.where(children > 0, starts, 0.0)
            nodes = nodes * FAN_OUT + children
        return nodes

    def leaves(self, count: int) -> NDArray[np.float64]:
        """A copy of the first ``count`` values, which are all that must be saved."""
        return np.array(self._layers[0][: min(count, self.capacity)])

    def load(self, values: ArrayLike) -> None:
        """Restores saved leaves; the remaining ones become 0."""
        saved = np.atleast_1d(_checked_values(values))
        if len(saved) > self.capacity:
            raise ValueError(f"{len(saved)} values do not fit into a tree of {self.capacity} leaves")
        self._layers[0][: len(saved)] = saved
        self._layers[0][len(saved) :] = 0.0
        for children, parents in zip(self._layers, self._layers[1:], strict=False):
            parents[: len(children) // FAN_OUT] = _sum_rows(children.reshape(-1, FAN_OUT))
        self._top_ends = None

    def _ends(self) -> NDArray[np.float64]:
        if self._top_ends is None:
            self._top_ends = self._layers[-1].cumsum()
        return self._top_ends

    def _checked(self, indices: ArrayLike) -> NDArray[np.int64]:
        checked = np.asarray(indices, np.int64)
        # Viewed as unsigned, negative indices are too large as well, so one pass checks both bounds.
        if checked.size and checked.view(np.uint64).max() >= self.capacity:
            raise IndexError(f"leaf indices must be from 0 to {self.capacity - 1}")
        return checked


def _layer_sizes(capacity: int) -> list[int]:
    """The number of nodes in each layer, leaves first; all but the last are padded to full groups of children."""
    sizes, nodes = [], capacity
    while nodes > TOP_NODES:
        nodes = -(-nodes // FAN_OUT)
        sizes.append(nodes * FAN_OUT)
    return [*sizes, nodes]


def _checked_values(values: ArrayLike) -> NDArray[np.float64]:
    checked = np.asarray(values, np.float64)
    if checked.size and not (checked.min() >= 0.0 and checked.max() < np.inf):  # a NaN fails the first comparison
        raise ValueError("values must be finite and not negative")
    return checked


def _sum_rows(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """Sums neighbours pairwise, so that the order does not depend on the number of rows, which ``sum`` does not guarantee."""
    while rows.shape[1] > 1:
        rows = rows[:, ::2] + rows[:, 1::2]
    return rows[:, 0]


def _just_below(ends: ArrayLike) -> NDArray[np.float64]:
    return np.asarray(np.nextafter(ends, 0.0), np.float64)
