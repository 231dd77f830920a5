"""The pool: true final observations, a seed for each episode, exact restoring, and faults that name themselves."""

from __future__ import annotations

import itertools
import threading
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import rl_training_test_envs as test_envs

from rl_training.envs.factory import GivenEnv, RegisteredEnv
from rl_training.envs.pool import EnvPool, Episode, NonDeterministicEnvironment, SeededEnvPool
from rl_training.envs.workers import ProcessWorker
from rl_training.errors import ConfigError, EnvironmentFault, SpaceError
from rl_training.rng import derive_seed


def make_pool(env_id: str = "Counting-v0", *, num_envs: int = 1, workers: str = "inline", **kwargs: Any) -> SeededEnvPool:
    fresh = kwargs.pop("fresh", False)
    factory = RegisteredEnv(f"rl_training_test_envs:{env_id}", kwargs)
    return SeededEnvPool(factory, num_envs=num_envs, seed=5, env_id=env_id, workers=workers, fresh=fresh)


@pytest.mark.parametrize(
    ("num_envs", "end", "workers"),
    [*itertools.product([1, 3], ["terminated", "truncated", "both"], ["inline"]), (3, "both", "subprocess")],
)
def test_steps_are_those_of_a_plain_loop(num_envs: int, end: str, workers: str) -> None:
    pool = make_pool(num_envs=num_envs, workers=workers, length=3, end=end)
    twins = [test_envs.CountingEnv(length=3, end=end) for _ in range(num_envs)]
    numbers = [0] * num_envs
    obs = [twin.reset(seed=derive_seed(5, "env", i, 0))[0] for i, twin in enumerate(twins)]
    pool.reset()
    rng = np.random.default_rng(0)
    for _ in range(8):
        actions = rng.integers(0, 2, num_envs)
        np.testing.assert_array_equal(pool.obs, np.stack(obs))
        step, finished = pool.step(actions)
        np.testing.assert_array_equal(step.obs, np.stack(obs))
        expected_finished = []
        for i, twin in enumerate(twins):
            next_obs, reward, terminated, truncated, _ = twin.step(int(actions[i]))
            np.testing.assert_array_equal(step.next_obs[i], next_obs)  # the final one, never that of the reset
            assert (step.reward[i], step.terminated[i], step.truncated[i]) == (reward, terminated, truncated)
            obs[i] = next_obs
            if terminated or truncated:
                expected_finished.append(Episode(i, numbers[i], 1.0 + 2.0 + 3.0, 3))
                numbers[i] += 1
                obs[i] = twin.reset(seed=derive_seed(5, "env", i, numbers[i]))[0]
        assert finished == expected_finished
    pool.close()


def test_episode_seeds_differ_everywhere() -> None:
    pool = make_pool(num_envs=2)
    seeds = {pool.episode_seed(i, k) for i in range(2) for k in range(500)}
    other_stream = {derive_seed(5, "eval", i, k) for i in range(2) for k in range(500)}
    assert len(seeds) == 1000
    assert not seeds & other_stream
    assert all(0 <= seed < 2**31 for seed in seeds)


RESTORED = ("CartPole-v1", "Acrobot-v1", "rl_training_test_envs:RandomWalk-v0")


@pytest.mark.parametrize(
    ("workers", "env_id"),
    [
        *(("inline", env_id) for env_id in RESTORED),
        *(
            pytest.param("subprocess", env_id, marks=[pytest.mark.slow] if number else [])
            for number, env_id in enumerate(RESTORED)
        ),
    ],
)
def test_a_restored_pool_continues_exactly(env_id: str, workers: str) -> None:
    def pool() -> EnvPool:
        return SeededEnvPool(RegisteredEnv(env_id), num_envs=2, seed=1, env_id=env_id, workers=workers)

    rng = np.random.default_rng(0)
    original, restored = pool(), pool()
    original.reset()
    for _ in range(37):
        original.step(rng.integers(0, 2, 2))
    assert restored.load_state_dict(original.state_dict()) == []
    for _ in range(40):
        actions = rng.integers(0, 2, 2)
        (found, found_episodes), (expected, expected_episodes) = restored.step(actions), original.step(actions)
        for a, b in zip(found, expected, strict=True):
            np.testing.assert_array_equal(a, b)
        assert found_episodes == expected_episodes  # returns and lengths that began before the save
    original.close()
    restored.close()


def test_a_non_deterministic_environment_causes_a_warning_and_starts_a_new_episode() -> None:
    original, restored = make_pool("Forgetful-v0", num_envs=2), make_pool("Forgetful-v0", num_envs=2)
    original.reset()
    original.step(np.array([1, 1]))
    with pytest.warns(NonDeterministicEnvironment, match="Forgetful-v0 .* is not deterministic"):
        strayed = restored.load_state_dict(original.state_dict())
    assert strayed == [0, 1]
    assert restored.state_dict()["episode"] == [1, 1]
    restored.step(np.array([1, 1]))


