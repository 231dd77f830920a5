"""A Gymnasium ``VectorEnv`` as the pool: in every mode of automatic resets, it gives the steps of a plain loop."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from conftest import OFF_POLICY, ON_POLICY, family, settings_of, tiny_config
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv
from rl_training_test_envs import SpacesEnv
from spaces_matrix import MATRIX, OBSERVATIONS
from test_spaces_matrix import stored_rows

from rl_training import DQN, PPO, RecurrentPPO
from rl_training.algorithms.recurrent_value import RecurrentQLearning
from rl_training.data import RecurrentReplayBuffer
from rl_training.envs.pool import NonDeterministicEnvironment
from rl_training.envs.vector_pool import VectorEnvPool
from rl_training.errors import ConfigError, EnvironmentFault
from rl_training.experiment.registry import get_algorithm
from rl_training.runtime.learner import OffPolicyLearner, OnPolicyLearner
from rl_training.runtime.trainer import Trainer
from rl_training.types import Array, Step

LENGTHS = (4, 3)  # of the members' episodes, so that they end at different times


class NativeEnv(VectorEnv[Any, Any, Any]):
    """Members without objects of their own, as a simulator on a GPU has them: each counts its steps, and ``end`` says how its
    episodes end. Observes (number of the episode, steps since its start, last action); reward = steps."""

    def __init__(self, mode: AutoresetMode, end: str = "terminated") -> None:
        self.num_envs, self.metadata = 2, {"autoreset_mode": mode}
        self.single_observation_space = spaces.Box(-np.inf, np.inf, (3,), np.float32)
        self.single_action_space = spaces.Discrete(2)
        self.observation_space = spaces.Box(-np.inf, np.inf, (2, 3), np.float32)
        self.action_space = spaces.MultiDiscrete([2, 2])
        self._mode, self._end = mode, end
        self._state = np.zeros((2, 3), np.float32)
        self._over = np.zeros(2, np.bool_)
        self.real_steps = 0

    def _restart(self, members: Array) -> None:
        self._state[members] = self._state[members] * [1, 0, 0] + [1, 0, -1]
        self._over[members] = False

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self._restart((options or {}).get("reset_mask", np.ones(2, np.bool_)))
        return self._state.copy(), {}

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        assert self.action_space.contains(actions)
        resetting = self._over.copy() if self._mode is AutoresetMode.NEXT_STEP else np.zeros(2, np.bool_)
        assert resetting.any() or not self._over.any(), "stepped after the end of an episode"
        self.real_steps += int((~resetting).sum())
        self._state[:, 1] += 1
        self._state[:, 2] = actions
        self._restart(resetting)
        reward = np.where(resetting, 0.0, self._state[:, 1])
        ended = ~resetting & (self._state[:, 1] == LENGTHS)
        self._over = ended.copy()
        info: dict[str, Any] = {}
        if self._mode is AutoresetMode.SAME_STEP and ended.any():
            info["final_obs"] = np.full(2, None, object)
            for i in np.flatnonzero(ended):
                info["final_obs"][i] = self._state[i].copy()
            self._restart(ended)
        none = np.zeros(2, np.bool_)
        flags = (ended, none) if self._end == "terminated" else (none, ended)
        return self._state.copy(), reward, *flags, info


def member(length: int, end: str, **kwargs: Any) -> Any:
    return lambda: SpacesEnv(length=length, end=end, **kwargs)


def make_env(kind: str, mode: AutoresetMode, end: str, **kwargs: Any) -> Any:
    if kind == "native":
        return NativeEnv(mode, end)
    members = [member(length, end, **kwargs) for length in LENGTHS]
    return (SyncVectorEnv if kind == "sync" else AsyncVectorEnv)(members, autoreset_mode=mode)


class NotingVectorPool(VectorEnvPool):
    """Notes the steps."""

    steps: list[Step]

    def step(self, actions: Array, active: Any = None) -> Any:
        result = super().step(actions, active)
        self.steps.append(result[0])
        return result


def trained(algo: str, make: Any, steps: int = 60, **algo_kwargs: Any) -> tuple[Trainer, list[Step]]:
    config = tiny_config(
        algo,
        env_id="vector",
        env_from_python=True,
        num_envs=2,
        total_timesteps=90,
        algo_kwargs=settings_of(
            algo, {"n_step": 1, "gamma": 0.9, "learning_starts": 30, "buffer_size": 100, "n_steps": 20, **algo_kwargs}
        ),
        eval={"interval": 0, "final_episodes": 2, "num_envs": 1},
    )
    trainer = Trainer(config, factory=make)
    trainer.pool.__class__ = NotingVectorPool
    assert isinstance(trainer.pool, NotingVectorPool)
    trainer.pool.steps = []
    trainer.train(steps)
    return trainer, trainer.pool.steps


def check_plain_steps(rows: list[tuple[Any, ...]], end: str) -> None:
    """Each row is a step of one episode: the next observation follows from the observation and the action."""
    assert len(rows) >= 20
    for obs, action, reward, next_obs, discount in rows:
        assert next_obs[0] == obs[0], "across two episodes"
        assert next_obs[1:] == [obs[1] + 1, float(np.sum(action))]
        assert reward == next_obs[1]
        assert discount == pytest.approx(0.9) or (discount == 0.0 and end == "terminated" and next_obs[1] in LENGTHS)


MODES = [(kind, mode) for kind in ("sync", "native") for mode in AutoresetMode]
VALUE = [name for name in OFF_POLICY if "discrete" in get_algorithm(name).actions]


@pytest.mark.parametrize("algo", VALUE)
@pytest.mark.parametrize("end", ["terminated", "truncated"])
@pytest.mark.parametrize(("kind", "mode"), MODES)
def test_the_replay_holds_the_steps_of_a_plain_loop(algo: str, kind: str, mode: AutoresetMode, end: str) -> None:
    trainer, _ = trained(algo, lambda: make_env(kind, mode, end, observation="vector"))
    assert isinstance(trainer.learner, OffPolicyLearner)
    buffer = trainer.learner.replay.buffer
    rows = stored_rows(buffer)
    check_plain_steps(rows, end)
    if not isinstance(buffer, RecurrentReplayBuffer):  # of the open episodes nothing is complete there
        assert len(rows) == trainer.env_steps
    if kind == "native":
        assert isinstance(trainer.pool, VectorEnvPool)
        assert trainer.env_steps == trainer.pool._env.real_steps  # type: ignore[attr-defined]


@pytest.mark.parametrize("algo", ON_POLICY)
@pytest.mark.parametrize("end", ["terminated", "truncated"])
@pytest.mark.parametrize(("kind", "mode"), MODES)
def test_a_rollout_learns_from_the_steps_of_a_plain_loop(algo: str, kind: str, mode: AutoresetMode, end: str) -> None:
    trainer, _ = trained(
        algo, lambda: make_env(kind, mode, end, observation="vector"), 36, n_steps=40
    )  # so that nothing has been thrown away yet
    assert isinstance(trainer.learner, OnPolicyLearner)
    rollout = trainer.learner.rollout.rollout()
    present = np.ones_like(rollout.terminated) if rollout.present is None else rollout.present
    rows = [
        (
            rollout.obs[t, i].tolist(),
            [int(rollout.action[t, i])],
            float(rollout.reward[t, i]),
            rollout.next_obs[t, i].tolist(),
            0.0 if rollout.terminated[t, i] else 0.9,
        )
        for t, i in np.argwhere(present)
    ]
    check_plain_steps(rows, end)
    assert len(rows) == trainer.env_steps
    algorithm = trainer.algorithm
    phase = algorithm.begin_phase(rollout)  # type: ignore[attr-defined]
    minibatches = phase.minibatches(3, np.random.default_rng(0))
    steps = np.concatenate([phase.steps(minibatch).numpy() for minibatch in minibatches])
    assert sorted(steps.tolist()) == np.flatnonzero(present.reshape(-1)).tolist()
    result = algorithm.update(rollout)
    assert all(np.isfinite(value) for value in result.metrics.values())


@pytest.mark.parametrize("shared", [False, True])
def test_advantages_do_not_depend_on_when_the_environment_resets(shared: bool) -> None:
    found = []
    for mode in AutoresetMode:
        trainer, _ = trained("recurrent_ppo" if shared else "ppo", lambda mode=mode: NativeEnv(mode), 36, n_steps=44)
        assert isinstance(trainer.learner, OnPolicyLearner)
        rollout = trainer.learner.rollout.rollout()
        present = np.ones_like(rollout.terminated) if rollout.present is None else rollout.present
        value = np.where(present, rollout.obs[..., 1], 0.0).astype(np.float32)
        phase = trainer.algorithm.begin_phase(rollout)  # type: ignore[attr-defined]
        advantage, _ = trainer.algorithm.targets(phase, value)  # type: ignore[attr-defined]
        # two whole episodes of each member: what they earned depends neither on the actions nor on the network
        found.append(np.concatenate([advantage[present[:, i], i][: 2 * length] for i, length in enumerate(LENGTHS)]))
    for other in found[1:]:
        np.testing.assert_array_equal(other, found[0])


@pytest.mark.parametrize("mode", AutoresetMode)
def test_dicts_of_images_and_vectors_from_processes(mode: AutoresetMode) -> None:
    trainer, _ = trained("dqn", lambda: make_env("async", mode, "truncated", observation="dict"), frame_stack=3)
    assert isinstance(trainer.learner, OffPolicyLearner)
    assert len(stored_rows(trainer.learner.replay.buffer)) == trainer.env_steps >= 60
    trainer.close()


@pytest.mark.parametrize("case", [case for case in MATRIX if case.observation != "vector"], ids="-".join)
def test_every_algorithm_takes_a_vector_environment(case: Any) -> None:
    assert OBSERVATIONS[case.observation] in get_algorithm(case.algo).observations
    forms = {"observation": case.observation, "action": case.action}
    stacked = settings_of(case.algo, {"frame_stack": 3})
    trainer, steps = trained(
        case.algo, lambda: make_env("sync", AutoresetMode.SAME_STEP, "terminated", **forms), 44, **stacked
    )
    assert trainer.learner.updates > 0 or case.algo in family(RecurrentQLearning)
    assert all(step.present is None for step in steps)


# ------------------------------------------------------------------------------------------------- from the outside


def test_a_vector_environment_from_gymnasium_in_python(tmp_path: Path) -> None:
    """``make_vec`` gives CartPole's native vector environment, which resets in the next step."""
    env = gym.make_vec("CartPole-v1", num_envs=3)
    assert env.metadata["autoreset_mode"] is AutoresetMode.NEXT_STEP
    run = tmp_path / "run"
    agent = DQN(env, learning_starts=50, output_dir=str(run), total_timesteps=200, eval={"interval": 0, "final_episodes": 4})
    with agent:
        agent.learn()
        assert agent.config.num_envs == 3
        assert agent.result is not None
        assert agent.result.evaluation is not None
        assert len(agent.result.evaluation.returns) == 4
    with pytest.warns(NonDeterministicEnvironment, match="vector environment.*new ones start"):
        resumed = DQN.resume(run, env=gym.make_vec("CartPole-v1", num_envs=3))
    with resumed:
        resumed.learn(260)
    for algorithm in (PPO, RecurrentPPO):
        with algorithm(gym.make_vec("CartPole-v1", num_envs=3), n_steps=40, total_timesteps=240) as other:
            other.learn(240)
            assert other.evaluate(3).returns


