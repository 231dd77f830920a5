"""Environments that break Gymnasium's rules, each in the way that its arguments name."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

#: Observation spaces by name; each has a value that fits it.
SPACES: dict[str, tuple[spaces.Space[Any], Any]] = {
    "vector": (spaces.Box(-1, 1, (2,), np.float32), np.zeros(2, np.float32)),
    "image": (spaces.Box(0, 255, (1, 4, 4), np.uint8), np.zeros((1, 4, 4), np.uint8)),
    "discrete": (spaces.Discrete(5), 1),
    "empty": (spaces.Box(-1, 1, (0,), np.float32), np.zeros(0, np.float32)),
    "text": (spaces.Text(5), "abc"),
    "foreign text": (spaces.Text(5), "a b"),  # no space is in its alphabet
}


class MisbehavingEnv(gym.Env[Any, Any]):
    """Episodes of five steps, where ``lie`` replaces what ``about`` says from the second step on."""

    def __init__(self, about: str = "", lie: Any = None, space: str = "vector", masked: bool = False) -> None:
        if about == "init":
            raise LookupError("no such robot\nat all")
        if about == "init-exit":
            sys.exit("I would rather not")
        self._about, self._lie, self._masked, self._steps, self._resets = about, lie, masked, 0, 0
        given, self._obs = SPACES[space]
        if about != "no-space":
            self.observation_space = given
        self.action_space = spaces.Discrete(3)

    def _info(self) -> dict[str, Any]:
        return {"action_mask": np.ones(3, np.int8)} if self._masked else {}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._steps = 0
        self._resets += 1
        if self._about == "reset-exit" and self._resets == 4:
            sys.exit("enough")
        if self._about == "second-reset" and self._resets == 2 and Path(self._lie).exists():
            raise RuntimeError("not ready")
        return self._obs, self._info()

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        self._steps += 1
        given = {"obs": self._obs, "reward": 1.0, "terminated": False, "truncated": self._steps == 5, **self._info()}
        if self._steps >= 2 and self._about in given:
            given[self._about] = self._spoiled(given[self._about])
        if self._about == "step-exit" and self._steps == 2:
            sys.exit(0)
        if self._about == "step-generator-exit" and self._steps == 2:
            raise GeneratorExit
        mask = {"action_mask": given["action_mask"]} if self._masked else {}
        return given["obs"], given["reward"], given["terminated"], given["truncated"], mask

    def _spoiled(self, right: Any) -> Any:
        """The lie, in the shape of what it replaces: of an array, one entry is false."""
        if not isinstance(right, np.ndarray) or isinstance(self._lie, (str, list)):
            return self._lie
        wrong = right.astype(np.float64)
        wrong.flat[-1] = self._lie
        return wrong

    def close(self) -> None:
        if self._about == "close":
            raise OSError("the window is stuck")
        if self._about == "close-exit":
            sys.exit(7)


class MeddlingEnv(gym.Env[Any, Any]):
    """Changes its action in place, and observes the sum of what it got."""

    def __init__(self, dtype: str = "float32", bound: float = 1.0) -> None:
        self.observation_space = spaces.Box(-np.inf, np.inf, (1,), np.float32)
        self.action_space = spaces.Box(-bound, bound, (2,), np.dtype(dtype).type)
        self._sum = 0.0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._sum = 0.0
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action), f"{action!r} is not in {self.action_space}"
        self._sum += float(action.sum())
        action[:] = 0.0
        return np.array([self._sum], np.float32), 0.0, False, False, {}


class FailsElsewhere:
    """Creates an environment in one process only."""

    def __init__(self, home: int) -> None:
        self._home = home

    def __call__(self) -> MisbehavingEnv:
        if os.getpid() != self._home:
            raise LookupError("only at home")
        return MisbehavingEnv()


gym.register("Misbehaving-v0", entry_point=f"{__name__}:MisbehavingEnv")
gym.register("Meddling-v0", entry_point=f"{__name__}:MeddlingEnv")
