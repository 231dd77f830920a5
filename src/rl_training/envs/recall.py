"""A task that cannot be solved without memory, small enough for tests."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from rl_training.errors import ConfigError

Obs = NDArray[np.float32]


class RecallEnv(gym.Env[Obs, Any]):
    """A cue, then nothing, then a question: the answer ``k`` steps after the cue earns 1 if it is correct, otherwise 0.

    An observation is (the cue: -1 or 1 in the first observation, 0 afterwards; 1 if this is the question, otherwise 0).
    Actions before the question have no effect. The best policy earns 1 per episode, a policy without memory 0.5 on average.
    """

    def __init__(self, k: int = 20) -> None:
        if not isinstance(k, int) or k < 1:
            raise ConfigError(f"the recall task: k must be a whole number of at least 1, not {k!r}")
        self.observation_space = spaces.Box(-1.0, 1.0, (2,), np.float32)
        self.action_space = spaces.Discrete(2)
        self._k, self._steps, self._cue = k, 0, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Obs, dict[str, Any]]:
        super().reset(seed=seed)
        self._steps, self._cue = 0, int(self.np_random.integers(2))
        return np.array([2 * self._cue - 1, 0], np.float32), {}

    def step(self, action: Any) -> tuple[Obs, float, bool, bool, dict[str, Any]]:
        answered = self._steps == self._k
        self._steps += 1
        reward = 1.0 if answered and int(action) == self._cue else 0.0
        return np.array([0, self._steps == self._k], np.float32), reward, answered, False, {}