def test_a_function_may_make_a_vector_environment() -> None:
    def make() -> Any:
        return SyncVectorEnv([lambda: gym.make("CartPole-v1")] * 2)

    with DQN(make, num_envs=2, learning_starts=20, total_timesteps=60) as agent:
        agent.learn()
        assert agent.evaluate(3).returns


def test_what_does_not_fit_a_vector_environment_is_refused() -> None:
    env = SyncVectorEnv([lambda: gym.make("CartPole-v1")] * 2)
    with pytest.raises(ConfigError, match=r"num_envs is 5, but the vector environment .* has 2 members; set num_envs to 2"):
        DQN(env, num_envs=5, learning_starts=20).learn(60)
    wrapped = SyncVectorEnv([lambda: gym.make("CartPole-v1")] * 2)
    with pytest.raises(ConfigError, match=r"vector environment.*wrap its members"):
        DQN(wrapped, wrappers=[{"name": "mask_observation", "indices": [1]}], learning_starts=20).learn(60)
    with pytest.raises(ConfigError, match=r"env_timeout has no effect on .*, a vector environment.*: leave it out"):
        DQN(NativeEnv(AutoresetMode.NEXT_STEP), env_timeout=3, learning_starts=20).learn(60)
    silent = NativeEnv(AutoresetMode.NEXT_STEP)
    silent.metadata = {}
    with pytest.raises(ConfigError, match=r"does not declare when it resets: set metadata\['autoreset_mode'\]"):
        VectorEnvPool(silent)


def test_a_fault_names_the_member() -> None:
    class Broken(NativeEnv):
        def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
            obs, _, *rest = super().step(actions)
            return obs, np.array([0.0, np.nan]), *rest

    pool = VectorEnvPool(Broken(AutoresetMode.SAME_STEP))
    pool.reset()
    with pytest.raises(EnvironmentFault, match=r"index 1.*at step 1 of its episode: the reward is .*nan"):
        pool.step(np.array([0, 0]))
