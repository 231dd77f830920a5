"""The data types that the parts of the library exchange. This module does not import torch."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from torch import Tensor

Array = NDArray[Any]
#: The state that a policy carries between steps; ``()`` for a feed-forward policy.
Carry = tuple[Any, ...]
#: Nested dicts and lists of arrays, tensors and plain JSON values: what every ``state_dict`` returns.
State = dict[str, Any]


def reset_rows(carry: Carry, rows: NDArray[np.bool_]) -> Carry:
    """The carry with these rows (env,) reset to the start of an episode, which is all zeros."""
    if not carry or not rows.any():
        return carry
    fresh = tuple(array.copy() for array in carry)
    for array in fresh:
        array[rows] = 0
    return fresh


class Step(NamedTuple):
    """One step of N environments. ``next_obs`` is the true next observation; if the episode ended, its final one."""

    obs: Array  # (env, ...)
    action: Array  # (env, ...) as the policy gave it, before scaling to the environment
    reward: NDArray[np.float32]  # (env,)
    next_obs: Array  # (env, ...)
    terminated: NDArray[np.bool_]  # (env,)
    truncated: NDArray[np.bool_]  # (env,)
    next_action_mask: NDArray[np.bool_] | None = None  # (env, action): the actions allowed at next_obs

    @property
    def ended(self) -> NDArray[np.bool_]:
        return self.terminated | self.truncated


class PolicyOutput(NamedTuple):
    """What ``Policy.act`` returns: actions, the carry after them, and extra arrays for the recorder."""

    action: Array
    carry: Carry
    extras: Mapping[str, Array]


class Transitions(NamedTuple):
    """Items of one-step or n-step replay, ready to store. A target is always ``reward + discount * value(next_obs)``."""

    obs: Array
    action: Array
    reward: NDArray[np.float32]
    next_obs: Array
    discount: NDArray[np.float32]  # gamma^k * (1 - terminated)
    next_action_mask: NDArray[np.bool_] | None = None


class TransitionBatch(NamedTuple):
    """Sampled transitions as tensors."""

    obs: Tensor
    action: Tensor
    reward: Tensor
    next_obs: Tensor
    discount: Tensor
    next_action_mask: Tensor | None = None
    weights: Tensor | None = None  # importance weights of prioritised replay
    indices: NDArray[np.int64] | None = None  # of the items, for updating their priorities


class SequenceBatch(NamedTuple):
    """Sampled sequences as tensors, time first. They never cross an episode boundary; padding follows the end of a sequence.

    A target is always ``reward + discount * value(obs[burn_in + bootstrap])``, with the recurrent state at that row.
    """

    obs: Tensor  # (burn_in + time + n, batch, ...): the burn-in, the sequence, and n more that its targets need
    action: Tensor  # (time, batch)
    reward: Tensor  # (time, batch) summed over up to n steps
    discount: Tensor  # (time, batch) gamma^k * (1 - terminated)
    bootstrap: Tensor  # (time, batch) t + k, where k is the number of rewards summed
    mask: Tensor  # (time, batch) 1 for real steps, 0 for padding
    episode_start: Tensor  # (time, batch) whether an episode starts there
    state: tuple[Tensor, ...]  # (batch, ...) each: the state of acting before the first row
    previous: Tensor | None = None  # (burn_in + time + n, batch, action + 1) one-hot previous action, its reward
    action_mask: Tensor | None = None  # (time + n, batch, action) the allowed actions
    burn_in: int = 0  # rows of ``obs`` that precede the sequences
    has_burn_in: Tensor | None = None  # (batch,) False: the first sequence of an episode; its burn-in rows are padding
    weights: Tensor | None = None  # (batch,) importance weights of prioritised replay
    indices: NDArray[np.int64] | None = None  # of the items, for updating their priorities


@dataclass(frozen=True)
class UpdateResult:
    """The results of one gradient update. Samples stay tensors; means are only computed when ``metrics`` is read."""

    samples: Mapping[str, Tensor]
    priorities: Tensor | None = None  # (batch,) new priorities for prioritised replay
    share: Tensor | None = None  # weight of each sample in a mean; None: equal weights

    @cached_property
    def metrics(self) -> dict[str, float]:
        share = self.share
        if share is None:
            return {name: float(value.mean()) for name, value in self.samples.items()}
        return {name: float((value * share).sum()) for name, value in self.samples.items()}


#: The path of an entry in a Dict or Tuple observation; () for a plain observation.
LeafPath = tuple[str | int, ...]


@dataclass(frozen=True)
class ObservationLeaf:
    """One array of an observation as a network sees it.

    ``vector``: float32 numbers. ``one_hot``: whole numbers with first values ``starts`` and ``sizes`` possible values, as
    one-hot blocks. ``image``: channel-first uint8. ``raw_shape`` is the shape in the environment.
    """

    kind: Literal["vector", "one_hot", "image"]
    shape: tuple[int, ...]
    raw_shape: tuple[int, ...]
    sizes: tuple[int, ...] = ()
    starts: tuple[int, ...] = ()
    path: LeafPath = ()

    @property
    def dtype(self) -> type[np.float32] | type[np.uint8]:
        return np.uint8 if self.kind == "image" else np.float32

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize

    def encode(self, raw: Any) -> Array:
        """Raw observations (batch, *raw_shape) -> (batch, *shape)."""
        batch = np.asarray(raw)
        if self.kind != "one_hot":
            return np.ascontiguousarray(batch, dtype=self.dtype).reshape(len(batch), *self.shape)
        indices = batch.reshape(len(batch), -1).astype(np.int64) - np.asarray(self.starts)
        if (indices < 0).any():
            raise IndexError(f"{batch.tolist()} is below the first value")
        blocks = [np.eye(size, dtype=np.float32)[indices[:, i]] for i, size in enumerate(self.sizes)]
        return np.concatenate(blocks, axis=1)


@dataclass(frozen=True)
class ObservationSpec:
    """An observation as a tree of leaves, packed into one array so that every buffer can pass it on unchanged.

    Leaves without images are concatenated into one float32 vector (kind "vector"). A single image stays an image (kind
    "image"). Images with other leaves become one row of bytes (kind "mixed"), which ``unpack`` separates again.
    """

    leaves: tuple[ObservationLeaf, ...]

    @classmethod
    def vector(cls, *raw_shape: int) -> ObservationSpec:
        """A plain array of numbers."""
        return cls((ObservationLeaf("vector", (math.prod(raw_shape),), raw_shape),))

    @classmethod
    def image(cls, channels: int, height: int, width: int) -> ObservationSpec:
        """A plain channel-first image."""
        shape = (channels, height, width)
        return cls((ObservationLeaf("image", shape, shape),))

    @classmethod
    def one_hot(cls, sizes: Sequence[int], starts: Sequence[int], raw_shape: tuple[int, ...]) -> ObservationSpec:
        """A plain array of whole numbers, each with its own range."""
        return cls((ObservationLeaf("one_hot", (sum(sizes),), raw_shape, tuple(sizes), tuple(starts)),))

    @cached_property
    def kind(self) -> Literal["vector", "image", "mixed"]:
        if all(leaf.kind != "image" for leaf in self.leaves):
            return "vector"
        return "image" if len(self.leaves) == 1 else "mixed"

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """The shape of a packed observation."""
        if self.kind == "vector":
            return (sum(leaf.shape[0] for leaf in self.leaves),)
        return self.leaves[0].shape if self.kind == "image" else (sum(leaf.nbytes for leaf in self.leaves),)

    @property
    def dtype(self) -> type[np.float32] | type[np.uint8]:
        return np.float32 if self.kind == "vector" else np.uint8

    @property
    def images(self) -> tuple[ObservationLeaf, ...]:
        return tuple(leaf for leaf in self.leaves if leaf.kind == "image")

    @property
    def only(self) -> ObservationLeaf:
        """The leaf of a plain observation."""
        (leaf,) = self.leaves
        return leaf

    def encode(self, raw: Any) -> Array:
        """Raw observations (batch first in every leaf, nested as the space is) as packed ones (batch, *shape)."""
        encoded = [leaf.encode(entry_at(raw, leaf.path)) for leaf in self.leaves]
        if len(encoded) == 1:
            return encoded[0]
        if self.kind == "mixed":
            encoded = [array.reshape(len(array), -1).view(np.uint8) for array in encoded]
        return np.concatenate(encoded, axis=1)


def entry_at(nested: Any, path: LeafPath) -> Any:
    """The entry of nested dicts and tuples at this path."""
    for key in path:
        nested = nested[key]
    return nested


@dataclass(frozen=True)
class ActionSpec:
    """An action as a policy gives it: an index from 0, or a vector in [-1, 1]."""

    kind: str  # "discrete" | "continuous"
    count: int = 0  # discrete: the number of actions
    start: int = 0  # discrete: the environment's first action
    masked: bool = False  # discrete: the environment restricts the allowed actions
    low: tuple[float, ...] = ()  # continuous: bounds, flat
    high: tuple[float, ...] = ()
    raw_shape: tuple[int, ...] = ()

    @property
    def shape(self) -> tuple[int, ...]:
        return () if self.kind == "discrete" else (len(self.low),)

    @property
    def dtype(self) -> type[np.int64] | type[np.float32]:
        return np.int64 if self.kind == "discrete" else np.float32

    def to_env(self, action: Array) -> Array:
        """Converts a batch of policy actions to environment actions."""
        if self.kind == "discrete":
            return action + self.start if self.start else action
        low, high = np.asarray(self.low, np.float32), np.asarray(self.high, np.float32)
        scaled = low + (np.clip(action, -1.0, 1.0) + 1.0) * 0.5 * (high - low)
        scaled = np.minimum(scaled, high).astype(np.float32)  # with asymmetric bounds, the sum can round to above them
        if self._double_bounds is not None:
            scaled = scaled.astype(np.float64).clip(*self._double_bounds)
        return scaled.reshape(len(action), *self.raw_shape)

    @cached_property
    def _double_bounds(self) -> tuple[Array, Array] | None:
        """Bounds that single precision cannot hold, such as 0.1 in float64, where it would exceed them by rounding."""
        bounds = np.asarray(self.low), np.asarray(self.high)
        return None if all(np.array_equal(bound, bound.astype(np.float32)) for bound in bounds) else bounds

    def from_env(self, action: Array) -> Array:
        """The inverse of ``to_env``: converts environment actions to policy actions."""
        if self.kind == "discrete":
            return action - self.start
        low, high = np.asarray(self.low, np.float32), np.asarray(self.high, np.float32)
        return ((action.reshape(len(action), -1) - low) / (high - low) * 2.0 - 1.0).astype(np.float32)


@dataclass(frozen=True)
class SpaceSpec:
    """The observation and the action space: all that a network needs to know about an environment."""

    observation: ObservationSpec
    action: ActionSpec

    def to_json(self) -> dict[str, Any]:
        return {"observation": [asdict(leaf) for leaf in self.observation.leaves], "action": asdict(self.action)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> SpaceSpec:
        def tuples(fields: Mapping[str, Any]) -> dict[str, Any]:
            return {key: tuple(value) if isinstance(value, list) else value for key, value in fields.items()}

        leaves = tuple(ObservationLeaf(**tuples(leaf)) for leaf in data["observation"])
        return cls(ObservationSpec(leaves), ActionSpec(**tuples(data["action"])))
