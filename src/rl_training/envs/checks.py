"""Checks what environments return before it is used. The first wrong value is a fault that names it."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from rl_training.envs.spaces import observation_bounds
from rl_training.envs.workers import Observed
from rl_training.errors import shown
from rl_training.rng import TRAINING_EPISODES
from rl_training.types import ActionSpec, Array, ObservationLeaf, ObservationSpec, SpaceSpec, entry_at, path_name

#: observations and rewards are stored in single precision
LARGEST = float(np.finfo(np.float32).max)
#: kinds of numpy's types that are numbers: boolean, signed, unsigned, floating
NUMBERS = frozenset("biuf")


class ObservationOutsideSpace(UserWarning):
    """An environment's observation is outside its observation space."""


class Receiver:
    """Stores observations that are one array, and masks, in the rows of a batch, if they fit the spaces."""

    def __init__(self, leaf: ObservationLeaf, action: ActionSpec) -> None:
        self._encode, self._leaf, self._raw_shape = leaf.encode, leaf, leaf.raw_shape
        self._plain = leaf.shape == leaf.raw_shape and leaf.kind != "one_hot"
        self._usual = np.dtype(leaf.dtype) if leaf.kind != "one_hot" else np.dtype(np.int64)
        self._unmasked = not action.low and not action.masked
        self.store_mask = functools.partial(_store_choices, action) if action.sizes else _store_mask

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
        return None if masks is None else self.store_mask(masks, i, mask)


class TreeReceiver:
    """Stores observations that are a Dict or a Tuple: each entry goes to its place in the packed row."""

    def __init__(self, spec: SpaceSpec) -> None:
        observation = spec.observation
        self._mixed = observation.kind == "mixed"
        places: Sequence[Any] = [...] if observation.kind == "image" else observation.places
        self._parts = [
            (leaf, place, Receiver(leaf, spec.action)) for leaf, place in zip(observation.leaves, places, strict=True)
        ]

    def store(self, out: Array, masks: NDArray[np.bool_] | None, i: int, observed: Observed) -> str | None:
        """Stores what an environment observed in row i; returns what is wrong with it, if anything."""
        raw, mask = observed
        for k, (leaf, place, receiver) in enumerate(self._parts):
            try:
                entry = entry_at(raw, leaf.path)
            except (KeyError, IndexError, TypeError):
                return f"the observation has no entry '{path_name(leaf.path)}': {shown(raw)}"
            slot = np.zeros((1, *leaf.shape), leaf.dtype)
            problem = receiver.store(slot, None, 0, (entry, mask if k == 0 else None))
            if problem is not None:
                return problem.replace("the observation", f"the observation's entry '{path_name(leaf.path)}'", 1)
            out[i][place] = slot.view(np.uint8).reshape(-1) if self._mixed else slot[0]
        return None if masks is None else receiver.store_mask(masks, i, mask)


def make_receiver(spec: SpaceSpec) -> Receiver | TreeReceiver:
    """The receiver for the observations and masks of these spaces."""
    return Receiver(spec.observation.leaves[0], spec.action) if spec.observation.plain else TreeReceiver(spec)


def _values_problem(raw: Array, leaf: ObservationLeaf) -> str | None:
    """What is wrong with an observation of an unexpected dtype, if anything: converting it must not change its values."""
    if raw.dtype.kind not in NUMBERS:
        return f"the observation {shown(raw.tolist())} is not made of numbers"
    if leaf.kind == "vector" or (leaf.kind == "one_hot" and raw.dtype.kind != "f"):
        return None
    if leaf.floating:
        return None
    low, high = (0, 255) if leaf.kind == "image" else (-np.inf, np.inf)
    wrong = ~((raw >= low) & (raw <= high) & (raw % 1 == 0))
    if not wrong.any():
        return None
    expected = "an image is made of whole numbers from 0 to 255" if leaf.kind == "image" else "the space has whole numbers"
    return f"the observation contains {raw[wrong].flat[0]}, but {expected}"


