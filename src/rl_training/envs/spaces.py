"""Converts Gymnasium spaces to the specs that networks and buffers are built from."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from rl_training.errors import SpaceError, shown
from rl_training.types import ActionSpec, Array, LeafPath, ObservationLeaf, ObservationSpec, SpaceSpec, path_name

#: Several choices become one discrete action over their product, for algorithms that need one, up to this many actions.
MOST_JOINT_ACTIONS = 4096
#: A whole number in an integer Box is a choice between at most this many values.
MOST_VALUES = 4096
#: Arrays that could be images or not (bytes without a channel axis, fractions from 0 to 1) are images if both sides have this
#: many pixels. It is the smallest size that the default convolutions take.
LEAST_SIDE = 36


def describe_spaces(env: gym.Env[Any, Any] | gym.vector.VectorEnv[Any, Any, Any], env_id: str) -> SpaceSpec:
    """The specs of an environment, or a ``SpaceError`` that names the unsupported space."""
    prefix = "single_" if isinstance(env, gym.vector.VectorEnv) else ""
    found = []
    for name in ("observation_space", "action_space"):
        space = getattr(env, prefix + name, None)
        if not isinstance(space, spaces.Space):
            what = "no" if space is None else f"a {type(space).__name__} as its"
            raise SpaceError(f"{env_id} has {what} {name}; set it to a gymnasium space in __init__")
        if 0 in (space.shape or ()):
            raise SpaceError(f"{env_id} has an empty {name} (its shape is {space.shape}), so there is nothing to learn from")
        found.append(space)
    return SpaceSpec(_describe_observation(found[0], env_id), _describe_action(found[1], env_id))


def joinable(action: ActionSpec) -> bool:
    """Whether several choices can be one discrete action."""
    return action.kind == "multi_discrete" and math.prod(action.sizes) <= MOST_JOINT_ACTIONS


def joint_actions(spec: SpaceSpec, env_id: str, algorithm: str) -> SpaceSpec:
    """The specs with several choices as one discrete action, for an algorithm that takes only those."""
    action = spec.action
    if action.kind != "multi_discrete":
        return spec
    if not joinable(action):
        raise SpaceError(
            f"{algorithm} takes several choices as one action over their product, up to {MOST_JOINT_ACTIONS} actions, but "
            f"those of {env_id} (with {', '.join(map(str, action.sizes))} values) have {math.prod(action.sizes)} "
            "combinations; use ppo, or another algorithm that rl-training list shows with multi_discrete"
        )
    return SpaceSpec(spec.observation, action.joint)


def leaf_spaces(space: spaces.Space[Any], path: LeafPath = ()) -> Iterator[tuple[LeafPath, spaces.Space[Any]]]:
    """The entries of nested Dict and Tuple spaces with their paths; a plain space is its own only entry."""
    if isinstance(space, spaces.Dict):
        inner: Any = space.spaces.items()
    elif isinstance(space, spaces.Tuple):
        inner = enumerate(space.spaces)
    else:
        yield path, space
        return
    for key, entry in inner:
        yield from leaf_spaces(entry, (*path, key))


def observation_bounds(space: spaces.Space[Any]) -> list[tuple[Array, Array] | None]:
    """For each entry, the bounds that observations have to be checked against; None if every value that can be stored is
    within them."""
    return [_bounds(entry) for _, entry in leaf_spaces(space)]


def _bounds(space: spaces.Space[Any]) -> tuple[Array, Array] | None:
    if isinstance(space, spaces.MultiBinary):
        return np.zeros(space.shape), np.ones(space.shape)
    if not isinstance(space, spaces.Box):
        return None  # whole numbers are checked when they become one-hot
    return None if _all_bytes(space) and _image_shape(space) is not None else (space.low, space.high)


def _all_bytes(space: spaces.Box) -> bool:
    return space.dtype == np.uint8 and bool((space.low == 0).all() and (space.high == 255).all())


def _describe_observation(space: spaces.Space[Any], env_id: str) -> ObservationSpec:
    entries = list(leaf_spaces(space))
    leaves = [_describe_leaf(entry, path) for path, entry in entries]
    for (path, entry), leaf in zip(entries, leaves, strict=True):
        if leaf is None or 0 in leaf.raw_shape:
            raise SpaceError(_refusal(entry, path, space, env_id))
    if not leaves:
        raise SpaceError(f"{env_id} has an empty observation_space ({shown(space)}), so there is nothing to learn from")
    return ObservationSpec(tuple(leaf for leaf in leaves if leaf is not None))


def _refusal(entry: spaces.Space[Any], path: LeafPath, space: spaces.Space[Any], env_id: str) -> str:
    """Why an entry cannot be used, and how to do without it."""
    if not path:
        return (
            f"{env_id} has {type(entry).__name__} observations, which no algorithm takes; wrap the environment so that they "
            "are arrays of numbers, or a Dict or Tuple of those (for a Text, the wrapper flatten_observation does that)"
        )
    fitting = [path_name(other) for other, inner in leaf_spaces(space) if _describe_leaf(inner, other) is not None]
    what = "is empty" if 0 in (entry.shape or ()) else f"is a {type(entry).__name__} space, which no algorithm takes"
    return (
        f"the entry '{path_name(path)}' of the observations of {env_id} {what}; leave it out with the wrapper "
        f"{{name: select_observation, keys: [{', '.join(name for name in fitting if name != path_name(path))}]}}"
    )


def _describe_leaf(space: spaces.Space[Any], path: LeafPath) -> ObservationLeaf | None:
    """The leaf for an entry; None if it is not made of numbers."""
    if isinstance(space, spaces.Box):
        image = _image_shape(space)
        if image is not None:
            return ObservationLeaf("image", image, space.shape, path=path, floating=space.dtype != np.uint8)
        return ObservationLeaf("vector", (math.prod(space.shape),), space.shape, path=path)
    if isinstance(space, spaces.Discrete):
        return ObservationLeaf("one_hot", (int(space.n),), (), (int(space.n),), (int(space.start),), path)
    if isinstance(space, spaces.MultiDiscrete):
        sizes = tuple(int(size) for size in space.nvec.reshape(-1))
        starts = tuple(int(start) for start in space.start.reshape(-1))
        return ObservationLeaf("one_hot", (sum(sizes),), space.nvec.shape, sizes, starts, path)
    if isinstance(space, spaces.MultiBinary):
        return ObservationLeaf("vector", (math.prod(space.shape),), space.shape, path=path)
    return None


class ChannelsFirstBox(spaces.Box):
    """Images that are known to have their channels first, however narrow they are. For others the shape has to decide."""


def _image_shape(space: spaces.Box) -> tuple[int, ...] | None:
    """The channel-first shape of a Box that holds images: bytes with three axes, bytes with two long axes, or fractions from
    0 to 1 with two long axes and perhaps one for channels. None for any other Box."""
    shape = space.shape
    if isinstance(space, ChannelsFirstBox):
        return shape
    if space.dtype == np.uint8:
        if len(shape) == 3:
            return _channels_first(shape)
        return (1, *shape) if len(shape) == 2 and min(shape) >= LEAST_SIDE and _all_bytes(space) else None
    if space.dtype.kind == "f" and len(shape) in (2, 3) and (space.low == 0).all() and (space.high == 1).all():
        channels, *sides = _channels_first(shape) if len(shape) == 3 else (1, *shape)
        return (channels, *sides) if channels < min(sides) and min(sides) >= LEAST_SIDE else None
    return None


def _channels_first(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape with its channels first. If the last axis is shorter than both others, it holds the channels."""
    return (shape[2], *shape[:2]) if shape[2] < min(shape[:2]) else shape


