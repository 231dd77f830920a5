"""Truncation and reset conformance: what every algorithm stores is exactly what a plain hand-written loop would store."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from conftest import OFF_POLICY, config_fields, env_of_tests, family, settings_of, tiny_config
from replays import held_slots

from rl_training.algorithms.recurrent_value import RecurrentQLearning
from rl_training.algorithms.value import ValueAlgorithm
from rl_training.data import PrioritizedReplayBuffer, RecurrentReplayBuffer, ReplayBuffer
from rl_training.envs.factory import RegisteredEnv
from rl_training.envs.pool import Episode, SeededEnvPool
from rl_training.rng import derive_seed
from rl_training.runtime.learner import OffPolicyLearner
from rl_training.runtime.trainer import Trainer
from rl_training.types import Array, SpaceSpec, Step, TransitionBatch

GAMMA = 0.9
LENGTH = 4


class NotingPool(SeededEnvPool):
    """Notes the actions that go to the environments."""

    taken: list[list[Any]]

    def step(self, actions: Array, active: Sequence[int] | None = None) -> tuple[Step, list[Episode]]:
        self.taken.append(actions.tolist())
        return super().step(actions, active)


def hand_written_loop(
    env_id: str, spec: SpaceSpec, seed: int, env_index: int, end: str, actions: list[Any], length: int = LENGTH
) -> list[Any]:
    """The transitions of one environment under these actions."""
    rows, number = [], 0
    env = RegisteredEnv(env_id, {"length": length, "end": end})()
    obs, _ = env.reset(seed=derive_seed(seed, "env", env_index, number))
    for action in actions:
        next_obs, reward, terminated, truncated, _ = env.step(spec.action.to_env(np.asarray(action)[None])[0])
        discount = float(np.float32(0.0 if terminated else GAMMA))
        rows.append((obs.tolist(), action, reward, next_obs.tolist(), discount))
        obs = next_obs
        if terminated or truncated:
            number += 1
            obs, _ = env.reset(seed=derive_seed(seed, "env", env_index, number))
    return rows


def stored_transitions(buffer: Any) -> TransitionBatch:
    """All that a replay holds."""
    every = np.arange(len(buffer)) if isinstance(buffer, ReplayBuffer) else held_slots(buffer)
    batch: TransitionBatch = buffer.gather(every)
    return batch


def counting_run(algo: str, num_envs: int, end: str, length: int = LENGTH, **algo_kwargs: Any) -> tuple[Any, list[list[Any]]]:
    """A short training: its replay, and by environment the transitions that a plain loop makes of the same actions."""
    config = tiny_config(
        algo,
        **env_of_tests(algo, "Counting"),
        env_kwargs={"length": length, "end": end},
        num_envs=num_envs,
        total_timesteps=66,
        algo_kwargs={"gamma": GAMMA, "learning_starts": 30, "buffer_size": 100, **algo_kwargs},
        eval={"interval": 20, "final_episodes": 1, "episodes": 1, "num_envs": 1},
    )
    trainer = Trainer(config)
    trainer.pool.__class__ = NotingPool
    assert isinstance(trainer.pool, NotingPool)
    trainer.pool.taken = []
    trainer.train()
    assert isinstance(trainer.pool, NotingPool)
    assert isinstance(trainer.learner, OffPolicyLearner)
    by_env = [
        hand_written_loop(config.env_id, trainer.pool.spec, config.seed, i, end, list(actions), length)
        for i, actions in enumerate(zip(*trainer.pool.taken, strict=True))
    ]
    return trainer.learner.replay.buffer, by_env


#: by the number of environments, the end of an episode that is fast
FAST = {1: "both", 2: "truncated", 3: "terminated"}
ENDS = [
    pytest.param(num_envs, end, marks=[] if FAST[num_envs] == end else [pytest.mark.slow])
    for num_envs in FAST
    for end in ("terminated", "truncated", "both")
]


@pytest.mark.parametrize("algo", OFF_POLICY)
@pytest.mark.parametrize(("num_envs", "end"), ENDS)
def test_stored_transitions_are_those_of_a_plain_loop(algo: str, num_envs: int, end: str) -> None:
    buffer, by_env = counting_run(algo, num_envs, end, **settings_of(algo, {"n_step": 1}))
    if isinstance(buffer, RecurrentReplayBuffer):  # of the open episodes nothing is complete
        stored = steps_of_sequences(buffer)
        by_env = [rows[: len(rows) // LENGTH * LENGTH] for rows in by_env]
    else:
        batch = stored_transitions(buffer)
        stored = list(zip(*(field.tolist() for field in batch[:5]), strict=True))
        assert len(stored) == 66
    assert sorted(stored) == sorted(row for rows in by_env for row in rows)


def steps_of_sequences(buffer: RecurrentReplayBuffer) -> list[tuple[Any, ...]]:
    """What a buffer of sequences holds, as transitions from each step to the observation that it bootstraps from."""
    batch = buffer.gather(held_slots(buffer))
    rows = []
    for t, b in torch.nonzero(batch.mask).tolist():
        following = int(batch.bootstrap[t, b])
        assert t < following <= t + buffer.n_step
        scalars = (field[t, b].item() for field in (batch.action, batch.reward))
        rows.append((batch.obs[t, b].tolist(), *scalars, batch.obs[following, b].tolist(), batch.discount[t, b].item()))
    return rows


def n_step_transitions(rows: list[Any], n_step: int) -> list[tuple[Any, ...]]:
    """The transitions of one episode, with up to ``n_step`` rewards in each."""
    summed = []
    for t in range(len(rows)):
        window = rows[t : t + n_step]
        reward = sum(GAMMA**k * row[2] for k, row in enumerate(window))
        discount = GAMMA ** len(window) if window[-1][4] else 0.0
        summed.append((*rows[t][:2], reward, window[-1][3], discount))
    return summed


def complete_transitions(rows: list[Any], length: int, n_step: int, cut: int = 1) -> list[tuple[Any, ...]]:
    """Those over n steps of one environment's episodes; of the open one what is complete, in wholes of ``cut`` steps."""
    found = []
    for begin in range(0, len(rows), length):
        episode = rows[begin : begin + length]
        complete = length if len(episode) == length else max(0, len(episode) - n_step + 1) // cut * cut
        found += n_step_transitions(episode, n_step)[:complete]
    return found


