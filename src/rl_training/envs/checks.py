"""Checks what environments return before anything of it is used: the first wrong value is a fault that names it."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rl_training.envs.workers import Observed
from rl_training.errors import shown
from rl_training.types import Array, ObservationLeaf, SpaceSpec

#: observations and rewards are stored in single precision
LARGEST = float(np.finfo(np.float32).max)
#: kinds of numpy's types that are numbers: boolean, signed, unsigned, floating
NUMBERS = frozenset("biuf")


class ObservationOutsideSpace(UserWarning):
    """An environment's observation is outside its observation space."""


class Receiver:
    """Stores observations and masks in the rows of a batch, if they are what the spaces say."""

    def __init__(self, spec: SpaceSpec) -> None:
        leaf = spec.observation.only
        self._encode, self._leaf, self._raw_shape = spec.observation.encode, leaf, leaf.raw_shape
        self._plain = leaf.shape == leaf.raw_shape and leaf.kind != "one_hot"
        self._usual = np.dtype(leaf.dtype) if leaf.kind != "one_hot" else np.dtype(np.int64)
        self._unmasked = spec.action.kind == "discrete" and not spec.action.masked

    def store(self, out: Array, masks: NDArray[np.bool_] | None, i: int, observed: Observed) -> str | None:
        """Stores what an environment observed in row i; returns what is wrong with it, if anything."""
        raw, mask = observed
        try:
            if type(raw) is not np.ndarray:
                raw = np.asarray(raw)
            if raw.shape != self._raw_shape:
                return f"the observation has shape {raw.shape}, but the space has {self._raw_shape}"
            if raw.dtype is not self._usual:
                problem = _values_problem(raw, self._leaf)
                if problem is not None:
                    return problem
            out[i] = raw if self._plain else self._encode(raw[None])[0]
        except (IndexError, TypeError, ValueError, OverflowError) as error:
            return f"the observation {shown(raw)} does not fit its space ({error})"
        if mask is not None and self._unmasked:
            return "info has an action_mask after a step but had none after the first reset: it must be in both"
        return None if masks is None else _store_mask(masks, i, mask)


def _values_problem(raw: Array, leaf: ObservationLeaf) -> str | None:
    """Why an array of an unusual type is no observation of this kind: a conversion must not change the values."""
    if raw.dtype.kind not in NUMBERS:
        return f"the observation {shown(raw.tolist())} is not made of numbers"
    if leaf.kind == "vector" or (leaf.kind == "one_hot" and raw.dtype.kind != "f"):
        return None
    low, high = (0, 255) if leaf.kind == "image" else (-np.inf, np.inf)
    wrong = ~((raw >= low) & (raw <= high) & (raw % 1 == 0))
    if not wrong.any():
        return None
    expected = "an image is made of whole numbers from 0 to 255" if leaf.kind == "image" else "the space has whole numbers"
    return f"the observation contains {raw[wrong].flat[0]}, but {expected}"


def _store_mask(masks: NDArray[np.bool_], i: int, mask: Any) -> str | None:
    try:
        given = np.asarray(mask)
    except ValueError:  # rows of different lengths
        return f"the action_mask is {shown(mask)}, but there are {masks.shape[1]} actions"
    if given.shape != masks.shape[1:]:
        return f"the action_mask has shape {given.shape}, but there are {masks.shape[1]} actions"
    kind = given.dtype.kind
    if kind != "b" and not (kind in NUMBERS and ((given == 0) | (given == 1)).all()):
        return f"the action_mask is {shown(given.tolist())}; each entry must be true or false (1 or 0)"
    masks[i] = given
    masks[i] |= not masks[i].any()  # a terminal state may allow no action; its mask is not used
    return None


class Limits:
    """The bounds of packed observations. Values that are not finite are faults; the first finite one outside its bounds gives
    a warning, and from then on only finiteness is checked."""

    def __init__(self, low: Array, high: Array, env_id: str, leaf: ObservationLeaf, rows: int) -> None:
        self._env_id, self._raw_shape = env_id, leaf.raw_shape
        self._low, self._high = self._packed(low, -LARGEST, leaf, rows), self._packed(high, LARGEST, leaf, rows)

    @staticmethod
    def _packed(bound: Array, unbounded: float, leaf: ObservationLeaf, rows: int) -> Array:
        """A bound for every entry of a batch: numpy compares arrays of one shape in half the time of broadcasting."""
        known = np.where(np.isnan(bound), unbounded, bound.astype(np.float64))
        packed = np.clip(known, -LARGEST, LARGEST).reshape(leaf.shape).astype(leaf.dtype)
        return np.repeat(packed[None], rows, axis=0)

    def hold(self, obs: Array) -> bool:
        """Whether all observations of a batch are finite and within the bounds."""
        within = (obs >= self._low) & (obs <= self._high)
        return b"\0" not in within.tobytes()  # as ``all()``, which takes three times as long for a few numbers

    def problem(self, row: Array) -> str | None:
        """Why one observation is a fault. If it is only outside its bounds, there is a warning instead."""
        if not np.isfinite(row).all():
            return f"the observation is not finite: {shown(row.tolist())}"
        low, high = self._low[0], self._high[0]
        outside = np.flatnonzero((row < low) | (row > high))
        if len(outside):
            flat = outside[0]
            entry = list(map(int, np.unravel_index(flat, self._raw_shape))) if self._raw_shape else ""
            warnings.warn(
                f"{self._env_id} returns observations outside its observation_space: entry {entry} is {row.flat[flat]}, but "
                f"its bounds are {low.flat[flat]} and {high.flat[flat]}. They are used as they are; correct the "
                "space or the environment. This warning is not repeated.",
                ObservationOutsideSpace,
                stacklevel=3,
            )
            self.only_finite()
        return None

    def only_finite(self) -> None:
        """Checks no bounds any more."""
        if self._low.dtype == np.uint8:
            self._low, self._high = np.zeros_like(self._low), np.full_like(self._high, 255)
        else:
            self._low, self._high = np.full_like(self._low, -LARGEST), np.full_like(self._high, LARGEST)


def reward_problem(reward: Any) -> str | None:
    """Why this is no reward, if it is not."""
    try:
        return None if abs(reward) <= LARGEST else f"the reward is {shown(reward)}, not a finite float32 number"
    except (TypeError, ValueError):
        return f"the reward is {shown(reward)}, not a number"


def flag_problem(name: str, value: Any) -> str | None:
    """Why ``terminated`` or ``truncated`` is neither true nor false, if it is not: text, NaN and others would all be true."""
    if value is True or value is False:
        return None
    flag = np.asarray(value)
    if flag.size == 1 and flag.dtype.kind in NUMBERS and flag.item() in (0, 1):
        return None
    return f"{name} is {shown(value)}, which is neither true nor false"
