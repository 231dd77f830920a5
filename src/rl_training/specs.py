"""The spaces of an environment as networks and buffers see them. This module does not import torch."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
#: The path of an entry in a Dict or Tuple observation; () for a plain observation.
LeafPath = tuple[str | int, ...]


#: Kinds of observation ("mixed": images and other entries) and of action.
ObservationKind = Literal["vector", "image", "mixed"]
ActionKind = Literal["discrete", "multi_discrete", "continuous", "unbounded"]


@dataclass(frozen=True)
class ObservationLeaf:
    """One array of an observation as a network sees it.

    ``vector``: float32 numbers. ``one_hot``: whole numbers with first values ``starts`` and ``sizes`` possible values, as
    one-hot blocks. ``image``: channel-first uint8, or with ``floating`` float32 in [0, 1]. ``raw_shape`` is the shape in the
    environment; an image whose ``raw_shape`` has three axes in another order than ``shape`` has its channels last there.
    """

    kind: Literal["vector", "one_hot", "image"]
    shape: tuple[int, ...]
    raw_shape: tuple[int, ...]
    sizes: tuple[int, ...] = ()
    starts: tuple[int, ...] = ()
    path: LeafPath = ()
    floating: bool = False

    @property
    def dtype(self) -> type[np.float32] | type[np.uint8]:
        return np.uint8 if self.kind == "image" and not self.floating else np.float32

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize

    @property
    def channels_last(self) -> bool:
        """Whether the environment's images have their channels last."""
        return self.kind == "image" and len(self.raw_shape) == 3 and self.raw_shape != self.shape

    def encode(self, raw: Any) -> Array:
        """Raw observations (batch, *raw_shape) -> (batch, *shape)."""
        batch = np.asarray(raw)
        if self.kind != "one_hot":
            if self.channels_last:
                batch = np.moveaxis(batch, -1, 1)
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
    def kind(self) -> ObservationKind:
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
        return np.uint8 if self.kind == "mixed" else self.leaves[0].dtype

    @property
    def images(self) -> tuple[ObservationLeaf, ...]:
        return tuple(leaf for leaf in self.leaves if leaf.kind == "image")

    def frame_channels(self, stack: int) -> int | None:
        """The channels of one frame, if observations are stacks of frames."""
        return self.shape[0] // stack if self.kind == "image" and stack > 1 else None

    @property
    def vector_size(self) -> int:
        """The length of all vectors and one-hot blocks together."""
        return sum(leaf.shape[0] for leaf in self.leaves if leaf.kind != "image")

    @property
    def plain(self) -> bool:
        """Whether the environment gives a single array, neither a Dict nor a Tuple."""
        return len(self.leaves) == 1 and not self.leaves[0].path

    @cached_property
    def places(self) -> tuple[slice, ...]:
        """Where each leaf is in a packed vector, or in the row of bytes of a mixture."""
        sizes = [leaf.nbytes if self.kind == "mixed" else math.prod(leaf.shape) for leaf in self.leaves]
        ends = np.cumsum(sizes).tolist()
        return tuple(slice(end - size, end) for size, end in zip(sizes, ends, strict=True))

    def encode(self, raw: Any) -> Array:
        """Raw observations (batch first in every leaf, nested as the space is) as packed ones (batch, *shape)."""
        encoded = [leaf.encode(entry_at(raw, leaf.path)) for leaf in self.leaves]
        if len(encoded) == 1:
            return encoded[0]
        if self.kind == "mixed":
            encoded = [array.reshape(len(array), -1).view(np.uint8) for array in encoded]
        return np.concatenate(encoded, axis=1)

    def entries(self, packed: Array) -> list[Array]:
        """The leaves of packed observations, (batch, *shape) each."""
        if len(self.leaves) == 1:
            return [packed]
        parts = [packed[:, place] for place in self.places]
        if self.kind == "mixed":
            parts = [np.ascontiguousarray(part).view(leaf.dtype) for leaf, part in zip(self.leaves, parts, strict=True)]
        return [part.reshape(-1, *leaf.shape) for leaf, part in zip(self.leaves, parts, strict=True)]


def entry_at(nested: Any, path: LeafPath) -> Any:
    """The entry of nested dicts and tuples at this path."""
    for key in path:
        nested = nested[key]
    return nested


def path_name(path: LeafPath) -> str:
    """A path in words, such as 'camera' or 'arm.0'."""
    return ".".join(map(str, path))


