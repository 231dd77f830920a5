"""n-step windows against a twin that looks at whole episodes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rl_training.data import NStepAccumulator
from rl_training.types import Step, Transitions

GAMMA = 0.9


def make_steps(lengths_by_env: list[list[tuple[int, str]]], count: int) -> list[Step]:
    """``count`` steps of environments that play episodes of these (length, end), over and over."""
    steps = []
    position = [(0, 0)] * len(lengths_by_env)  # (episode, step) of each environment
    for t in range(count):
        rows: list[tuple[Any, ...]] = []
        for env, episodes in enumerate(lengths_by_env):
            episode, k = position[env]
            length, end = episodes[episode % len(episodes)]
            over = k + 1 == length
            obs, next_obs = [env, episode, k], [env, episode, k + 1]
            rows.append(
                (
                    obs,
                    t % 2,
                    1.0 + t * 0.5,
                    next_obs,
                    over and end in ("terminated", "both"),
                    over and end in ("truncated", "both"),
                )
            )
            position[env] = (episode + 1, 0) if over else (episode, k + 1)
        obs_, action, reward, next_, terminated, truncated = zip(*rows, strict=True)
        steps.append(
            Step(
                np.array(obs_, np.float32),
                np.array(action),
                np.array(reward, np.float32),
                np.array(next_, np.float32),
                np.array(terminated, np.bool_),
                np.array(truncated, np.bool_),
            )
        )
    return steps


def brute_force(steps: list[Step], n: int) -> list[tuple[Any, ...]]:
    """For each step of each environment: look ahead n rewards or to the end of the episode, whichever comes first."""
    expected = []
    for env in range(len(steps[0].reward)):
        for t in range(len(steps)):
            total, k = 0.0, 0
            for later in steps[t : t + n]:
                total += GAMMA**k * float(later.reward[env])
                k += 1
                if later.terminated[env] or later.truncated[env]:
                    break
            last = steps[t + k - 1]
            ended = bool(last.terminated[env] or last.truncated[env])
            if k < n and not ended:
                continue  # the recording stops before this window is complete
            discount = 0.0 if last.terminated[env] else GAMMA**k
            expected.append(
                (steps[t].obs[env].tolist(), int(steps[t].action[env]), total, last.next_obs[env].tolist(), discount)
            )
    return sorted(expected)


def record_all(accumulator: NStepAccumulator, steps: list[Step]) -> list[tuple[Any, ...]]:
    rows: list[tuple[Any, ...]] = []
    for step in steps:
        items: Transitions | None = accumulator.record(step)
        if items is not None:
            assert items.reward.dtype == items.discount.dtype == np.float32
            rows += zip(*(field.tolist() for field in items[:5]), strict=True)
    return sorted(rows)


def assert_same(found: list[tuple[Any, ...]], expected: list[tuple[Any, ...]]) -> None:
    assert [row[:2] + row[3:4] for row in found] == [row[:2] + row[3:4] for row in expected]
    for column in (2, 4):
        np.testing.assert_allclose([row[column] for row in found], [row[column] for row in expected], rtol=1e-6)


episodes = st.lists(
    st.tuples(st.integers(1, 7), st.sampled_from(["terminated", "truncated", "both"])), min_size=1, max_size=4
)


@settings(max_examples=80, deadline=None)
@given(n=st.integers(1, 6), envs=st.lists(episodes, min_size=1, max_size=3), count=st.integers(1, 25))
def test_equals_the_brute_force_twin(n: int, envs: list[list[tuple[int, str]]], count: int) -> None:
    steps = make_steps(envs, count)
    assert_same(record_all(NStepAccumulator(len(envs), GAMMA, n), steps), brute_force(steps, n))


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("split", range(1, 12))
def test_a_saved_window_continues(n: int, split: int) -> None:
    steps = make_steps([[(5, "truncated")], [(3, "terminated"), (4, "truncated")]], 12)
    first, second = NStepAccumulator(2, GAMMA, n), NStepAccumulator(2, GAMMA, n)
    rows = record_all(first, steps[:split])
    second.load_state_dict(first.state_dict())
    assert_same(sorted(rows + record_all(second, steps[split:])), brute_force(steps, n))


def test_a_discarded_window_is_gone() -> None:
    steps = make_steps([[(9, "terminated")], [(9, "terminated")]], 4)
    accumulator = NStepAccumulator(2, GAMMA, 3)
    record_all(accumulator, steps[:2])
    accumulator.discard(0)
    assert {row[0][0] for row in record_all(accumulator, steps[2:])} == {1.0}