def _describe_action(space: spaces.Space[Any], env_id: str) -> ActionSpec:
    if isinstance(space, spaces.Discrete):
        return ActionSpec("discrete", count=int(space.n), start=int(space.start))
    if isinstance(space, spaces.MultiDiscrete):
        return _choices(space.nvec, space.start, space.dtype)
    if isinstance(space, spaces.MultiBinary):
        return _choices(np.full(space.shape, 2), np.zeros(space.shape, np.int64), space.dtype)
    if isinstance(space, spaces.Box):
        if space.dtype.kind != "f":
            return _whole_numbers(space, env_id)
        low, high = space.low.reshape(-1), space.high.reshape(-1)
        bounded = np.isfinite(low).all() and np.isfinite(high).all()
        return ActionSpec(
            "continuous" if bounded else "unbounded",
            low=tuple(low.tolist()),
            high=tuple(high.tolist()),
            raw_shape=space.shape,
        )
    raise SpaceError(
        f"{env_id} has {type(space).__name__} actions, which no algorithm takes; wrap the environment so that its actions "
        "are Discrete, MultiDiscrete, MultiBinary or a Box"
    )


def _choices(sizes: Array, starts: Array, dtype: Any) -> ActionSpec:
    flat = tuple(int(size) for size in sizes.reshape(-1))
    return ActionSpec(
        "multi_discrete",
        count=sum(flat),
        raw_shape=sizes.shape,
        sizes=flat,
        starts=tuple(int(start) for start in starts.reshape(-1)),
        raw_dtype=np.dtype(dtype).name,
    )


def _whole_numbers(space: spaces.Box, env_id: str) -> ActionSpec:
    """A Box of whole numbers as one choice for each of them."""
    low, high = space.low.astype(object), space.high.astype(object)  # Python's integers, which cannot overflow
    sizes = high - low + 1
    if max(sizes.reshape(-1)) > MOST_VALUES:
        raise SpaceError(
            f"{env_id} has a Box of whole numbers ({space.dtype}) with up to {max(sizes.reshape(-1))} values each as its "
            f"actions, but a choice may have at most {MOST_VALUES}; make the action space Discrete or MultiDiscrete, or a "
            "Box of float32 whose values the environment rounds"
        )
    return _choices(sizes, low, space.dtype)
