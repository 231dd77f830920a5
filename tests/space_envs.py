"""Small environments with other spaces: images, masks, Dicts, several choices, and wrappers that change the spaces of any."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from holding import hold

Obs = np.ndarray[Any, np.dtype[np.float32]]


class OddSpacesEnv(gym.Env[Any, Any]):
    """Has the spaces that its arguments name: ``dict`` or ``image`` observations, ``multi`` actions."""

    def __init__(self, observation: str = "vector", action: str = "discrete") -> None:
        vector = spaces.Box(-1, 1, (2,), np.float32)
        observations: dict[str, spaces.Space[Any]] = {
            "vector": vector,
            "dict": spaces.Dict({"a": vector, "words": spaces.Text(5)}),
            "text": spaces.Text(5),
            "gray": spaces.Box(0, 255, (36, 36), np.uint8),
            "image": spaces.Box(0, 255, (3, 36, 36), np.uint8),
        }
        actions: dict[str, spaces.Space[Any]] = {
            "discrete": spaces.Discrete(2),
            "multi": spaces.MultiDiscrete([2, 2]),
            "many": spaces.MultiDiscrete([20, 20, 20]),
            "unbounded": spaces.Box(-np.inf, np.inf, (1,), np.float32),
            "text": spaces.Text(5),
            "wide": spaces.Box(0, 100_000, (2,), np.int64),
        }
        self.observation_space = observations[observation]
        self.action_space = actions[action]

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.observation_space.seed(seed)
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return self.observation_space.sample(), 0.0, False, True, {}


class MaskedEnv(gym.Env[Obs, Any]):
    """Four positions; the action of the same number as the position is forbidden."""

    def __init__(self) -> None:
        self.observation_space = spaces.Box(0, 3, (1,), np.float32)
        self.action_space = spaces.Discrete(4)
        self._position, self._steps = 0, 0

    def _result(self) -> tuple[Obs, dict[str, Any]]:
        return np.array([self._position], np.float32), {"action_mask": np.arange(4) != self._position}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Obs, dict[str, Any]]:
        super().reset(seed=seed)
        self._position, self._steps = int(self.np_random.integers(4)), 0
        return self._result()

    def step(self, action: int) -> tuple[Obs, float, bool, bool, dict[str, Any]]:
        assert action != self._position, "a forbidden action"
        self._steps += 1
        self._position = int(action)
        obs, info = self._result()
        return obs, float(action), self._steps == 7, False, info


class ImageWalkEnv(gym.Env[Any, Any]):
    """A stack of pictures of a bright column that walks left and right, and ends at either side."""

    SIZE = 36

    def __init__(self, stack: int = 3) -> None:
        self.observation_space = spaces.Box(0, 255, (stack, self.SIZE, self.SIZE), np.uint8)
        self.action_space = spaces.Discrete(2)
        self._frames: list[np.ndarray[Any, np.dtype[np.uint8]]] = []
        self._column, self._steps = 0, 0

    def _picture(self) -> np.ndarray[Any, np.dtype[np.uint8]]:
        picture = np.full((self.SIZE, self.SIZE), self._steps, np.uint8)
        picture[:, self._column] = 255
        return picture

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._column, self._steps = int(self.np_random.integers(3, self.SIZE - 3)), 0
        self._frames = [self._picture()] * self.observation_space.shape[0]  # type: ignore[index]
        return np.stack(self._frames), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._steps += 1
        self._column += 3 * int(action) - 1
        over = not 2 <= self._column < self.SIZE - 2
        self._frames = [*self._frames[1:], self._picture()]
        return np.stack(self._frames), float(action), over, self._steps == 12, {}


class SpacesEnv(gym.Env[Any, Any]):
    """``CountingEnv`` in other spaces, which its arguments name: ``vector``, ``image``, ``dict`` (an image, vectors and whole
    numbers, nested), ``discrete``, ``multi`` or ``continuous`` actions. Everything observed is known in advance.

    With ``masked``, value k of each choice is forbidden after k steps of an episode. With ``waiting`` it waits as
    ``WaitingEnv`` does.
    """

    SIZE, STACK = 12, 3

    def __init__(
        self,
        observation: str = "dict",
        action: str = "discrete",
        length: int = 4,
        end: str = "terminated",
        masked: bool = False,
        waiting: bool = False,
    ) -> None:
        image = spaces.Box(0, 255, (self.STACK, self.SIZE, self.SIZE), np.uint8)
        vector = spaces.Box(-np.inf, np.inf, (3,), np.float32)
        inner = spaces.Tuple((spaces.MultiBinary(2), spaces.MultiDiscrete([2, 3], start=[0, 4])))
        self._form = observation
        observations: dict[str, spaces.Space[Any]] = {
            "vector": vector,
            "image": image,
            "dict": spaces.Dict({"camera": image, "inner": inner, "mode": spaces.Discrete(3, start=1), "state": vector}),
        }
        actions: dict[str, spaces.Space[Any]] = {
            "discrete": spaces.Discrete(2),
            "multi": spaces.MultiDiscrete([2, 3], start=[0, 1]),
            "continuous": spaces.Box(-2.0, 6.0, (1,), np.float32),
        }
        self.observation_space = observations[observation]
        self.action_space = actions[action]
        self._length, self._end, self._masked, self._waiting = length, end, masked, waiting
        self._seed, self._steps = 0, 0
        self._pictures = np.zeros(image.shape, np.uint8)

    def _observe(self, action: float) -> Any:
        vector = np.array([self._seed, self._steps, action], np.float32)
        picture = np.full((self.SIZE, self.SIZE), self._seed, np.uint8)
        picture[0], picture[1] = self._steps, round(10 * action) + 100
        if self._steps:
            self._pictures = np.concatenate([self._pictures[1:], picture[None]])
        else:
            self._pictures = np.stack([picture] * self.STACK)
        if self._form == "dict":
            flags = np.array([self._steps % 2, self._seed % 2], np.int8)
            inner = (flags, np.array([self._steps % 2, 4 + self._steps % 3]))
            return {"camera": self._pictures, "inner": inner, "mode": 1 + self._steps % 3, "state": vector}
        return vector if self._form == "vector" else self._pictures

    def _info(self) -> dict[str, Any]:
        sizes = getattr(self.action_space, "nvec", [2])
        return {"action_mask": np.concatenate([np.arange(n) != self._steps % n for n in sizes])} if self._masked else {}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._seed = int(self.np_random.integers(100)) if seed is None else seed % 100
        self._steps = 0
        return self._observe(-1.0), self._info()

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action), f"{action!r} is not in {self.action_space}"
        assert self._steps < self._length, "stepped after the end of the episode"
        if self._waiting:
            hold()
        if self._masked:
            chosen = np.ravel(action) - getattr(self.action_space, "start", 0)
            assert all(c != self._steps % n for c, n in zip(chosen, getattr(self.action_space, "nvec", [2]), strict=True))
        self._steps += 1
        over = self._steps == self._length
        terminated = over and self._end in ("terminated", "both")
        truncated = over and self._end in ("truncated", "both")
        obs = self._observe(float(np.sum(action)))
        return obs, float(self._steps), terminated, truncated, self._info()


class ContinuousActions(gym.ActionWrapper[Any, Any, Any]):
    """One number in [-2, 6] in place of a discrete action: the range in as many equal parts as there are actions."""

    LOW, HIGH = -2.0, 6.0

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        super().__init__(env)
        self.action_space = spaces.Box(self.LOW, self.HIGH, (1,), np.float32)

    def action(self, action: Any) -> Any:
        assert self.action_space.contains(action), f"{action} is not in {self.action_space}"
        discrete = self.env.action_space
        assert isinstance(discrete, spaces.Discrete)
        part = int((action[0] - self.LOW) / (self.HIGH - self.LOW) * discrete.n)
        return discrete.start + min(part, int(discrete.n) - 1)


class Pictures(gym.Wrapper[Any, Any, Any, Any]):
    """Vectors as pictures: a band of rows for each number, as bright as it is large. Three pictures are stacked."""

    SIZE, STACK = 12, 3

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        super().__init__(env)
        self.observation_space = spaces.Box(0, 255, (self.STACK, self.SIZE, self.SIZE), np.uint8)
        self._stack = np.zeros((self.STACK, self.SIZE, self.SIZE), np.uint8)

    def _draw(self, vector: Obs) -> np.ndarray[Any, np.dtype[np.uint8]]:
        bands = np.repeat(vector, self.SIZE // len(vector))
        brightness = np.clip(np.round(20.0 * bands) + 128.0, 0.0, 255.0).astype(np.uint8)
        return np.repeat(brightness[:, None], self.SIZE, axis=1)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        obs, info = self.env.reset(seed=seed, options=options)
        self._stack = np.stack([self._draw(obs)] * self.STACK)
        return self._stack.copy(), info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        obs, reward, terminated, truncated, info = self.env.step(action)
        self._stack = np.concatenate([self._stack[1:], self._draw(obs)[None]])
        return self._stack.copy(), reward, terminated, truncated, info
