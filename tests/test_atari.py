"""Atari preprocessing on the real emulator (extra ``atari``), and what needs no emulator."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest

from rl_training.envs.atari import atari_pictures
from rl_training.envs.factory import RegisteredEnv
from rl_training.envs.pool import SeededEnvPool
from rl_training.envs.wrappers import WrappedEnv
from rl_training.errors import ConfigError
from rl_training.experiment.config import load_config_data, resolve_config
from rl_training.runtime.trainer import Trainer


def test_another_environment_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match=r"Atari games.*not for CartPole-v1"):
        atari_pictures(gym.make("CartPole-v1"))


def test_the_packaged_config_is_the_usual_preprocessing() -> None:
    config = resolve_config(load_config_data("dqn/atari_pong"))
    settings = config.algo_kwargs.model_dump()
    assert config.wrappers == ({"name": "atari"},)
    assert config.env_kwargs == {"frameskip": 1, "repeat_action_probability": 0.25}
    assert settings["frame_stack"] == 4
    assert settings["clip_reward"] == 1.0
    assert [list(layer) for layer in settings["cnn_layers"]] == [[32, 8, 4], [64, 4, 2], [64, 3, 1]]


def test_frames_are_skipped_and_stacked() -> None:
    pytest.importorskip("ale_py")
    env = WrappedEnv(RegisteredEnv("ale_py:ALE/Pong-v5", {"frameskip": 1}), ({"name": "atari", "noop_max": 0},))()
    obs, info = env.reset(seed=0)
    assert (obs.shape, obs.dtype) == ((4, 84, 84), np.uint8)
    assert (obs == obs[0]).all()
    after, _, _, _, info_after = env.step(0)
    assert info_after["frame_number"] - info["frame_number"] == 4
    np.testing.assert_array_equal(after[:3], obs[1:])


def test_an_episode_with_sticky_actions_is_restored_exactly() -> None:
    pytest.importorskip("ale_py")
    factory = WrappedEnv(RegisteredEnv("ale_py:ALE/Pong-v5", {"frameskip": 1}), ({"name": "atari"},))
    original, restored = SeededEnvPool(factory, seed=1), SeededEnvPool(factory, seed=1)
    original.reset()
    for action in (2, 3, 0, 2, 5, 1):
        original.step(np.array([action]))
    assert restored.load_state_dict(original.state_dict()) == []
    for action in (3, 3, 0):
        expected, got = (pool.step(np.array([action]))[0].next_obs for pool in (original, restored))
        np.testing.assert_array_equal(expected, got)


def test_the_packaged_config_trains() -> None:
    pytest.importorskip("ale_py")
    data = load_config_data("dqn/atari_pong")
    small = {"buffer_size": 200, "learning_starts": 40, "hidden_sizes": [16], "batch_size": 4}
    data["env_kwargs"]["max_num_frames_per_episode"] = 200
    data |= {"total_timesteps": 60, "threads": 1, "eval": {"interval": 0, "final_episodes": 1, "num_envs": 1}}
    trainer = Trainer(resolve_config({**data, "algo_kwargs": {**data["algo_kwargs"], **small}}))
    result = trainer.train()
    assert result.updates == 5
    assert np.isfinite(result.metrics["loss"])
