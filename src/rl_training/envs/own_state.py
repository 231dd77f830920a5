"""An optional protocol: an environment that saves and restores its own state is not replayed when a run is resumed.

    def get_state(self) -> dict[str, Any]: ...
    def set_state(self, state: dict[str, Any]) -> None: ...

The state is plain data: dicts with text as keys, lists, numpy arrays, numbers, text, true, false and None. ``set_state`` is
called after ``reset`` with the seed of the episode. Gymnasium's ``np_random`` and the count of ``TimeLimit`` are saved
besides; everything else that decides what the environment does next must be in the state.

The outermost layer of an environment that has both methods answers for everything inside it. Wrappers around it must be known
to keep nothing between two steps (``STATELESS``); with any other wrapper, the episode is replayed.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.wrappers import FlattenObservation, OrderEnforcing, PassiveEnvChecker, RescaleAction, TimeLimit

from rl_training.envs.factory import Env
from rl_training.envs.wrappers import (
    ChannelsFirst,
    MaskObservation,
    OneHotPlanes,
    PreviousAction,
    ScaleObservation,
    SelectObservation,
)
from rl_training.errors import FOREIGN, described, shown
from rl_training.types import State

#: Wrappers that keep nothing between two steps, once the environment has been reset.
STATELESS = (
    OrderEnforcing,
    PassiveEnvChecker,
    FlattenObservation,
    RescaleAction,
    ChannelsFirst,
    MaskObservation,
    OneHotPlanes,
    PreviousAction,
    ScaleObservation,
    SelectObservation,
)
#: What an array in a state can hold, and how deep a state can be, so that a checkpoint can hold it.
ARRAY_TYPES = frozenset(map(np.dtype, ("?", "u1", "u2", "u4", "u8", "i1", "i2", "i4", "i8", "f2", "f4", "f8")))
MOST_LEVELS = 32


def own_state(env: Env) -> State | None:
    """A copy of the environment's state; None if the environment does not save it. Raises if ``get_state`` does, or if its
    result is not plain data."""
    owner = _owner(env)
    if owner is None:
        return None
    generator = getattr(env.unwrapped, "_np_random", None)
    return {
        "state": plain_copy(owner.get_state(), "the state"),  # type: ignore[attr-defined]
        "time_limits": [_elapsed(limit) for limit in _time_limits(env)],
        "np_random": None if generator is None else plain_copy(generator.bit_generator.state, "np_random"),
    }


def restore_own_state(env: Env, state: State) -> str | None:
    """Restores a state in an environment that has just been reset. Returns what went wrong, if anything."""
    owner = _owner(env)
    if owner is None:
        return "it no longer has get_state and set_state"
    try:
        if state["np_random"] is not None:
            env.unwrapped.np_random.bit_generator.state = state["np_random"]
        for limit, elapsed in zip(_time_limits(env), state["time_limits"], strict=True):
            limit._elapsed_steps = elapsed
        owner.set_state(plain_copy(state["state"], "the state"))  # type: ignore[attr-defined]
        found = own_state(env)
    except FOREIGN as error:
        return f"set_state failed ({described(error)})"
    other = _first_other(state, found, "")
    return None if other is None else f"after set_state, get_state does not return what was saved{other}"


def _layers(env: Env) -> Iterator[Env]:
    yield env
    while isinstance(env, gym.Wrapper):
        env = env.env
        yield env


def _owner(env: Env) -> Env | None:
    """The outermost layer with both methods, if nothing around it has a state of its own."""
    for layer in _layers(env):
        if _takes(layer, "get_state", 0) and _takes(layer, "set_state", 1):
            return layer
        if type(layer) not in (*STATELESS, TimeLimit):
            return None
    return None


def _takes(layer: Env, name: str, count: int) -> bool:
    """Whether a layer has a method of this name with this many arguments: MuJoCo's set_state, for instance, takes two."""
    method = getattr(layer, name, None)
    if not callable(method):
        return False
    try:
        inspect.signature(method).bind(*[None] * count)
    except (TypeError, ValueError):
        return False
    return True


def _time_limits(env: Env) -> list[TimeLimit[Any, Any]]:
    return [layer for layer in _layers(env) if type(layer) is TimeLimit]


def _elapsed(limit: TimeLimit[Any, Any]) -> int | None:
    steps: int | None = limit._elapsed_steps
    return steps


def plain_copy(value: Any, where: str, level: int = 0) -> Any:
    """A copy of plain data as a checkpoint returns it: with lists in place of tuples, and Python's numbers for numpy's."""
    if level > MOST_LEVELS:
        raise TypeError(f"{where} is nested more than {MOST_LEVELS} levels deep")
    if isinstance(value, dict):
        wrong = [key for key in value if not isinstance(key, str) or key.startswith("$")]
        if wrong:
            raise TypeError(f"{where} has the key {shown(wrong[0])}, but keys are text that does not begin with $")
        return {key: plain_copy(item, f"{where}[{key!r}]", level + 1) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain_copy(item, f"{where}[{i}]", level + 1) for i, item in enumerate(value)]
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, np.ndarray) and value.dtype in ARRAY_TYPES:
        return np.array(value, order="C")
    if value is None or type(value) in (bool, int, float, str):
        return value
    raise TypeError(f"{where} is {shown(value)}, which is not plain data")


def _first_other(saved: Any, found: Any, where: str) -> str | None:
    """Where two states differ first, or None if they are equal in every byte."""
    if type(saved) is not type(found):
        return where
    if isinstance(saved, dict):
        if saved.keys() != found.keys():
            return where
        pairs = [(f"{where}[{key!r}]", saved[key], found[key]) for key in saved]
    elif isinstance(saved, list):
        if len(saved) != len(found):
            return where
        pairs = [(f"{where}[{i}]", a, b) for i, (a, b) in enumerate(zip(saved, found, strict=True))]
    elif isinstance(saved, np.ndarray):
        same = saved.dtype == found.dtype and saved.shape == found.shape and saved.tobytes() == found.tobytes()
        return None if same else where
    else:
        return None if repr(saved) == repr(found) else where
    return next((other for place, a, b in pairs if (other := _first_other(a, b, place)) is not None), None)
