"""Small environments with known behaviour. As ``rl_training_test_envs:Name-v0`` they can be used from the command line."""

from __future__ import annotations

import fcntl
import functools
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

Obs = np.ndarray[Any, np.dtype[np.float32]]
#: Environment variables of ``WaitingEnv``.
WAIT_AT, FREEZE_AT, FREEZE_IN = "RL_TRAINING_TEST_WAIT_AT", "RL_TRAINING_TEST_FREEZE_AT", "RL_TRAINING_TEST_FREEZE_IN"


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
    """A random walk that holds its process where a test needs it; steps are counted over all environments of the process.

    From step ``WAIT_AT`` on it waits until the process has been asked to stop by a signal that training handles. From step
    ``FREEZE_AT`` on it freezes the whole process, with all its threads, once a checkpoint is being written in ``FREEZE_IN``.
    """

    _process_steps = 0
    _handler: Any = None

    @staticmethod
    def hold() -> None:
        WaitingEnv._handler = WaitingEnv._handler or signal.getsignal(signal.SIGTERM)
        WaitingEnv._process_steps += 1
        if WaitingEnv._process_steps >= int(os.environ.get(WAIT_AT, sys.maxsize)):
            while signal.getsignal(signal.SIGTERM) == WaitingEnv._handler:  # the first signal changes it
                time.sleep(0.002)
        freezing = WaitingEnv._process_steps >= int(os.environ.get(FREEZE_AT, sys.maxsize))
        if freezing and any(Path(os.environ[FREEZE_IN]).glob(".writing-*")):
            os.kill(os.getpid(), signal.SIGSTOP)

    def step(self, action: int) -> tuple[Obs, float, bool, bool, dict[str, Any]]:
        self.hold()
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
            WaitingEnv.hold()
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
