"""Small environments with known behaviour. As ``rl_training_test_envs:Name-v0`` they can be used from the command line."""

from __future__ import annotations

import fcntl
import functools
import os
import signal
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from holding import hold
from space_envs import ContinuousActions, Pictures
from space_envs import ImageWalkEnv as ImageWalkEnv
from space_envs import MaskedEnv as MaskedEnv
from space_envs import Obs as Obs
from space_envs import OddSpacesEnv as OddSpacesEnv
from space_envs import SpacesEnv as SpacesEnv


class CountingEnv(gym.Env[Obs, Any]):
    """Observes (episode seed, steps since reset, last action); reward = steps. Ends after ``length`` steps as ``end`` names.

    Every number that can be stored is thereby known in advance.
    """

    def __init__(self, length: int = 4, end: str = "terminated", seed_digits: int = 1000) -> None:
        self.observation_space = spaces.Box(-np.inf, np.inf, (3,), np.float32)
        self.action_space = spaces.Discrete(2)
        self._length, self._end, self._digits = length, end, seed_digits
        self._seed, self._steps = 0, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Obs, dict[str, Any]]:
        super().reset(seed=seed)
        assert seed is not None, "every episode must have a seed of its own"
        self._seed, self._steps = seed % self._digits, 0
        return self._observe(-1), {}

    def _observe(self, action: int) -> Obs:
        return np.array([self._seed, self._steps, action], np.float32)

    def step(self, action: int) -> tuple[Obs, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action)
        assert self._steps < self._length, "stepped after the end of the episode"
        self._steps += 1
        over = self._steps == self._length
        terminated = over and self._end in ("terminated", "both")
        truncated = over and self._end in ("truncated", "both")
        return self._observe(int(action)), float(self._steps), terminated, truncated, {}


class GoalEnv(CountingEnv):
    """Reports in its last step whether the episode is a success: if its seed is odd. Other entries are in every step."""

    def __init__(self, length: int = 4, silent: bool = False) -> None:
        super().__init__(length)
        self._silent = silent

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Obs, dict[str, Any]]:
        return super().reset(seed=int(self.np_random.integers(1000)) if seed is None else seed)

    def step(self, action: int) -> tuple[Obs, float, bool, bool, dict[str, Any]]:
        obs, reward, terminated, truncated, _ = super().step(action)
        info: dict[str, Any] = {
            "distance": np.float32(self._steps / 2),
            "place": np.arange(2),
            "nan": float("nan"),
            "odd": self,
        }
        if terminated and not self._silent:
            info["is_success"] = np.bool_(self._seed % 2)
        return obs, reward, terminated, truncated, info


class RandomWalkEnv(gym.Env[Obs, Any]):
    """A walk with noise in every step. The reward is minus the distance from home; an episode terminates beyond ``limit``.

    With a low limit, walking away is a local optimum: it ends the episode and with it the penalties.
    """

    def __init__(self, limit: float = 6.0) -> None:
        self.observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)
        self.action_space = spaces.Discrete(3)
        self._limit, self._position, self._steps = limit, 0.0, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Obs, dict[str, Any]]:
        super().reset(seed=seed)
        self._position, self._steps = float(self.np_random.normal()), 0
        return self._observe(), {}

    def _observe(self) -> Obs:
        return np.array([self._position, self._steps / 10], np.float32)

    def step(self, action: int) -> tuple[Obs, float, bool, bool, dict[str, Any]]:
        self._steps += 1
        self._position += float(action) - 1.0 + float(self.np_random.normal())
        return self._observe(), -abs(self._position), abs(self._position) > self._limit, self._steps >= 15, {}


