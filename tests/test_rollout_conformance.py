"""What every on-policy algorithm learns from is exactly what a plain hand-written loop over the environments gives."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import rl_training_test_envs as test_envs
import torch
from conftest import ON_POLICY, settings_of, tiny_config

from rl_training.algorithms.on_policy import ActorCriticAlgorithm
from rl_training.data import Rollout
from rl_training.rng import derive_seed
from rl_training.runtime.learner import OnPolicyLearner
from rl_training.runtime.trainer import Trainer
from rl_training.types import Array, UpdateResult

GAMMA, LAMBDA, LENGTH, STEPS = 0.9, 0.8, 4, 7


def value_of(obs: Array) -> Array:
    """The value of an observation of CountingEnv by a formula, in place of a network."""
    value: Array = (obs[..., 0] / 100 + obs[..., 1] * 2 - obs[..., 2]).astype(np.float32)
    return value


def plain_loop(seed: int, env_index: int, end: str, actions: list[int]) -> list[tuple[Any, ...]]:
    """What one environment gives under these actions: observation, reward, final or next observation, the two flags."""
    rows, number = [], 0
    env = test_envs.CountingEnv(LENGTH, end)
    obs, _ = env.reset(seed=derive_seed(seed, "env", env_index, number))
    for action in actions:
        next_obs, reward, terminated, truncated, _ = env.step(action)
        rows.append((obs, reward, next_obs, terminated, truncated))
        obs = next_obs
        if terminated or truncated:
            number += 1
            obs, _ = env.reset(seed=derive_seed(seed, "env", env_index, number))
    return rows


def plain_advantages(rows: list[tuple[Any, ...]]) -> list[float]:
    advantages, later = [], 0.0
    for obs, reward, next_obs, terminated, truncated in reversed(rows):
        bootstrap = 0.0 if terminated else GAMMA * float(value_of(next_obs))
        delta = reward + bootstrap - float(value_of(obs))
        later = delta + (0.0 if terminated or truncated else GAMMA * LAMBDA * later)
        advantages.append(later)
    return advantages[::-1]


@pytest.mark.parametrize("algo", ON_POLICY)
@pytest.mark.parametrize("end", ["terminated", "truncated", "both"])
@pytest.mark.parametrize("num_envs", [1, 2, 3])
def test_rollouts_and_advantages_are_those_of_a_plain_loop(
    algo: str, num_envs: int, end: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"gamma": GAMMA, "gae_lambda": LAMBDA, "n_steps": STEPS, "n_minibatches": 2}
    config = tiny_config(
        algo,
        env_id="rl_training_test_envs:Counting-v0",
        env_kwargs={"length": LENGTH, "end": end},
        num_envs=num_envs,
        total_timesteps=3 * STEPS * num_envs,
        algo_kwargs=settings_of(algo, options),
        eval={"interval": 10, "final_episodes": 1, "episodes": 1, "num_envs": 1},
    )
    trainer = Trainer(config)
    rollouts: list[Rollout] = []
    update = trainer.algorithm.update

    def noting(rollout: Rollout, env_steps: int) -> UpdateResult:
        rollouts.append(copy.deepcopy(rollout))
        return update(rollout, env_steps)

    monkeypatch.setattr(trainer.algorithm, "update", noting)
    trainer.train()
    assert len(rollouts) == 3
    check_memory(rollouts)
    actions = np.concatenate([rollout.action for rollout in rollouts])
    for i in range(num_envs):
        rows = plain_loop(config.seed, i, end, actions[:, i].tolist())
        for k, rollout in enumerate(rollouts):
            part = rows[k * STEPS : (k + 1) * STEPS]
            stored = (rollout.obs, rollout.reward, rollout.next_obs, rollout.terminated, rollout.truncated)
            for array, expected in zip(stored, zip(*part, strict=True), strict=True):
                np.testing.assert_array_equal(array[:, i], np.array(expected))
            if isinstance(trainer.algorithm, ActorCriticAlgorithm):
                advantage = advantages(trainer.algorithm, rollout)
                np.testing.assert_allclose(advantage[:, i], plain_advantages(part), rtol=1e-4, atol=1e-4)


def advantages(algorithm: ActorCriticAlgorithm[Any], rollout: Rollout) -> Array:
    """What the algorithm makes of a rollout, with the formula in place of its value function."""
    phase = algorithm.begin_phase(rollout)
    phase.next_value = lambda time, env: torch.from_numpy(value_of(rollout.next_obs[time, env]))  # type: ignore[method-assign]
    advantage, target = algorithm.targets(phase, value_of(rollout.obs))
    np.testing.assert_allclose(target, advantage + value_of(rollout.obs), rtol=1e-6)
    return advantage


def check_memory(rollouts: list[Rollout]) -> None:
    """The memory before a step is the one after the step before, also from one rollout to the next, and zero where an
    episode starts."""
    ended = np.concatenate([rollout.ended for rollout in rollouts])
    before, after = (
        [np.concatenate(arrays) for arrays in zip(*memories, strict=True)]
        for memories in ([rollout.carry for rollout in rollouts], [rollout.carry_after for rollout in rollouts])
    )
    assert ended.any()
    for b, a in zip(before, after, strict=True):
        assert not b[0].any()
        assert a.any(axis=(2, 3)).all()
        np.testing.assert_array_equal(b[1:], a[:-1] * ~ended[:-1, :, None, None])


@pytest.mark.parametrize("algo", ON_POLICY)
def test_an_episode_that_cannot_continue_counts_as_truncated(algo: str) -> None:
    trainer = Trainer(tiny_config(algo, num_envs=2))
    trainer.train(10)
    learner = trainer.learner
    assert isinstance(learner, OnPolicyLearner)
    learner.discard(1)
    rollout = learner.rollout.rollout()
    assert rollout.truncated[-1].tolist() == [False, True]
    assert not rollout.terminated.any()
    for array in learner.rollout.whole().carry:
        assert not array[len(learner.rollout), 1].any()
        assert array[len(learner.rollout), 0].any()
