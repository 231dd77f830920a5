"""MinAtar (extra ``minatar``)."""

from __future__ import annotations

import numpy as np
import pytest

from rl_training.envs.factory import RegisteredEnv
from rl_training.envs.pool import SeededEnvPool
from rl_training.envs.wrappers import WrappedEnv
from rl_training.experiment.config import load_config_data, resolve_config
from rl_training.experiment.packaged import packaged_configs
from rl_training.runtime.trainer import Trainer

GAMES = ("asterix", "breakout", "freeway", "seaquest", "space_invaders")


def test_a_game_is_restored_exactly() -> None:
    pytest.importorskip("minatar")
    env_id = "rl_training.envs.minatar:MinAtar/Breakout-v1"
    factory = WrappedEnv(RegisteredEnv(env_id), ({"name": "channels_first"},))
    original, restored = SeededEnvPool(factory, seed=1), SeededEnvPool(factory, seed=1)
    original.reset()
    for k in range(60):
        original.step(np.array([k % 3]))
    assert restored.load_state_dict(original.state_dict()) == []
    for k in range(60):
        expected, got = (pool.step(np.array([k % 3]))[0] for pool in (original, restored))
        np.testing.assert_array_equal(expected.next_obs, got.next_obs)


@pytest.mark.parametrize("game", ["Asterix", "Breakout", "SpaceInvaders"])
def test_an_episode_knows_nothing_of_the_one_before(game: str) -> None:
    """One step in ten repeats the previous action, except the first step of an episode."""
    pytest.importorskip("minatar")
    factory = WrappedEnv(RegisteredEnv(f"rl_training.envs.minatar:MinAtar/{game}-v1"), ({"name": "channels_first"},))
    pool, restored = (SeededEnvPool(factory, num_envs=64, seed=3) for _ in range(2))
    actions = np.ones(64, np.int64)
    pool.reset()
    pool.step(actions)
    first = pool.obs
    while waiting := [i for i in range(64) if (pool._episode[i], pool._log.lengths[i]) != (1, 1)]:
        pool.step(actions, waiting)
    assert restored.load_state_dict(pool.state_dict()) == []  # each after the first step of its second episode
    np.testing.assert_array_equal(restored.obs, pool.obs)
    pool.reset()  # another evaluation begins as the one before
    pool.step(actions)
    np.testing.assert_array_equal(pool.obs, first)


CONFIGS = [name for name in packaged_configs() if "minatar_" in name]


def test_every_game_has_a_config_of_each_algorithm() -> None:
    prefixes = ("dqn/minatar_", "c51/rainbow_minatar_", "r2d2/minatar_")
    assert set(CONFIGS) == {f"{prefix}{game}" for prefix in prefixes for game in GAMES}


@pytest.mark.parametrize("name", CONFIGS)
def test_a_packaged_config_trains(name: str) -> None:
    pytest.importorskip("minatar")
    data = load_config_data(name)
    data |= {"total_timesteps": 400, "num_envs": 4, "compile": "off"}
    data["eval"] = {"interval": 0, "final_episodes": 1, "budget": 0.1}
    data["algo_kwargs"] |= {"buffer_size": 500, "learning_starts": 200}
    result = Trainer(resolve_config(data)).train()
    assert result.updates > 0
    assert np.isfinite(result.metrics["loss"])