@dataclass(frozen=True)
class ActionSpec:
    """An action as a policy gives it.

    ``discrete``: an index from 0; with ``sizes``, one index over the product of several choices. ``multi_discrete``: one
    index from 0 for each choice. ``continuous``: a vector in [-1, 1]. ``unbounded``: a vector of which some numbers have no
    lower or no upper bound; these are passed on as they are, within the bound that they have.
    """

    kind: ActionKind
    count: int = 0  # discrete: the number of actions; multi_discrete: that of all choices together
    start: int = 0  # discrete: the environment's first action
    masked: bool = False  # discrete, multi_discrete: the environment restricts the allowed actions
    low: tuple[float, ...] = ()  # continuous: bounds, flat
    high: tuple[float, ...] = ()
    raw_shape: tuple[int, ...] = ()
    sizes: tuple[int, ...] = ()  # several choices: the number of values of each
    starts: tuple[int, ...] = ()  # several choices: the first value of each in the environment
    raw_dtype: str = "int64"  # several choices: the environment's type

    @property
    def shape(self) -> tuple[int, ...]:
        if self.kind == "discrete":
            return ()
        return (len(self.sizes) if self.kind == "multi_discrete" else len(self.low),)

    @property
    def dtype(self) -> type[np.int64] | type[np.float32]:
        return np.float32 if self.low else np.int64

    @property
    def joint(self) -> ActionSpec:
        """Several choices as one discrete action over their product."""
        return replace(self, kind="discrete", count=math.prod(self.sizes))

    @property
    def masked_count(self) -> int:
        """The length of an action mask; 0 if there are none."""
        return self.count if self.masked else 0

    def mask_of(self, choices: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """The mask of an action from the allowed values of all its choices in a row, or from a mask itself."""
        if not self.sizes or self.kind != "discrete":
            return choices
        by_choice = np.split(choices, np.cumsum(self.sizes)[:-1])
        mask: NDArray[np.bool_] = functools.reduce(np.logical_and.outer, by_choice).reshape(-1)
        return mask

    def to_env(self, action: Array) -> Array:
        """Converts a batch of policy actions to environment actions."""
        if self.sizes:
            choices = np.stack(np.unravel_index(action, self.sizes), axis=1) if self.kind == "discrete" else action
            chosen: Array = (choices + np.asarray(self.starts)).astype(self.raw_dtype)
            return chosen.reshape(len(action), *self.raw_shape)
        if self.kind == "discrete":
            return action + self.start if self.start else action
        low, high = self.scaled_bounds
        scaled: Array = low + (np.clip(action, -1.0, 1.0) + 1.0) * 0.5 * (high - low)
        scaled = np.minimum(scaled, high).astype(np.float32)  # with asymmetric bounds, the sum can round to above them
        if self.kind == "unbounded":
            scaled = np.where(self.has_bounds, scaled, np.clip(action, self.low, self.high)).astype(np.float32)
        if self._double_bounds is not None:
            scaled = scaled.astype(np.float64).clip(*self._double_bounds)
        return scaled.reshape(len(action), *self.raw_shape)

    @cached_property
    def has_bounds(self) -> NDArray[np.bool_]:
        """Which numbers of a vector have both bounds, to which they are scaled."""
        bounded: NDArray[np.bool_] = np.isfinite(self.low) & np.isfinite(self.high)
        return bounded

    @cached_property
    def scaled_bounds(self) -> tuple[Array, Array]:
        """The values that -1 and 1 are scaled to: the bounds, or -1 and 1 themselves where one of them is missing."""
        low, high = np.asarray(self.low, np.float32), np.asarray(self.high, np.float32)
        if self.kind != "unbounded":
            return low, high
        one = np.ones_like(low)
        return np.where(self.has_bounds, low, -one), np.where(self.has_bounds, high, one)

    @cached_property
    def _double_bounds(self) -> tuple[Array, Array] | None:
        """Bounds that single precision cannot hold, such as 0.1 in float64, where it would exceed them by rounding."""
        bounds = np.asarray(self.low), np.asarray(self.high)
        return None if all(np.array_equal(bound, bound.astype(np.float32)) for bound in bounds) else bounds


@dataclass(frozen=True)
class SpaceSpec:
    """The observation and the action space: all that a network needs to know about an environment."""

    observation: ObservationSpec
    action: ActionSpec

    def taken_as(self, recorded: ObservationSpec | None) -> SpaceSpec:
        """The spaces with the observation spec that a checkpoint recorded, if it describes the same arrays."""

        def arrays(spec: ObservationSpec) -> list[tuple[LeafPath, tuple[int, ...]]]:
            return [(leaf.path, leaf.raw_shape) for leaf in spec.leaves]

        if recorded is None or arrays(recorded) != arrays(self.observation):
            return self
        return SpaceSpec(recorded, self.action)

    def to_json(self) -> dict[str, Any]:
        return {"observation": [asdict(leaf) for leaf in self.observation.leaves], "action": asdict(self.action)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> SpaceSpec:
        def tuples(fields: Mapping[str, Any]) -> dict[str, Any]:
            return {key: tuple(value) if isinstance(value, list) else value for key, value in fields.items()}

        leaves = tuple(ObservationLeaf(**tuples(leaf)) for leaf in data["observation"])
        return cls(ObservationSpec(leaves), ActionSpec(**tuples(data["action"])))
