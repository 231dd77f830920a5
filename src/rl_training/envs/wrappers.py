"""Wrappers that a config can name, and the factory that applies them.

wrappers:
  - {name: mask_observation, indices: [1, 3]}
  - {name: "my_package.wrappers:MyWrapper", size: 3}
  - select_observation: {keys: [camera]}  # short for {name: select_observation, keys: [camera]}
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from rl_training.envs.factory import Env, EnvFactory, close_env, created
from rl_training.envs.spaces import ChannelsFirstBox
from rl_training.errors import FOREIGN, ConfigError, RLTrainingError, UserCodeError, described, did_you_mean, shown
from rl_training.names import imported, split_name
from rl_training.types import LeafPath, entry_at, path_name

#: Every wrapper: its name in a config, and where it is defined.
WRAPPERS = {
    "action_repeat": "rl_training.envs.pixels:ActionRepeat",
    "atari": "rl_training.envs.atari:atari_pictures",
    "channels_first": "rl_training.envs.wrappers:ChannelsFirst",
    "flatten_observation": "gymnasium.wrappers:FlattenObservation",
    "mask_observation": "rl_training.envs.wrappers:MaskObservation",
    "one_hot_planes": "rl_training.envs.wrappers:OneHotPlanes",
    "pixels": "rl_training.envs.pixels:PixelObservation",
    "previous_action": "rl_training.envs.wrappers:PreviousAction",
    "scale_observation": "rl_training.envs.wrappers:ScaleObservation",
    "select_observation": "rl_training.envs.wrappers:SelectObservation",
}


def _vector_space(env: Env, wrapper: str) -> spaces.Box:
    space = env.observation_space
    if not isinstance(space, spaces.Box) or len(space.shape) != 1:
        raise ConfigError(f"{wrapper} works on vectors (a one-dimensional Box); this environment has {space}")
    return space


class MaskObservation(gym.ObservationWrapper[Any, Any, Any]):
    """Sets some entries of a Box observation to zero, for instance velocities, so that the agent cannot see them.

    Indices refer to the flattened observation, so a Box of any shape works.
    """

    def __init__(self, env: Env, indices: Sequence[int]) -> None:
        super().__init__(env)
        space = env.observation_space
        if not isinstance(space, spaces.Box):
            raise ConfigError(f"mask_observation works on a Box; this environment has {space}")
        size = math.prod(space.shape)
        wrong = [index for index in indices if isinstance(index, bool) or not isinstance(index, int) or not 0 <= index < size]
        if wrong:
            raise ConfigError(f"mask_observation: indices must be whole numbers from 0 to {size - 1}, not {wrong}")
        self._seen = np.ones(space.shape, space.dtype)
        self._seen.reshape(-1)[list(indices)] = 0
        low, high = (np.where(self._seen, bound, 0) for bound in (space.low, space.high))
        self.observation_space = spaces.Box(low, high, dtype=space.dtype.type)

    def observation(self, observation: Any) -> Any:
        return observation * self._seen


class ChannelsFirst(gym.ObservationWrapper[Any, Any, Any]):
    """Turns uint8 or bool images (height, width, channel) into uint8 images (channel, height, width); true becomes 255."""

    def __init__(self, env: Env) -> None:
        super().__init__(env)
        space = env.observation_space
        if not isinstance(space, spaces.Box) or len(space.shape) != 3 or space.dtype not in (np.uint8, np.bool_):
            raise ConfigError(
                f"channels_first works on images (height, width, channel) of uint8 or bool; this environment has {space}"
            )
        height, width, channels = space.shape
        self._scale = np.uint8(255 if space.dtype == np.bool_ else 1)
        self.observation_space = ChannelsFirstBox(0, 255, (channels, height, width), np.uint8)

    def observation(self, observation: Any) -> Any:
        return np.ascontiguousarray(np.transpose(observation, (2, 0, 1)), np.uint8) * self._scale


class OneHotPlanes(gym.ObservationWrapper[Any, Any, Any]):
    """Turns uint8 images of codes (height, width, channel), such as MiniGrid's, into uint8 images (plane, height, width) with
    one plane for each code of each channel: 255 where the channel has that code, otherwise 0.

    ``codes`` is the number of codes of each channel, for instance 11 objects, 6 colours and 3 states of doors in MiniGrid.
    """

    def __init__(self, env: Env, codes: Sequence[int]) -> None:
        super().__init__(env)
        space = env.observation_space
        if not isinstance(space, spaces.Box) or len(space.shape) != 3 or space.dtype != np.uint8:
            raise ConfigError(
                f"one_hot_planes works on images (height, width, channel) of uint8; this environment has {space}"
            )
        height, width, channels = space.shape
        if (
            isinstance(codes, (str, bytes))
            or not isinstance(codes, Sequence)
            or len(codes) != channels
            or not all(isinstance(count, int) and not isinstance(count, bool) and 1 <= count <= 256 for count in codes)
        ):
            raise ConfigError(f"one_hot_planes: codes must be {channels} whole numbers from 1 to 256, not {shown(codes)}")
        self._counts = np.asarray(codes)
        self._channel = np.repeat(np.arange(channels), codes)  # (plane,)
        self._code = np.concatenate([np.arange(count, dtype=np.uint8) for count in codes])  # (plane,)
        self.observation_space = ChannelsFirstBox(0, 255, (len(self._code), height, width), np.uint8)

    def observation(self, observation: Any) -> Any:
        largest = observation.max(axis=(0, 1))
        if (largest >= self._counts).any():
            raise ConfigError(
                f"one_hot_planes: the largest codes of the channels are {largest.tolist()}, too large for "
                f"codes: {self._counts.tolist()}; each number must be at least one more than the largest code"
            )
        planes = observation[:, :, self._channel] == self._code
        return np.ascontiguousarray(planes.transpose(2, 0, 1)) * np.uint8(255)


class ScaleObservation(gym.ObservationWrapper[Any, Any, Any]):
    """Multiplies the entries of a Box observation by constant factors, so that their scale suits a network. It can then, for
    instance, infer velocities from small differences between positions. An exported policy does not
    contain this wrapper, but it does contain the setting ``observation_scale``."""

    def __init__(self, env: Env, factors: Sequence[float]) -> None:
        super().__init__(env)
        space = _vector_space(env, "scale_observation")
        self._factors = np.asarray(factors, space.dtype)
        if self._factors.shape != space.shape or not (np.isfinite(self._factors) & (self._factors > 0)).all():
            raise ConfigError(f"scale_observation: factors must be {space.shape[0]} positive numbers, not {factors!r}")
        self.observation_space = spaces.Box(space.low * self._factors, space.high * self._factors, dtype=space.dtype.type)

    def observation(self, observation: Any) -> Any:
        return observation * self._factors


class SelectObservation(gym.ObservationWrapper[Any, Any, Any]):
    """Keeps some entries of a Dict or Tuple observation, for instance without a text that no network takes.

    A key of an inner Dict or Tuple is written with dots: ``robot.camera``, ``robot.0``. A single key leaves that entry by
    itself, several leave a Dict.
    """

    def __init__(self, env: Env, keys: Sequence[str]) -> None:
        super().__init__(env)
        if isinstance(keys, (str, bytes)) or not isinstance(keys, Sequence) or not keys:
            raise ConfigError(f"select_observation: keys must be a list of names of entries, not {shown(keys)}")
        entries = _inner_spaces(env.observation_space)
        for key in keys:
            if str(key) not in entries:
                raise ConfigError(
                    f"select_observation: the observations have no entry {shown(key)}{did_you_mean(str(key), entries)}"
                )
        self._paths = {str(key): entries[str(key)][0] for key in keys}
        chosen = {name: entries[name][1] for name in self._paths}
        self.observation_space = spaces.Dict(chosen) if len(chosen) > 1 else next(iter(chosen.values()))

    def observation(self, observation: Any) -> Any:
        chosen = {name: entry_at(observation, path) for name, path in self._paths.items()}
        return chosen if len(chosen) > 1 else next(iter(chosen.values()))


def _inner_spaces(space: spaces.Space[Any], path: LeafPath = ()) -> dict[str, tuple[LeafPath, spaces.Space[Any]]]:
    """All entries of nested Dict and Tuple spaces, inner nodes too, by their names."""
    if not isinstance(space, (spaces.Dict, spaces.Tuple)):
        if not path:
            raise ConfigError(f"select_observation works on a Dict or Tuple; this environment has {space}")
        return {}
    found: dict[str, tuple[LeafPath, spaces.Space[Any]]] = {}
    inner: Any = space.spaces.items() if isinstance(space, spaces.Dict) else enumerate(space.spaces)
    for key, entry in inner:
        found[path_name((*path, key))] = ((*path, key), entry)
        found |= _inner_spaces(entry, (*path, key))
    return found


class PreviousAction(gym.Wrapper[Any, Any, Any, Any]):
    """Appends the previous action, one-hot encoded, to a vector observation; zeros at the start of an episode.

    In a partially observable task, knowing which actions were taken reveals more of the state (Zhu et al., arXiv:1704.07978).
    """

    def __init__(self, env: Env) -> None:
        super().__init__(env)
        space, action = _vector_space(env, "previous_action"), env.action_space
        if not isinstance(action, spaces.Discrete):
            raise ConfigError(f"previous_action works on discrete actions; this environment has {action}")
        self._start = int(action.start)
        self._none = np.zeros(int(action.n), space.dtype)
        low, high = (np.concatenate([bound, self._none + end]) for bound, end in ((space.low, 0), (space.high, 1)))
        self.observation_space = spaces.Box(low, high, dtype=space.dtype.type)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        observation, info = self.env.reset(seed=seed, options=options)
        return np.concatenate([observation, self._none]), info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        observation, *rest = self.env.step(action)
        taken = self._none.copy()
        taken[int(action) - self._start] = 1
        return (np.concatenate([observation, taken]), *rest)  # type: ignore[return-value]


@dataclass(frozen=True)
class WrappedEnv:
    """Creates an environment and wraps it, innermost wrapper first. It is plain data, so a worker process can receive it."""

    factory: EnvFactory
    wrappers: tuple[Mapping[str, Any], ...]

    def __call__(self) -> Env:
        env = created(self.factory)
        for wrapper in self.wrappers:
            arguments = {key: value for key, value in wrapper.items() if key != "name"}
            try:
                env = _load(wrapper["name"])(env, **arguments)
            except FOREIGN as error:
                close_env(env)
                if isinstance(error, RLTrainingError):
                    raise
                on = shown(getattr(env, "observation_space", None))
                raise UserCodeError(
                    f"the wrapper {wrapper['name']} does not take {shown(arguments)} on observations {on}: {described(error)}"
                ) from error
            if not isinstance(env, gym.Env):
                raise ConfigError(f"the wrapper {wrapper['name']} returned {shown(env)}, which is not a gymnasium.Env")
        return env


def _load(name: str) -> Any:
    module, attribute = split_name(WRAPPERS.get(name, name))
    found = getattr(imported(module or "", f"the wrapper {name}"), attribute, None)
    if found is None:
        raise ConfigError(f"the wrapper {name}: the module '{module}' has no '{attribute}'")
    return found


def spelled_out(wrapper: dict[str, Any]) -> dict[str, Any]:
    """An entry of ``wrappers``, which may have its arguments below its name."""
    if len(wrapper) == 1:
        name, arguments = next(iter(wrapper.items()))
        if isinstance(arguments, Mapping) and "name" not in arguments:
            return {"name": name, **arguments}
    return wrapper


def wrapper_problem(wrapper: Mapping[str, Any]) -> str | None:
    """What is wrong with an entry of ``wrappers``, or None."""
    name = wrapper.get("name")
    if not isinstance(name, str):
        return "a wrapper needs a name, as in {name: mask_observation, indices: [1, 3]}"
    if all(split_name(name)):
        return None  # the user's own: it is imported only when an environment is created
    if name not in WRAPPERS:
        return f"unknown wrapper '{name}'{did_you_mean(name, WRAPPERS)}"
    parameters = list(inspect.signature(_load(name)).parameters.values())[1:]  # without the environment
    known = [parameter.name for parameter in parameters]
    for key in wrapper:
        if key != "name" and key not in known:
            return f"the wrapper {name} has no argument '{key}'{did_you_mean(key, known)}"
    for parameter in parameters:
        if parameter.default is parameter.empty and parameter.name not in wrapper:
            return f"the wrapper {name} needs the argument '{parameter.name}'"
    return None
