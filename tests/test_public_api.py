"""The Python surface: one agent object that learns, evaluates, predicts, saves, loads, resumes and exports."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import rl_training_test_envs as test_envs
import torch
import yaml
from conftest import final_fingerprint, tiny_values
from gymnasium import spaces

from rl_training import DQN, PPO, ManagedAlgorithm, load_agent
from rl_training.errors import CheckpointError, ConfigError, ObservationError, SpaceError

TINY: dict[str, Any] = {
    "learning_starts": 50,
    "hidden_sizes": (16,),
    "batch_size": 16,
    "eval": {"interval": 0, "final_episodes": 2, "num_envs": 2},
    "checkpoint": {"interval": 100},
    "log": {"tensorboard": False},
}
OBS = np.array([0.01, -0.02, 0.03, 0.04], np.float32)


def weights(agent: ManagedAlgorithm) -> dict[str, torch.Tensor]:
    return agent.policy.state_dict()


def assert_same_weights(first: ManagedAlgorithm, second: ManagedAlgorithm) -> None:
    assert weights(first).keys() == weights(second).keys()
    for name, value in weights(first).items():
        assert torch.equal(value, weights(second)[name]), name


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> ManagedAlgorithm:
    run = tmp_path_factory.mktemp("api") / "run"
    agent = DQN("CartPole-v1", seed=1, learning_rate=1e-3, output_dir=str(run), **TINY)
    agent.learn(total_timesteps=300)
    agent.close()
    return DQN.load(run)


# ---------------------------------------------------------------------------------------------------- the whole way


def test_fewer_steps_than_learning_needs_are_the_first_part_of_a_run(tmp_path: Path) -> None:
    """Parts of 30, 60 and 300 steps, where the first update is made after 50, end where one run of 300 does."""
    whole, parts = (DQN("CartPole-v1", seed=1, total_timesteps=300, output_dir=str(tmp_path / name), **TINY) for name in "ab")
    whole.learn()
    for total, updates in ((30, False), (60, True), (300, True)):
        parts.learn(total)
        assert parts.result is not None
        assert parts.result.env_steps == total
        assert bool(parts.result.updates) is updates
        assert parts.config.total_timesteps == 300
    assert_same_weights(whole, parts)
    for agent in (whole, parts):
        agent.close()
    with pytest.raises(ConfigError, match="total_timesteps"):
        DQN("CartPole-v1", **TINY).learn(0)
    with pytest.raises(ConfigError, match="learning_starts"):
        DQN("CartPole-v1", **{**TINY, "total_timesteps": 30})
    long_rollouts = PPO("CartPole-v1", total_timesteps=300, n_steps=64)
    long_rollouts.learn(32)
    assert long_rollouts.result is not None
    assert long_rollouts.result.updates == 0


def test_the_habits_of_the_field(tmp_path: Path) -> None:
    agent = DQN("CartPole-v1", seed=1, learning_rate=1e-3, **TINY)
    before = weights(agent)
    assert agent.learn(total_timesteps=200) is agent
    assert any(not torch.equal(value, weights(agent)[name]) for name, value in before.items())
    assert agent.result is not None
    assert (agent.result.env_steps, agent.result.run_dir) == (200, None)
    evaluation = agent.evaluate(episodes=3)
    assert len(evaluation.returns) == 3
    assert evaluation.returns == agent.evaluate(episodes=3).returns
    action, state = agent.predict(OBS, state=None, episode_start=None, deterministic=True)
    assert (action.shape, state) == ((), ())
    agent.save(tmp_path / "saved")
    loaded = DQN.load(tmp_path / "saved")
    assert_same_weights(loaded, agent)
    assert loaded.config.algo_kwargs == agent.config.algo_kwargs
    assert loaded.evaluate(3).returns == evaluation.returns
    assert agent.export(tmp_path / "policy.safetensors").stat().st_size > 0


def test_nothing_is_written_unless_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    DQN("CartPole-v1", **TINY).learn(120).evaluate(1)
    assert list(tmp_path.iterdir()) == []


def test_settings_go_where_they_belong() -> None:
    agent = DQN("CartPole-v1", seed=3, num_envs=2, gamma=0.5, **TINY)
    assert (agent.config.seed, agent.config.num_envs, agent.config.algo_kwargs.gamma) == (3, 2, 0.5)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("learning_rat", "did you mean 'learning_rate'"),
        ("sede", "did you mean 'seed'"),
        ("batch_sizes", "did you mean 'batch_size'"),
        ("zzzzzz", "the closest of the "),
    ],
)
def test_an_unknown_setting_is_named_with_the_nearest(name: str, expected: str) -> None:
    settings: dict[str, Any] = {name: 1}
    with pytest.raises(ConfigError, match=f"DQN has no setting '{name}'; {expected}"):
        DQN("CartPole-v1", **settings)


def test_from_config_takes_a_name_a_file_and_settings_on_top(tmp_path: Path) -> None:
    packaged = DQN.from_config("dqn/cartpole", seed=5, batch_size=32)
    assert (packaged.config.env_id, packaged.config.seed) == ("CartPole-v1", 5)
    written = yaml.safe_load(packaged.config.to_yaml())["algo_kwargs"]
    assert (written["batch_size"], written["double"]) == (32, True)
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(tiny_values("dqn")))
    from_file = DQN.from_config(str(tmp_path / "mine.yaml"), env="Acrobot-v1")
    assert (from_file.config.env_id, from_file.config.total_timesteps) == ("Acrobot-v1", 240)
    with pytest.raises(ConfigError, match="did you mean 'dqn/cartpole'"):
        DQN.from_config("dqn/cartpol")


# ------------------------------------------------------------------------------------------------ continuing exactly


def test_learning_in_two_calls_is_learning_in_one() -> None:
    one = DQN("CartPole-v1", seed=4, **TINY).learn(260)
    two = DQN("CartPole-v1", seed=4, **TINY).learn(130)
    assert any(not torch.equal(value, weights(two)[name]) for name, value in weights(one).items())
    two.predict(OBS, deterministic=False)
    two.evaluate(2)
    two.learn(260)
    assert_same_weights(one, two)


def test_learning_to_where_it_already_is_warns() -> None:
    agent = DQN("CartPole-v1", **TINY).learn(120)
    before = weights(agent)
    with pytest.warns(UserWarning, match="already seen 120 steps"):
        agent.learn(120)
    assert all(torch.equal(value, weights(agent)[name]) for name, value in before.items())


def test_a_full_checkpoint_learns_on_exactly(tmp_path: Path) -> None:
    one = DQN("CartPole-v1", seed=4, **TINY).learn(260)
    DQN("CartPole-v1", seed=4, **TINY).learn(130).save(tmp_path / "full", full=True)
    assert_same_weights(one, DQN.load(tmp_path / "full").learn(260))


def test_resume_continues_in_the_run_directory(tmp_path: Path) -> None:
    with DQN("CartPole-v1", seed=4, output_dir=str(tmp_path / "one"), **TINY) as one:
        one.learn(260)
    with DQN("CartPole-v1", seed=4, output_dir=str(tmp_path / "two"), **TINY) as stopped:
        stopped.learn(130)
    with DQN.resume(tmp_path / "two") as two:
        two.learn(260)
        assert_same_weights(one, two)
    assert final_fingerprint(tmp_path / "one") == final_fingerprint(tmp_path / "two")


def test_one_agent_owns_a_run_directory(tmp_path: Path) -> None:
    with DQN("CartPole-v1", output_dir=str(tmp_path / "run"), **TINY).learn(120):
        with pytest.raises(CheckpointError, match="another process is training"):
            DQN.resume(tmp_path / "run")
        with pytest.raises(ConfigError, match="already holds a run"):
            DQN("CartPole-v1", output_dir=str(tmp_path / "run"), **TINY).learn(120)
    DQN.resume(tmp_path / "run").close()


def test_a_closed_agent_still_acts(trained: ManagedAlgorithm) -> None:
    with DQN("CartPole-v1", seed=1, learning_rate=1e-3, **TINY).learn(300) as agent:
        returns = agent.evaluate(3).returns
    assert_same_weights(agent, trained)
    assert agent.evaluate(3).returns == returns


def test_load_agent_finds_the_class(tmp_path: Path) -> None:
    DQN("CartPole-v1", seed=2, **TINY).save(tmp_path / "saved")
    agent = load_agent(tmp_path / "saved")
    assert type(agent) is DQN
    assert agent.config.seed == 2


# ----------------------------------------------------------------------------------------------------------- predict


def test_one_observation_or_a_batch(trained: ManagedAlgorithm) -> None:
    batch = np.random.default_rng(0).normal(size=(20, 4)).astype(np.float32)
    actions, _ = trained.predict(batch)
    assert actions.shape == (20,)
    for obs, action in zip(batch, actions, strict=True):
        single, _ = trained.predict(obs)
        assert single.shape == ()
        assert single == action
    assert trained.predict(OBS.tolist())[0] == trained.predict(OBS)[0] == trained.predict(OBS.astype(np.float64))[0]


@pytest.mark.parametrize(
    ("obs", "expected"),
    [
        ([0.0, 0.0, 0.0], r"shape \(3,\); this policy takes \(4,\)"),
        ([[[0.0] * 4]], r"shape \(1, 1, 4\)"),
        (1.0, r"shape \(\)"),
        ([0.0, 0.0, 0.0, np.nan], "NaN"),
        ([[0.0] * 4, [0.0, np.inf, 0.0, 0.0]], "infinity"),
        ([0.0, 0.0, 0.0, 1e300], "beyond float32"),
        (["a", "b", "c", "d"], "not an array of numbers"),
        (None, "not an array of numbers|shape|NaN"),
        ({"a": 1}, "not an array of numbers"),
    ],
)
def test_what_is_no_observation_is_refused(trained: ManagedAlgorithm, obs: Any, expected: str) -> None:
    with pytest.raises(ObservationError, match=expected):
        trained.predict(obs)


def test_predict_never_reloads_anything(trained: ManagedAlgorithm, tmp_path: Path) -> None:
    trained.save(tmp_path / "saved")
    agent = DQN.load(tmp_path / "saved")
    shutil.rmtree(tmp_path / "saved")
    assert agent.predict(OBS)[0] == trained.predict(OBS)[0]


def test_loading_and_evaluating_read_only_the_policy(trained: ManagedAlgorithm, tmp_path: Path) -> None:
    DQN("CartPole-v1", seed=1, **TINY).learn(120).save(tmp_path / "saved", full=True)
    for name in ("training.safetensors", "replay.safetensors"):
        (tmp_path / "saved" / name).write_bytes(b"damaged")
    agent = DQN.load(tmp_path / "saved")
    agent.predict(OBS)
    assert len(agent.evaluate(2).returns) == 2
    with pytest.raises(CheckpointError, match="is damaged"):
        agent.learn(200)


def test_chance_in_predict_has_a_stream_of_its_own() -> None:
    batch = np.zeros((200, 4), np.float32)
    first, second = (DQN("CartPole-v1", seed=6, **TINY).learn(60) for _ in range(2))
    assert np.array_equal(first.predict(batch, deterministic=False)[0], second.predict(batch, deterministic=False)[0])
    drawn = first.predict(batch, deterministic=False)[0]
    assert set(drawn.tolist()) == {0, 1}, "at the start of training half the actions are random"
    other = DQN("CartPole-v1", seed=7, **TINY).learn(60)
    assert not np.array_equal(drawn, other.predict(batch, deterministic=False)[0])
    assert len(set(first.predict(batch)[0].tolist())) == 1


# ------------------------------------------------------------------------------------------------------ environments


class Recording(gym.Wrapper[Any, Any, Any, Any]):
    """Notes what it is given."""

    def __init__(self, env: gym.Env[Any, Any], given: list[Any]) -> None:
        super().__init__(env)
        self.given = given

    def step(self, action: Any) -> Any:
        self.given.append(action)
        return super().step(action)


def test_actions_are_the_environments_own(tmp_path: Path) -> None:
    given: list[Any] = []
    agent = DQN(lambda: Recording(test_envs.OffsetActionsEnv(), given), **TINY)
    agent.learn(200)
    agent.evaluate(2)
    assert {int(action) for action in given} == {5, 6, 7}
    assert all(spaces.Discrete(3, start=5).contains(action) for action in given)
    obs = np.random.default_rng(0).normal(size=(300, 2)).astype(np.float32)
    assert set(agent.predict(obs, deterministic=False)[0].tolist()) == {5, 6, 7}
    actions = agent.predict(obs)[0]
    assert set(actions.tolist()) <= {5, 6, 7}
    onnxruntime = pytest.importorskip("onnxruntime")
    session = onnxruntime.InferenceSession(str(agent.export(tmp_path / "policy.onnx")))
    assert session.run(None, {"obs": obs})[0].tolist() == actions.tolist()


def test_an_environment_object_without_spec() -> None:
    env = test_envs.RandomWalkEnv()
    assert env.spec is None
    from_object, from_factory = DQN(env, **TINY), DQN(test_envs.RandomWalkEnv, **TINY)
    assert from_object.config.env_id == from_factory.config.env_id == "RandomWalkEnv"
    assert_same_weights(from_object.learn(150), from_factory.learn(150))
    assert from_object.evaluate(4).returns == from_factory.evaluate(4).returns


def test_an_environment_object_is_the_one_that_is_stepped() -> None:
    given: list[Any] = []
    env = Recording(gym.make("CartPole-v1"), given)
    agent = DQN(env, **TINY).learn(90)
    assert len(env.given) == 90
    assert agent.config.env_id == "CartPole-v1"
    assert_same_weights(agent, DQN("CartPole-v1", **TINY).learn(90))


def test_a_module_id_works_as_an_environment() -> None:
    assert len(DQN("rl_training_test_envs:Counting-v0", **TINY).learn(60).evaluate(2).returns) == 2


def test_discrete_observations() -> None:
    agent = DQN("FrozenLake-v1", env_kwargs={"is_slippery": True}, **TINY).learn(200)
    actions, _ = agent.predict(np.arange(16))
    assert actions.shape == (16,)
    assert agent.predict(15)[0] == actions[15]
    for bad in (16, -1, 0.5):
        with pytest.raises(ObservationError, match="whole numbers"):
            agent.predict(bad)


def test_what_is_no_environment_is_refused() -> None:
    with pytest.raises(ConfigError, match="env must be a Gymnasium id"):
        DQN(3)  # type: ignore[arg-type]


def test_spaces_that_the_algorithm_cannot_use_are_refused() -> None:
    with pytest.raises(SpaceError, match="continuous actions"):
        DQN(gym.make("Pendulum-v1"), **TINY).learn(100)


def test_a_policy_is_not_evaluated_on_other_spaces(trained: ManagedAlgorithm, tmp_path: Path) -> None:
    trained.save(tmp_path / "saved")
    with pytest.raises(SpaceError, match="trained with"):
        DQN.load(tmp_path / "saved", env="Acrobot-v1").evaluate(1)


def test_learning_from_a_loaded_policy_starts_the_target_there_too(trained: ManagedAlgorithm, tmp_path: Path) -> None:
    trained.save(tmp_path / "light")
    agent = DQN.load(tmp_path / "light")
    algorithm: Any = agent._get_trainer().algorithm
    assert torch.equal(algorithm.target_network.vector, algorithm.optimizer.parameters)


def test_an_environment_given_from_python_must_be_given_again(tmp_path: Path) -> None:
    run = tmp_path / "run"

    def negated() -> gym.Env[Any, Any]:
        return gym.wrappers.TransformReward(gym.make("CartPole-v1"), lambda reward: -float(reward))

    with DQN(negated(), output_dir=str(run), **TINY) as agent:
        agent.learn(150)
    with pytest.raises(ConfigError, match="pass it again as env= of load_agent, load or resume; the command line takes only"):
        DQN.resume(run)
    with DQN.resume(run, env=negated) as agent:
        assert agent.learn(200).evaluate(2).mean_return < 0


def test_an_environment_object_cannot_be_made_again() -> None:
    for settings in ({"env_workers": "subprocess"}, {"env_fresh": True}):
        with pytest.raises(ConfigError, match="pass a function"):
            DQN(gym.make("CartPole-v1"), **settings, **TINY).evaluate(1)


def test_stopping_early_does_not_shorten_the_run(tmp_path: Path) -> None:
    run = tmp_path / "run"
    with DQN("CartPole-v1", output_dir=str(run), **TINY) as agent:
        agent.learn(200)
        with pytest.warns(UserWarning, match="already seen"):
            agent.learn(100)
    assert yaml.safe_load((run / "config.yaml").read_text())["total_timesteps"] == 200
