"""Environments for the tests of exactness. As ``exactness_envs:Name-v0`` they can be used in a config."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from rl_training_test_envs import ForgetfulEnv, Obs, RandomWalkEnv


class DriftingEnv(gym.Env[Obs, Any]):
    """Once the file ``changed`` exists, step ``at`` (0: the reset) gives something else about ``about``. The steps after it
    are as they were, so that the last observation does not show it."""

    def __init__(self, about: str = "", at: int = 3, changed: str = "", length: int = 50) -> None:
        self.observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)
        self.action_space = spaces.Discrete(2)
        self._about, self._at, self._changed, self._length = about, at, Path(changed), length
        self._steps = 0
        self._obs = np.zeros(2, np.float32)

    def _is_other(self, about: str) -> bool:
        return self._about == about and self._steps == self._at and self._changed.exists()

    def _observe(self, action: Any) -> tuple[Obs, dict[str, Any]]:
        self._obs[:] = self._steps + 1e-3 * self._is_other("observation"), action  # the same array for every observation
        return self._obs, {"action_mask": np.array([True, not self._is_other("action_mask")])}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Obs, dict[str, Any]]:
        super().reset(seed=seed)
        self._steps = 0
        if self._is_other("raise"):
            raise ValueError("not today")
        return self._observe(-1)

    def step(self, action: Any) -> tuple[Obs, float, bool, bool, dict[str, Any]]:
        self._steps += 1
        if self._is_other("raise"):
            raise ValueError("not today")
        obs, info = self._observe(action)
        terminated = self._steps == self._length or self._is_other("terminated")
        return obs, 1.5 if self._is_other("reward") else 1.0, terminated, self._is_other("truncated"), info


class StatefulEnv(RandomWalkEnv):
    """A walk of 40 steps (by a time limit) that saves its own state, or fails to in the way that ``lie`` names."""

    played = 0  # steps of all environments in this process

    def __init__(self, lie: str = "") -> None:
        super().__init__(limit=np.inf)
        self._lie, self._trail = lie, np.zeros((0, 2), np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Obs, dict[str, Any]]:
        self._trail = np.zeros((0, 2), np.float32)
        return super().reset(seed=seed)

    def step(self, action: int) -> tuple[Obs, float, bool, bool, dict[str, Any]]:
        StatefulEnv.played += 1
        obs, reward, *_ = super().step(action)
        self._trail = np.concatenate([self._trail, obs[None]])[-3:]
        return obs, reward + float(self._trail.sum()), False, False, {}

    def get_state(self) -> dict[str, Any]:
        if self._lie == "get_state raises":
            raise RuntimeError("no state today")
        what = object() if self._lie == "an object" else np.float64(self._position)
        trail = None if self._lie == "leaves out" else self._trail
        return {"position": what, "steps": self._steps, "nested": [{"trail": trail}, (None, True, "x")]}

    def set_state(self, state: dict[str, Any]) -> None:
        if self._lie == "set_state raises":
            raise RuntimeError("no state today")
        self._steps = state["steps"]
        self._position = 0.0 if self._lie == "forgets" else state["position"]
        if self._lie != "leaves out":
            self._trail = state["nested"][0]["trail"]


class TwoArgumentsEnv(StatefulEnv):
    """Has methods of the same names that mean something else, as MuJoCo's environments do."""

    def set_state(self, position: Any, velocity: Any) -> None:  # type: ignore[override]
        raise AssertionError("not to be called")


class Remembering(gym.Wrapper[Any, Any, Any, Any]):
    """A wrapper with a state of its own, which it does not save: every third step gives no reward."""

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        super().__init__(env)
        self._steps = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self._steps = 0
        return self.env.reset(seed=seed, options=options)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        self._steps += 1
        obs, reward, terminated, truncated, info = self.env.step(action)
        return obs, reward if self._steps % 3 else 0.0, terminated, truncated, info


class ForgetfulFaultyEnv(ForgetfulEnv):
    """Not deterministic, and fails at its seventh step while the file ``broken`` exists."""

    def __init__(self, broken: str = "") -> None:
        super().__init__(limit=np.inf)
        self._broken = broken

    def step(self, action: int) -> tuple[Obs, float, bool, bool, dict[str, Any]]:
        if self._steps == 6 and os.path.exists(self._broken):  # noqa: PTH110
            raise ValueError("the motor is on fire")
        return super().step(action)


class SeedEnv(gym.Env[Obs, Any]):
    """One step; the reward is the seed of the episode."""

    def __init__(self) -> None:
        self.observation_space = spaces.Box(0, 1, (1,), np.float32)
        self.action_space = spaces.Discrete(2)
        self._reward = 0.0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Obs, dict[str, Any]]:
        super().reset(seed=seed)
        assert seed is not None
        self._reward = float(np.float32(seed))
        return np.zeros(1, np.float32), {}

    def step(self, action: int) -> tuple[Obs, float, bool, bool, dict[str, Any]]:
        return np.zeros(1, np.float32), self._reward, True, False, {}


class ChangingActionEnv(gym.Env[Obs, Any]):
    """Observes its action, then overwrites the array that it was given."""

    def __init__(self) -> None:
        self.observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)
        self.action_space = spaces.Box(-1.0, 1.0, (2,), np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Obs, dict[str, Any]]:
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> tuple[Obs, float, bool, bool, dict[str, Any]]:
        obs = action.copy()
        action *= 0.0
        return obs, float(obs.sum()), False, False, {}


for _class in (DriftingEnv, TwoArgumentsEnv, ForgetfulFaultyEnv, SeedEnv, ChangingActionEnv):
    gym.register(f"{_class.__name__.removesuffix('Env')}-v0", entry_point=f"{__name__}:{_class.__name__}")
gym.register("Stateful-v0", entry_point=f"{__name__}:StatefulEnv", max_episode_steps=40)
