"""An environment object that gym.make made is remembered by its spec, so that commands can make it again."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest
from conftest import TINY, settings_of

from rl_training import DQN
from rl_training.api.environments import describe_env
from rl_training.cli import main
from rl_training.envs.restoring import NonDeterministicEnvironment

SETTINGS: dict[str, Any] = {**settings_of("dqn", TINY), "total_timesteps": 60, "checkpoint": {"interval": 30}}


def test_eval_from_the_shell_works_after_training_on_an_object(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    env = gym.make("CartPole-v1", sutton_barto_reward=True)
    with DQN(env, output_dir=str(tmp_path / "run"), **SETTINGS) as agent:
        agent.learn()
        expected = agent.evaluate(3).returns
    assert main(["eval", str(tmp_path / "run"), "--episodes=3", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["returns"] == expected  # the rewards of these arguments
    assert main(["resume", str(tmp_path / "run"), "--total-timesteps=90", "--quiet"]) == 0


@pytest.mark.parametrize("mode", ["vector_entry_point", "sync", "async"])
def test_eval_from_the_shell_works_after_training_on_a_vector_environment(
    mode: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    env = gym.make_vec("CartPole-v1", num_envs=2, vectorization_mode=mode, sutton_barto_reward=True)
    run = str(tmp_path / "run")
    with DQN(env, output_dir=run, **SETTINGS) as agent:
        agent.learn()
        with DQN("CartPole-v1", env_kwargs={"sutton_barto_reward": True}, init_from=run, **SETTINGS) as single:
            expected = single.evaluate(3).returns
    assert main(["eval", run, "--episodes=3", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["returns"] == expected
    assert main(["resume", run, "--total-timesteps=90", "--quiet"]) == 2
    assert "resume(run, env=gym.make_vec('CartPole-v1', num_envs=2, sutton_barto_reward=True))" in capsys.readouterr().err
    again = gym.make_vec("CartPole-v1", num_envs=2, vectorization_mode=mode, sutton_barto_reward=True)
    with pytest.warns(NonDeterministicEnvironment), DQN.resume(run, env=again) as resumed:
        resumed.learn(90)


def test_the_spec_of_a_vector_environment_describes_its_members() -> None:
    make, twice = functools.partial(gym.make_vec, "CartPole-v1", num_envs=2), {"num_envs": 2, "env_vector": True}
    wrapped = [functools.partial(gym.wrappers.TransformReward, func=lambda reward: -float(reward))]
    cases: list[tuple[Any, dict[str, Any] | None]] = [
        (make(), {"env_id": "CartPole-v1", "env_kwargs": {}, **twice}),
        (
            make(vectorization_mode="sync", vector_kwargs={"copy": False}),
            {"env_id": "CartPole-v1", "env_kwargs": {}, **twice},
        ),
        (gym.make_vec("Pendulum-v1", num_envs=2, g=5.0), {"env_id": "Pendulum-v1", "env_kwargs": {"g": 5.0}, **twice}),
        (make(vectorization_mode="sync", wrappers=wrapped), None),
        (make(max_episode_steps=9), None),
        (gym.wrappers.vector.TransformReward(make(), lambda reward: -reward), None),
        (gym.vector.SyncVectorEnv([lambda: gym.make("CartPole-v1")] * 2), None),
    ]
    for env, expected in cases:
        values, factory = describe_env(env)
        assert factory is not None
        env.close()
        if expected is None:
            assert values["env_from_python"], env
        else:
            assert values == expected


def test_the_spec_describes_what_was_made() -> None:
    import rl_training_test_envs

    assert rl_training_test_envs
    cases: list[tuple[gym.Env[Any, Any], dict[str, Any] | None]] = [
        (gym.make("CartPole-v1"), {"env_id": "CartPole-v1", "env_kwargs": {}}),
        (gym.make("Pendulum-v1", g=5.0), {"env_id": "Pendulum-v1", "env_kwargs": {"g": 5.0}}),
        (gym.make("Pendulum-v1", render_mode="rgb_array"), {"env_id": "Pendulum-v1", "env_kwargs": {}}),
        (gym.make("Counting-v0"), {"env_id": "rl_training_test_envs:Counting-v0", "env_kwargs": {}}),
        (gym.wrappers.TransformReward(gym.make("CartPole-v1"), lambda reward: -float(reward)), None),
        (gym.wrappers.TimeLimit(gym.make("CartPole-v1"), 7), None),
        (gym.make("CartPole-v1", max_episode_steps=9), None),
        (gym.make("CartPole-v1").unwrapped, None),
    ]
    for env, expected in cases:
        values, factory = describe_env(env)
        assert factory is not None
        if expected is None:
            assert values["env_from_python"], env
        else:
            assert values == expected
