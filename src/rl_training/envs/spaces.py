"""Converts Gymnasium spaces to the specs that networks and buffers are built from."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from rl_training.errors import SpaceError
from rl_training.types import ActionSpec, Array, ObservationSpec, SpaceSpec


def describe_spaces(env: gym.Env[Any, Any], env_id: str) -> SpaceSpec:
    """The specs of an environment, or a ``SpaceError`` that names the unsupported space."""
    for name in ("observation_space", "action_space"):
        space = getattr(env, name, None)
        if not isinstance(space, spaces.Space):
            what = "no" if space is None else f"a {type(space).__name__} as its"
            raise SpaceError(f"{env_id} has {what} {name}; set it to a gymnasium space in __init__")
        if 0 in (space.shape or ()):
            raise SpaceError(f"{env_id} has an empty {name} (its shape is {space.shape}), so there is nothing to learn from")
    return SpaceSpec(
        _describe_observation(env.observation_space, env_id),
        _describe_action(env.action_space, env_id),
    )


def observation_bounds(space: spaces.Space[Any]) -> tuple[Array, Array] | None:
    """The bounds that observations have to be checked against; None if every value that can be stored is within them."""
    if isinstance(space, spaces.MultiBinary):
        return np.zeros(space.shape), np.ones(space.shape)
    if not isinstance(space, spaces.Box):
        return None  # whole numbers are checked when they become one-hot
    all_bytes = space.dtype == np.uint8 and (space.low == 0).all() and (space.high == 255).all()
    return None if all_bytes and len(space.shape) == 3 else (space.low, space.high)


def _describe_observation(space: spaces.Space[Any], env_id: str) -> ObservationSpec:
    if isinstance(space, spaces.Box):
        if space.dtype == np.uint8 and len(space.shape) == 3:
            return ObservationSpec.image(*space.shape)
        return ObservationSpec.vector(*space.shape)
    if isinstance(space, spaces.Discrete):
        return ObservationSpec.one_hot((int(space.n),), (int(space.start),), ())
    if isinstance(space, spaces.MultiDiscrete):
        sizes = tuple(int(size) for size in space.nvec.reshape(-1))
        starts = tuple(int(start) for start in space.start.reshape(-1))
        return ObservationSpec.one_hot(sizes, starts, space.nvec.shape)
    if isinstance(space, spaces.MultiBinary):
        return ObservationSpec.vector(*space.shape)
    raise SpaceError(
        f"{env_id} has {type(space).__name__} observations, which no algorithm supports; wrap the environment with "
        "gymnasium.wrappers.FlattenObservation (in a config: the wrapper flatten_observation) to make them one vector"
    )


def _describe_action(space: spaces.Space[Any], env_id: str) -> ActionSpec:
    if isinstance(space, spaces.Discrete):
        return ActionSpec("discrete", count=int(space.n), start=int(space.start))
    if isinstance(space, spaces.Box):
        if space.dtype.kind != "f":
            raise SpaceError(
                f"{env_id} has a Box of whole numbers ({space.dtype}) as its actions, but continuous actions are fractions; "
                "make the action space Discrete, or a Box of float32 whose values the environment rounds"
            )
        low, high = space.low.reshape(-1), space.high.reshape(-1)
        if not (np.isfinite(low).all() and np.isfinite(high).all()):
            raise SpaceError(
                f"{env_id} has unbounded continuous actions; wrap the environment with gymnasium.wrappers.RescaleAction "
                "or give its action space finite bounds"
            )
        return ActionSpec("continuous", low=tuple(low.tolist()), high=tuple(high.tolist()), raw_shape=space.shape)
    raise SpaceError(
        f"{env_id} has {type(space).__name__} actions, which no algorithm supports; wrap the environment so that its "
        "actions are Discrete or a bounded Box"
    )
