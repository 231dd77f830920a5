"""Cuts a rollout into sequences that never cross an episode boundary, and splits these into minibatches.

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
    """Parts of a rollout, each within one episode of one environment; arrays (sequence,)."""

    env: Index
    begin: Index
    length: Index

    @classmethod
    def of(cls, start: Array, longest: int | None = None) -> Sequences:
        """Cuts where an episode starts, (time, env), and then every ``longest`` steps."""
        steps, num_envs = start.shape
        pieces = []
        for env in range(num_envs):
            cuts = [0, *(np.flatnonzero(start[1:, env]) + 1).tolist(), steps]
            for begin, end in pairwise(cuts):
                stride = longest or end - begin
                pieces += [(env, first, min(stride, end - first)) for first in range(begin, end, stride)]
        return cls(*np.array(pieces, np.int64).T)

    def split(self, count: int, rng: np.random.Generator) -> list[Index]:
        """The indices of all sequences in random order, in at most ``count`` parts with about the same number of steps."""
        order = rng.permutation(len(self.length))
        lengths = self.length[order]
        middle = np.cumsum(lengths) - lengths / 2
        part = (middle * count / lengths.sum()).astype(np.int64)
        return [order[part == k] for k in range(count) if (part == k).any()]

    def pad(self, chosen: Index, num_envs: int) -> PaddedSequences:
        """Pads the chosen sequences to the length of the longest of them."""
        env, begin, length = self.env[chosen], self.begin[chosen], self.length[chosen]
        time = np.arange(length.max())[:, None]
        real = time < length
        steps = (begin + np.where(real, time, 0)) * num_envs + env
        return PaddedSequences(steps, np.flatnonzero(real))


class PaddedSequences(NamedTuple):
    """The step at each place. Padding after the end of a sequence repeats its first step; callers must ignore its results."""

    steps: Index  # (time, sequence)
    real: Index  # (step,) positions in the flattened ``steps`` that are not padding
