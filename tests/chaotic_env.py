"""An environment that breaks one of Gymnasium's rules in one of many ways, drawn from its ``number``."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

ODD_NUMBERS: list[Any] = [
    np.nan, np.inf, -np.inf, 1e40, -1e300, 10**400, "1", "", None, [], [1.0], {}, np.zeros(2), np.zeros((1, 1)), 1j, True,
    np.float64("nan"), np.array("x"), object(), b"1", np.datetime64("2020-01-01"), -0.0, 2**63, np.int8(-3), {1}, (1, 2),
]  # fmt: skip
ODD_OBSERVATIONS: list[Any] = [
    *ODD_NUMBERS, np.zeros(3, np.float32), np.zeros((2, 1)), np.zeros(0), np.array(["a", "b"]), np.array([1, None]), [0, 1],
    [[0], [0, 1]], np.array([np.nan, 0.0]), np.array([np.inf, 0.0]), np.full(2, 1e39), np.zeros(2, complex),
    np.zeros(2, bool), np.zeros(2, np.uint8), np.array([5.0, 0.0]), np.zeros(2, "datetime64[s]"),
    np.ma.masked_array([0.0, 1.0], [True, False]), {"a": 1}, (np.zeros(2), np.zeros(2)), np.zeros(2, np.float16),
    np.zeros(2, np.longdouble),
]  # fmt: skip
ODD_SPACES: list[Callable[[], Any]] = [
    lambda: spaces.Box(-1, 1, (0,)),
    lambda: spaces.Box(-1, 1, ()),
    lambda: spaces.Box(np.array([1.0, np.nan], np.float32), np.array([2.0, np.nan], np.float32)),
    lambda: spaces.Box(1, -1, (2,)),
    lambda: spaces.Box(0, 255, (2, 2, 2, 2), np.uint8),
    lambda: spaces.Box(0, 255, (3, 3), np.uint8),
    lambda: spaces.Box(-1, 1, (2,), np.int64),
    lambda: spaces.Box(-1, 1, (2,), np.float64),
    lambda: spaces.Box(-np.inf, np.inf, (2,)),
    lambda: spaces.Discrete(1),
    lambda: spaces.Discrete(3, start=-7),
    lambda: spaces.Discrete(2**40),
    lambda: spaces.MultiDiscrete([2, 3]),
    lambda: spaces.MultiDiscrete(np.array([[2, 3], [1, 1]])),
    lambda: spaces.MultiBinary(3),
    lambda: spaces.Dict({}),
    lambda: spaces.Dict({"a": spaces.Box(-1, 1, (2,)), "b": spaces.Discrete(3)}),
    lambda: spaces.Tuple(()),
    lambda: spaces.Tuple((spaces.Discrete(2), spaces.Box(-1, 1, (1,)))),
    lambda: spaces.Text(3),
    lambda: spaces.Graph(spaces.Box(-1, 1, (1,)), None),
    lambda: spaces.Sequence(spaces.Discrete(2)),
    lambda: spaces.OneOf((spaces.Discrete(2), spaces.Discrete(3))),
    lambda: None,
    lambda: 3,
    lambda: spaces.Box,
]
ODD_MASKS: list[Any] = [*ODD_NUMBERS, np.zeros(3), np.ones(2), np.array([1, 2, 3]), np.array([0.5, 0.5, 0]), [1, 1], "111"]
ODD_RESULTS: list[Callable[[Any], Any]] = [
    lambda result: None,
    lambda result: result[0],
    lambda result: result[:-1],
    lambda result: (*result, 1),
    lambda result: list(result),
    lambda result: (*result[:-1], None),
    lambda result: (*result[:-1], [1]),
    lambda result: (*result[:-1], {1: 2}),
    lambda result: iter(result),
    lambda result: "xxxxx",
    lambda result: {"obs": result[0]},
]
FAULTS: list[Callable[[], BaseException]] = [
    lambda: ValueError(""),
    lambda: ValueError("two\nlines \x1b[31m \0"),
    lambda: ValueError(b"\xff", object()),
    lambda: KeyError(("a", 1)),
    lambda: StopIteration(3),
    lambda: GeneratorExit(),
    lambda: RecursionError("too deep"),
    lambda: MemoryError(),
    lambda: OSError(28, "No space left on device"),
    lambda: UnicodeDecodeError("utf-8", b"x", 0, 1, "bad"),
    lambda: SystemExit(0),
    lambda: SystemExit("bye"),
    lambda: AssertionError(),
    lambda: gym.error.ResetNeeded("reset me"),
    lambda: Unprintable(),
]


KINDS = ("obs", "obs", "reward", "flag", "mask", "space", "action space", "result", "reset result", "fault", "reset fault")


class Unprintable(Exception):
    """Cannot even be shown."""

    def __str__(self) -> str:
        raise ValueError("no words")

    __repr__ = __str__


class ChaoticEnv(gym.Env[Any, Any]):
    """Episodes of at most seven steps. ``number`` decides what is odd, and from which call on."""

    def __init__(self, number: int = 0, continuous: bool = False) -> None:
        rng = random.Random(f"chaos {number}")
        self.observation_space: Any = spaces.Box(-1, 1, (2,), np.float32)
        self.action_space: Any = spaces.Box(-1, 1, (1,), np.float32) if continuous else spaces.Discrete(3)
        self.kind = rng.choice(KINDS)
        self._from = rng.choice([1, 2, 5, 20, 33])
        self._calls, self._steps = 0, 0
        self._which = rng.random()
        self._masked = self.kind == "mask"
        if self.kind == "space":
            self.observation_space = self._pick(ODD_SPACES)()
        if self.kind == "action space":
            self.action_space = self._pick(ODD_SPACES)()

    def _pick(self, choices: list[Any]) -> Any:
        return choices[int(self._which * len(choices))]

    def _odd(self, *kinds: str) -> bool:
        return self.kind in kinds and self._calls >= self._from

    def _observation(self) -> Any:
        if self._odd("obs"):
            return self._pick(ODD_OBSERVATIONS)
        if self.kind == "space" and isinstance(self.observation_space, spaces.Space):
            return self.observation_space.sample()
        return np.full(2, 0.1 * self._steps, np.float32)

    def _info(self) -> dict[str, Any]:
        mask = self._pick(ODD_MASKS) if self._odd("mask") else np.array([1, 1, 0], np.int8)
        return {"action_mask": mask} if self._masked else {}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._calls += 1
        self._steps = 0
        if self._odd("reset fault"):
            raise self._pick(FAULTS)()
        result = (self._observation(), self._info())
        odd: Any = self._pick(ODD_RESULTS)(result) if self._odd("reset result") else result
        return odd  # type: ignore[no-any-return]

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        self._calls += 1
        self._steps += 1
        if self._odd("fault"):
            raise self._pick(FAULTS)()
        reward = self._pick(ODD_NUMBERS) if self._odd("reward") else 1.0
        flag = self._pick(ODD_NUMBERS) if self._odd("flag") else False
        result = (self._observation(), reward, flag, self._steps == 7, self._info())
        odd: Any = self._pick(ODD_RESULTS)(result) if self._odd("result") else result
        return odd  # type: ignore[no-any-return]


gym.register("Chaotic-v0", entry_point=f"{__name__}:ChaoticEnv")