def test_a_restore_that_fails_halfway_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Environment 0 starts a new episode and environment 1 cannot: neither has happened, and both are tried again."""
    pool = make_pool("Forgetful-v0", num_envs=2)
    pool.reset()
    pool.step(np.array([1, 1]))
    state = pool.state_dict()
    begin = pool._begin_episode

    def fails(obs: Any, mask: Any, i: int, number: int) -> None:
        if i == 1:
            raise EnvironmentFault("broken", env_id="x", env_index=1, episode_seed=0, actions=[], step=0)
        begin(obs, mask, i, number)

    monkeypatch.setattr(pool, "_begin_episode", fails)
    with pytest.warns(NonDeterministicEnvironment), pytest.raises(EnvironmentFault):
        pool.load_state_dict(state)
    assert pool.state_dict()["episode"] == [0, 0]
    monkeypatch.setattr(pool, "_begin_episode", begin)
    with pytest.warns(NonDeterministicEnvironment):
        diverged = pool.load_state_dict(pool.state_dict())
    assert diverged == [0, 1]
    pool.close()


def test_an_environment_that_keeps_leftovers_is_exact_when_fresh() -> None:
    def run(fresh: bool) -> list[int]:
        original, restored = make_pool("Leftover-v0", fresh=fresh), make_pool("Leftover-v0", fresh=fresh)
        original.reset()
        for _ in range(40):
            original.step(np.array([1]))
        assert original.state_dict()["episode"][0] > 0
        return restored.load_state_dict(original.state_dict())

    assert run(fresh=True) == []
    with pytest.warns(NonDeterministicEnvironment, match="env_fresh"):
        assert run(fresh=False) == [0]


FAULTS = {
    "raise": "the motor is on fire",
    "nan": "not finite",
    "infinite-reward": "the reward is inf",
    "no-reward": "not a number",
    "shape": r"shape \(2,\), but the space has \(3,\)",
    "reset": "cannot reset",
}
#: what a worker process raises comes from there; what it returns is checked here, as that of any other
RAISED_ELSEWHERE = ("raise", "reset")


@pytest.mark.parametrize(
    ("fault", "problem", "workers"),
    [
        *((*fault, "inline") for fault in FAULTS.items()),
        *(
            pytest.param(*fault, "subprocess", marks=[] if fault[0] in RAISED_ELSEWHERE else [pytest.mark.slow])
            for fault in FAULTS.items()
        ),
    ],
)
def test_a_fault_names_itself_and_changes_nothing(fault: str, problem: str, workers: str) -> None:
    pool = make_pool("Faulty-v0", num_envs=2, fault=fault, workers=workers)
    pool.reset()
    rng = np.random.default_rng(0)
    with pytest.raises(EnvironmentFault, match=problem) as caught:
        for _ in range(100):
            before = pool.state_dict()
            pool.step(rng.integers(0, 2, 2))
    assert caught.value.env_index == 0
    assert caught.value.episode_seed == pool.episode_seed(0, 2)
    assert str(caught.value.episode_seed) in str(caught.value)
    assert caught.value.actions is not None
    assert len(caught.value.actions) == (0 if fault == "reset" else 5)
    after = pool.state_dict()
    assert after["episode"] == before["episode"]
    assert [list(actions) for actions in after["actions"]] == [list(actions) for actions in before["actions"]]
    np.testing.assert_array_equal(after["obs"], before["obs"])
    pool.close()


@pytest.mark.parametrize("workers", ["inline", "subprocess"])
def test_after_a_fault_all_environments_are_back_in_step(workers: str, tmp_path: Path) -> None:
    mended = tmp_path / "mended"
    pool = make_pool("Faulty-v0", num_envs=2, fault="raise", mended=str(mended), workers=workers)
    twin = make_pool("Faulty-v0", num_envs=2, fault="raise", mended=str(tmp_path))  # exists: never faulty
    for each in (pool, twin):
        each.reset()
    actions = np.array([1, 0])
    for _ in range(24):
        pool.step(actions)
        twin.step(actions)
    with pytest.raises(EnvironmentFault):
        pool.step(actions)
    mended.touch()
    for _ in range(10):
        (found, _), (expected, _) = pool.step(actions), twin.step(actions)
        np.testing.assert_array_equal(found.next_obs, expected.next_obs)
    pool.close()


def test_a_dead_worker_process_is_a_fault() -> None:
    pool = make_pool("Faulty-v0", fault="exit", workers="subprocess")
    pool.reset()
    with pytest.raises(EnvironmentFault, match="worker process has died"):
        for _ in range(100):
            pool.step(np.array([0]))
    pool.close()


def test_a_worker_that_died_unnoticed_is_replaced_when_the_pool_is_restored() -> None:
    pool, twin = (make_pool("RandomWalk-v0", num_envs=2, workers=workers) for workers in ("subprocess", "inline"))
    for each in (pool, twin):
        each.reset()
        each.step(np.array([1, 1]))
    state = pool.state_dict()
    worker = pool._workers.workers[0]
    assert isinstance(worker, ProcessWorker)
    worker._process.kill()
    worker._process.join()
    assert pool.load_state_dict(state) == []
    (found, _), (expected, _) = pool.step(np.array([1, 1])), twin.step(np.array([1, 1]))
    np.testing.assert_array_equal(found.next_obs, expected.next_obs)
    pool.close()
    twin.close()


def test_only_active_environments_move() -> None:
    pool = make_pool(num_envs=3, length=50)
    pool.reset()
    step, _ = pool.step(np.array([1, 1, 1]), active=[1])
    assert step.reward.tolist() == [0.0, 1.0, 0.0]
    assert pool.obs[:, 1].tolist() == [0.0, 1.0, 0.0]


def test_actions_with_an_offset_reach_the_environment() -> None:
    pool = make_pool("OffsetActions-v0")
    pool.reset()
    for action in (0, 1, 2):
        pool.step(np.array([action]))  # the environment asserts that 5, 6, 7 arrive
    assert pool.spec.action.start == 5


def test_discrete_observations_become_one_hot() -> None:
    pool = SeededEnvPool(RegisteredEnv("FrozenLake-v1"), seed=0)
    pool.reset()
    assert pool.obs.shape == (1, 16)
    assert pool.obs[0].tolist() == [1.0] + [0.0] * 15


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"observation": "dict"}, r"the entry 'words' .* is a Text space.*select_observation, keys: \[a\]"),
        ({"action": "text"}, "Text actions.*Discrete, MultiDiscrete, MultiBinary or a Box"),
        ({"action": "wide"}, r"a Box of whole numbers \(int64\) with up to 100001 values each.*at most 4096"),
    ],
)
def test_spaces_nobody_can_use_are_refused(kwargs: dict[str, Any], message: str) -> None:
    with pytest.raises(SpaceError, match=message):
        make_pool("OddSpaces-v0", **kwargs)


def test_unknown_environments_get_a_suggestion() -> None:
    with pytest.raises(ConfigError, match="unknown environment 'CartPol-v1'; did you mean 'CartPole-v1'"):
        RegisteredEnv("CartPol-v1")()
    with pytest.raises(ConfigError, match="cannot import the module 'no_such_module'"):
        RegisteredEnv("no_such_module:Env-v0")()
    with pytest.raises(ConfigError, match="does not take env_kwargs"):
        RegisteredEnv("CartPole-v1", {"no_such_argument": 1})()


def test_a_given_environment_is_used_once_and_then_copied() -> None:
    env: gym.Env[Any, Any] = gym.make("CartPole-v1")
    factory = GivenEnv(env)
    assert factory() is env
    assert factory() is not env


def test_a_closure_over_a_lock_cannot_go_to_a_worker_process() -> None:
    lock = threading.Lock()
    with pytest.raises(ConfigError, match=r"cannot be sent to a worker process .*; give the environment by its name"):
        SeededEnvPool(lambda: lock and gym.make("CartPole-v1"), workers="subprocess")


def test_a_lambda_is_sent_to_a_worker_process() -> None:
    length = 3
    factory = lambda: gym.wrappers.TimeLimit(gym.make("CartPole-v1"), length)  # noqa: E731
    pool = SeededEnvPool(factory, num_envs=2, workers="subprocess")
    pool.reset()
    finished = [episode for _ in range(length) for episode in pool.step(np.array([0, 1]))[1]]
    pool.close()
    assert [episode.length for episode in finished] == [length, length]


class LateMaskEnv(test_envs.MaskedEnv):
    """Says what is allowed after a step, but not after a reset."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        return super().reset(seed=seed)[0], {}


def test_a_mask_that_comes_late_is_a_fault() -> None:
    pool = SeededEnvPool(LateMaskEnv, num_envs=2, seed=0, env_id="Late-v0")
    pool.reset()
    with pytest.raises(EnvironmentFault, match=r"Late-v0.*action_mask after a step but had none after the first reset"):
        pool.step((pool.obs[:, 0].astype(np.int64) + 1) % 4)