def assert_same(stored: list[Any], expected: list[Any]) -> None:
    assert len(stored) == len(expected) > 40
    for found, row in zip(sorted(stored), sorted(expected), strict=True):
        np.testing.assert_allclose(np.hstack(found), np.hstack(row), rtol=1e-5)


@pytest.mark.parametrize("algo", family(ValueAlgorithm))
@pytest.mark.parametrize("end", ["terminated", "truncated", "both"])
@pytest.mark.parametrize("num_envs", [1, 3])
def test_prioritised_n_step_transitions_are_sums_by_hand(algo: str, num_envs: int, end: str) -> None:
    buffer, by_env = counting_run(algo, num_envs, end, n_step=3, prioritized=True)
    assert isinstance(buffer, PrioritizedReplayBuffer)
    stored = list(zip(*(field.tolist() for field in stored_transitions(buffer)[:5]), strict=True))
    assert_same(stored, [row for rows in by_env for row in complete_transitions(rows, LENGTH, 3)])


@pytest.mark.parametrize(
    ("algo", "n_step"),
    [(name, n) for name in family(RecurrentQLearning) for n in ((1, 3) if "n_step" in config_fields(name) else (1,))],
)
@pytest.mark.parametrize("end", ["terminated", "truncated", "both"])
@pytest.mark.parametrize("num_envs", [1, 2, 3])
def test_episodes_longer_than_a_sequence_are_stored_whole(algo: str, n_step: int, num_envs: int, end: str) -> None:
    """Cut into sequences of 3 steps, episodes of 8 still give every step, with what it earned beyond its sequence."""
    length, cut = 8, 3
    settings = settings_of(algo, {"n_step": n_step})
    buffer, by_env = counting_run(algo, num_envs, end, length, sequence_length=cut, **settings)
    expected = [row for rows in by_env for row in complete_transitions(rows, length, n_step, cut)]
    assert_same(steps_of_sequences(buffer), expected)