class ForgetfulEnv(RandomWalkEnv):
    """Ignores its seed: not deterministic."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Obs, dict[str, Any]]:
        return super().reset(seed=int.from_bytes(os.urandom(4), "little"))


class WaitingEnv(RandomWalkEnv):
    """A random walk that holds its process where a test needs it (``holding.py``)."""

    def step(self, action: int) -> tuple[Obs, float, bool, bool, dict[str, Any]]:
        hold()
        return super().step(action)


class Fate:
    """Kills the process of an environment, or with ``whom: parent`` the one that has started it.

    The file ``deaths`` has a line for each death that is still to come: a number of steps in one process, over all of its
    environments. A process removes the line before it dies by it.
    """

    _process_steps = 0

    def __init__(self, deaths: str, whom: str) -> None:
        self._deaths, self._whom = Path(deaths), whom

    def step(self) -> None:
        Fate._process_steps += 1
        if not self._deaths.is_file():
            return
        with self._deaths.open("r+") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            due, *later = [*file.read().split(), ""]
            if due and Fate._process_steps >= int(due):
                file.seek(0)
                file.truncate()
                file.write("\n".join(later))
                file.flush()
                os.kill(os.getpid() if self._whom == "self" else os.getppid(), signal.SIGKILL)


class MortalEnv(RandomWalkEnv):
    """A random walk with a ``Fate``."""

    def __init__(self, deaths: str = "", whom: str = "self", limit: float = 6.0) -> None:
        super().__init__(limit)
        self._fate = Fate(deaths, whom)

    def step(self, action: int) -> tuple[Obs, float, bool, bool, dict[str, Any]]:
        self._fate.step()
        return super().step(action)


class MortalCountingEnv(CountingEnv):
    """``CountingEnv`` with a ``Fate``: of every step that is stored it is known which one it is."""

    def __init__(self, deaths: str = "", length: int = 7) -> None:
        super().__init__(length, seed_digits=1 << 24)
        self._fate = Fate(deaths, "self")

    def step(self, action: int) -> tuple[Obs, float, bool, bool, dict[str, Any]]:
        self._fate.step()
        return super().step(action)


class LeftoverEnv(RandomWalkEnv):
    """Its ``reset`` leaves something behind: the second episode differs from the same episode in a new object."""

    _episodes = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Obs, dict[str, Any]]:
        super().reset(seed=seed)
        self._episodes += 1
        self._position += self._episodes
        return self._observe(), {}


class FaultyEnv(CountingEnv):
    """Goes wrong in its third episode in the way ``fault`` names, unless the file ``mended`` exists."""

    def __init__(self, fault: str = "raise", mended: str = "") -> None:
        super().__init__(length=10)
        self._fault, self._mended, self._seeds = fault, mended, set[int | None]()

    def _broken(self) -> bool:
        return len(self._seeds) >= 3 and not (self._mended and os.path.exists(self._mended))  # noqa: PTH110

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Obs, dict[str, Any]]:
        self._seeds.add(seed)
        if self._fault == "reset" and self._broken():
            raise ValueError("cannot reset")
        return super().reset(seed=seed)

    def step(self, action: int) -> tuple[Obs, float, bool, bool, dict[str, Any]]:
        obs, reward, terminated, truncated, info = super().step(action)
        if self._steps == 5 and self._broken():
            if self._fault == "raise":
                raise ValueError("the motor is on fire")
            if self._fault == "nan":
                obs = obs * np.nan
            if self._fault == "infinite-reward":
                reward = float("inf")
            if self._fault == "no-reward":
                reward = None  # type: ignore[assignment]
            if self._fault == "shape":
                obs = np.zeros(2, np.float32)
            if self._fault == "exit":
                os._exit(3)
        return obs, reward, terminated, truncated, info


class OffsetActionsEnv(RandomWalkEnv):
    """Actions are 5, 6, 7."""

    def __init__(self) -> None:
        super().__init__()
        self.action_space = spaces.Discrete(3, start=5)

    def step(self, action: int) -> tuple[Obs, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action), f"{action} is not in {self.action_space}"
        return super().step(int(action) - 5)


class UnevenActionsEnv(RandomWalkEnv):
    """Two numbers, each in bounds of its own around which 0 is not the middle; both walk."""

    def __init__(self) -> None:
        super().__init__()
        self.action_space = spaces.Box(np.array([-3.0, 0.5], np.float32), np.array([0.2, 10.0], np.float32))

    def step(self, action: Any) -> tuple[Obs, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action), f"{action} is not in {self.action_space}"
        return super().step(round(float(action.sum())))


class SignEnv(gym.Env[Obs, Any]):
    """Shows a sign (+-1) and ends after one action: reward 1 for the one that fits, else -1."""

    def __init__(self) -> None:
        self.observation_space = spaces.Box(-1, 1, (2,), np.float32)
        self.action_space = spaces.Discrete(2)
        self._sign = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Obs, dict[str, Any]]:
        super().reset(seed=seed)
        self._sign = int(self.np_random.integers(2))
        return np.array([2 * self._sign - 1, 0], np.float32), {}

    def step(self, action: int) -> tuple[Obs, float, bool, bool, dict[str, Any]]:
        return np.zeros(2, np.float32), 1.0 if action == self._sign else -1.0, True, False, {}


def _pictures(env_class: type[gym.Env[Any, Any]], **kwargs: Any) -> gym.Env[Any, Any]:
    return Pictures(ContinuousActions(env_class(**kwargs)))


def _continuous(env_class: type[gym.Env[Any, Any]], **kwargs: Any) -> gym.Env[Any, Any]:
    return ContinuousActions(env_class(**kwargs))


for _class in (CountingEnv, RandomWalkEnv, ForgetfulEnv, WaitingEnv, MortalEnv, FaultyEnv, SignEnv):
    _name = _class.__name__.removesuffix("Env")
    gym.register(f"{_name}Continuous-v0", entry_point=functools.partial(_continuous, _class))
    gym.register(f"{_name}Pictures-v0", entry_point=functools.partial(_pictures, _class))

for _name in (
    "CountingEnv",
    "RandomWalkEnv",
    "ForgetfulEnv",
    "WaitingEnv",
    "MortalEnv",
    "MortalCountingEnv",
    "LeftoverEnv",
    "FaultyEnv",
    "GoalEnv",
    "OffsetActionsEnv",
    "UnevenActionsEnv",
    "OddSpacesEnv",
    "MaskedEnv",
    "ImageWalkEnv",
    "SpacesEnv",
):
    gym.register(f"{_name.removesuffix('Env')}-v0", entry_point=f"{__name__}:{_name}")
