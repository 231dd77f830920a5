"""Cutting a rollout into sequences that never cross an episode, and splitting those into minibatches.

Steps are numbered time-major: step t of environment i is t * envs + i.
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rl_training.types import Array

Index = NDArray[np.int64]


class Sequences(NamedTuple):
    """Stretches of a rollout, each of one environment within one episode; arrays (sequence,)."""

    env: Index
    begin: Index
    length: Index

    @classmethod
    def of(cls, start: Array, longest: int | None = None) -> Sequences:
        """Cuts where an episode starts (time, env), and every ``longest`` steps from there."""
        steps, num_envs = start.shape
        pieces = []
        for env in range(num_envs):
            cuts = [0, *(np.flatnonzero(start[1:, env]) + 1).tolist(), steps]
            for begin, end in pairwise(cuts):
                stride = longest or end - begin
                pieces += [(env, first, min(stride, end - first)) for first in range(begin, end, stride)]
        return cls(*np.array(pieces, np.int64).T)

    def split(self, count: int, rng: np.random.Generator) -> list[Index]:
        """The indices of all sequences in a new order, in at most ``count`` parts of about equally many steps."""
        order = rng.permutation(len(self.length))
        lengths = self.length[order]
        middle = np.cumsum(lengths) - lengths / 2
        part = (middle * count / lengths.sum()).astype(np.int64)
        return [order[part == k] for k in range(count) if (part == k).any()]

    def pad(self, chosen: Index, num_envs: int) -> PaddedSequences:
        """Some of the sequences side by side, as long as the longest of them."""
        env, begin, length = self.env[chosen], self.begin[chosen], self.length[chosen]
        time = np.arange(length.max())[:, None]
        real = time < length
        steps = (begin + np.where(real, time, 0)) * num_envs + env
        return PaddedSequences(steps, np.flatnonzero(real))


class PaddedSequences(NamedTuple):
    """Which step goes where. Padding follows a sequence's end and repeats its first step; nobody reads what comes of it."""

    steps: Index  # (time, sequence)
    real: Index  # (step,) the places in ``steps``, flattened, that are no padding