def _store_choices(action: ActionSpec, masks: NDArray[np.bool_], i: int, mask: Any) -> str | None:
    """A mask of several choices: all of their values in a row, or one array for each choice."""
    sizes = action.sizes
    parts = [np.asarray(part).reshape(-1) for part in mask] if isinstance(mask, (tuple, list)) else []
    if parts and [len(part) for part in parts] == list(sizes):
        mask = np.concatenate(parts)
    row = np.zeros((1, sum(sizes)), np.bool_)
    problem = _store_mask(row, 0, mask)
    if problem is not None:
        return problem.replace("actions", f"values of the {len(sizes)} choices")
    for part in np.split(row[0], np.cumsum(sizes)[:-1]):
        part |= not part.any()  # a view: it changes the row
    masks[i] = action.mask_of(row[0])
    return None


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
    """The bounds of one entry of packed observations. Values that are not finite are faults; the first finite one outside its
    bounds gives a warning, and from then on only finiteness is checked."""

    def __init__(self, low: Array, high: Array, env_id: str, leaf: ObservationLeaf, rows: int) -> None:
        self._env_id, self._leaf = env_id, leaf
        self._name = f"the observation's entry '{path_name(leaf.path)}'" if leaf.path else "the observation"
        self._set(self._packed(low, -LARGEST, leaf, rows), self._packed(high, LARGEST, leaf, rows))

    def _set(self, low: Array, high: Array) -> None:
        self._low, self._high = low, high
        self._symmetric = low.dtype.kind == "f" and bool((low == -high).all())

    @staticmethod
    def _packed(bound: Array, unbounded: float, leaf: ObservationLeaf, rows: int) -> Array:
        """A bound for every entry of a batch: numpy compares arrays of one shape in half the time of broadcasting."""
        known = np.where(np.isnan(bound), unbounded, bound.astype(np.float64))
        return np.repeat(leaf.encode(np.clip(known, -LARGEST, LARGEST)[None]), rows, axis=0)

    def hold(self, obs: Array) -> bool:
        """Whether all observations of a batch are finite and within the bounds."""
        within = np.abs(obs) <= self._high if self._symmetric else (obs >= self._low) & (obs <= self._high)
        return b"\0" not in within.tobytes()  # as ``all()``, which takes three times as long for a few numbers

    def problem(self, row: Array) -> str | None:
        """Why one observation is a fault. If it is only outside its bounds, there is a warning instead."""
        if not np.isfinite(row).all():
            return f"{self._name} is not finite: {shown(row.tolist())}"
        low, high = self._low[0], self._high[0]
        outside = np.flatnonzero((row < low) | (row > high))
        if len(outside):
            flat = outside[0]
            warnings.warn(
                f"{self._env_id} returns observations outside its observation_space: {self._entry(flat)} is "
                f"{row.flat[flat]}, but its bounds are {low.flat[flat]} and {high.flat[flat]}. They are used as they are; "
                "correct the space or the environment. This warning is not repeated.",
                ObservationOutsideSpace,
                stacklevel=4,
            )
            self.only_finite()
        return None

    def _entry(self, flat: int) -> str:
        """An entry of a packed leaf as the environment numbers it."""
        leaf = self._leaf
        index = list(map(int, np.unravel_index(flat, leaf.shape if leaf.channels_last else leaf.raw_shape or (1,))))
        if leaf.channels_last:
            index = [*index[1:], index[0]]
        name = f"'{path_name(leaf.path)}' " if leaf.path else ""
        return f"entry {name}{index if leaf.raw_shape else ''}".rstrip()

    def only_finite(self) -> None:
        """Checks no bounds any more."""
        if self._low.dtype == np.uint8:
            self._set(np.zeros_like(self._low), np.full_like(self._high, 255))
        else:
            self._set(np.full_like(self._low, -LARGEST), np.full_like(self._high, LARGEST))


class TreeLimits:
    """The bounds of the entries of a Dict or Tuple observation, each checked by itself."""

    def __init__(self, spec: ObservationSpec, limits: Sequence[Limits | None]) -> None:
        self._spec, self._limits = spec, limits

    def _checked(self, obs: Array) -> list[tuple[Limits, Array]]:
        pairs = zip(self._limits, self._spec.entries(obs), strict=True)
        return [(limits, entry) for limits, entry in pairs if limits is not None]

    def hold(self, obs: Array) -> bool:
        return all(limits.hold(entry) for limits, entry in self._checked(obs))

    def problem(self, row: Array) -> str | None:
        found = (limits.problem(entry[0]) for limits, entry in self._checked(row[None]))
        return next((problem for problem in found if problem is not None), None)

    def only_finite(self) -> None:
        for limits in self._limits:
            if limits is not None:
                limits.only_finite()


def make_limits(
    space: spaces.Space[Any], spec: ObservationSpec, env_id: str, rows: int, stream: str
) -> Limits | TreeLimits | None:
    """The checks of batches of observations; None if every value that can be stored is within the bounds. Only the
    pool that collects for training warns about values outside them, so that a run warns once."""
    limits = _make_limits(space, spec, env_id, rows)
    if limits is not None and stream != TRAINING_EPISODES:
        limits.only_finite()
    return limits


def _make_limits(space: spaces.Space[Any], spec: ObservationSpec, env_id: str, rows: int) -> Limits | TreeLimits | None:
    limits = [
        None if bounds is None else Limits(*bounds, env_id, leaf, rows)
        for bounds, leaf in zip(observation_bounds(space), spec.leaves, strict=True)
    ]
    if spec.plain:
        return limits[0]
    return TreeLimits(spec, limits) if any(limit is not None for limit in limits) else None


def reward_problem(reward: Any) -> str | None:
    """What is wrong with a reward, if anything."""
    try:
        return None if abs(reward) <= LARGEST else f"the reward is {shown(reward)}, not a finite float32 number"
    except (TypeError, ValueError):
        return f"the reward is {shown(reward)}, not a number"


def flag_problem(name: str, value: Any) -> str | None:
    """What is wrong with ``terminated`` or ``truncated``, if anything: ``bool()`` would take text and NaN for true."""
    if value is True or value is False:
        return None
    flag = np.asarray(value)
    if flag.size == 1 and flag.dtype.kind in NUMBERS and flag.item() in (0, 1):
        return None
    return f"{name} is {shown(value)}, which is neither true nor false"


def like(saved: Array, present: Array) -> Array:
    """Saved observations, if they have the type and the shape of those of this environment."""
    if (saved.dtype, saved.shape) != (present.dtype, present.shape):
        found, expected = (f"{array.dtype} of shape {array.shape}" for array in (saved, present))
        raise ValueError(f"the saved observations are {found}, but those of the environment are {expected}")
    return saved
