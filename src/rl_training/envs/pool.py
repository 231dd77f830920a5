"""N environments stepped together, with resets, seeds and episode statistics of our own.

Every episode has its own seed, derived from (run seed, stream, env index, episode number), so the state of a deterministic
environment is (episode seed, actions since reset). That is all a checkpoint stores; ``load_state_dict`` plays the actions
again and compares the observation it reaches with the stored one.

A step is all or nothing: if any environment faults, no environment's bookkeeping has moved, and the pool still describes
the moment before the step.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rl_training.envs.factory import EnvFactory
from rl_training.envs.spaces import describe_spaces
from rl_training.envs.workers import LocalWorker, ProcessWorker, StepReturn, Worker
from rl_training.errors import EnvironmentFault
from rl_training.rng import derive_seed
from rl_training.types import Array, SpaceSpec, State, Step


class Episode(NamedTuple):
    """A finished episode."""

    env_index: int
    number: int
    episode_return: float
    length: int


class NonDeterministicEnvironment(UserWarning):
    """Replaying an episode's seed and actions did not lead back to the stored observation."""


class EnvPool:
    """``obs`` is what to act on now; ``step`` returns the true next observations and moves ``obs`` on."""

    def __init__(
        self,
        factory: EnvFactory,
        *,
        num_envs: int = 1,
        seed: int = 0,
        stream: str = "env",
        env_id: str = "environment",
        workers: str = "inline",
        fresh: bool = False,
        spec: SpaceSpec | None = None,
    ) -> None:
        self.num_envs = num_envs
        self.env_id = env_id
        self._seed, self._stream = seed, stream
        first = factory() if workers == "inline" or spec is None else None
        if spec is None:
            assert first is not None
            spec = describe_spaces(first, env_id)
        self.spec = spec
        self._workers: list[Worker] = []
        if workers == "inline":
            self._workers = [LocalWorker(factory, fresh, env=first if i == 0 else None) for i in range(num_envs)]
        else:
            if first is not None:
                first.close()
            self._workers = [ProcessWorker(factory, fresh) for _ in range(num_envs)]
        obs_spec = self.spec.observation
        self._raw_shape = obs_spec.raw_shape
        self._plain = obs_spec.shape == obs_spec.raw_shape and not obs_spec.one_hot_sizes
        self._is_float = obs_spec.kind == "vector" and not obs_spec.one_hot_sizes
        self._obs = np.zeros((num_envs, *obs_spec.shape), obs_spec.dtype)
        self._episode = [-1] * num_envs
        self._actions: list[list[Any]] = [[] for _ in range(num_envs)]
        self._returns = [0.0] * num_envs

    @property
    def obs(self) -> Array:
        """Observations to act on, (env, ...). A fresh array each step: safe to keep."""
        return self._obs

    def reset(self) -> None:
        """Begins the first episode of every environment."""
        obs = np.zeros_like(self._obs)
        for i in range(self.num_envs):
            obs[i] = self._begin_episode(i, 0)
        self._obs = obs
        for i in range(self.num_envs):
            self._commit_episode(i, 0)

    def step(self, actions: Array, active: Sequence[int] | None = None) -> tuple[Step, list[Episode]]:
        """Steps every environment (or only those in ``active``; the others keep still) and resets the ended ones."""
        indices = range(self.num_envs) if active is None else active
        env_actions = self.spec.action.to_env(actions)
        next_obs = self._obs.copy()
        reward = np.zeros(self.num_envs, np.float32)
        terminated = np.zeros(self.num_envs, np.bool_)
        truncated = np.zeros(self.num_envs, np.bool_)
        for i in indices:
            self._call(i, "step", env_actions, self._workers[i].begin_step, env_actions[i])
        for i in indices:
            result: StepReturn = self._call(i, "step", env_actions, self._workers[i].end_step)
            raw, step_reward, terminated[i], truncated[i] = result
            problem = self._store(next_obs, i, raw) or _reward_problem(step_reward)
            if problem is not None:
                raise self._fault(i, "step", env_actions, problem)
            reward[i] = step_reward
        if self._is_float and not np.isfinite(next_obs).all():
            bad = next(i for i in indices if not np.isfinite(next_obs[i]).all())
            raise self._fault(bad, "step", env_actions, f"the observation is not finite: {next_obs[bad].tolist()}")
        step = Step(self._obs, actions, reward, next_obs, terminated, truncated)
        ended = np.flatnonzero(terminated | truncated)
        obs = next_obs
        if len(ended):
            obs = next_obs.copy()
            for i in ended.tolist():
                obs[i] = self._begin_episode(i, self._episode[i] + 1)
        return step, self._commit(step, env_actions, obs, indices, ended)

    def _commit(
        self, step: Step, env_actions: Array, obs: Array, indices: Sequence[int], ended: NDArray[np.intp]
    ) -> list[Episode]:
        self._obs = obs
        for i in indices:
            self._actions[i].append(env_actions[i])
            self._returns[i] += float(step.reward[i])
        finished = []
        for i in ended.tolist():
            finished.append(Episode(i, self._episode[i], self._returns[i], len(self._actions[i])))
            self._commit_episode(i, self._episode[i] + 1)
        return finished

    def _begin_episode(self, i: int, number: int) -> Array:
        seed = self.episode_seed(i, number)
        try:
            raw = self._workers[i].reset(seed)
        except Exception as error:
            raise self._reset_fault(i, seed, f"{type(error).__name__}: {error}") from error
        slot = np.zeros_like(self._obs[:1])
        problem = self._store(slot, 0, raw)
        if problem is None and self._is_float and not np.isfinite(slot).all():
            problem = f"the observation is not finite: {slot[0].tolist()}"
        if problem is not None:
            raise self._reset_fault(i, seed, problem)
        return slot[0]  # type: ignore[no-any-return]

    def _commit_episode(self, i: int, number: int) -> None:
        self._episode[i] = number
        self._actions[i] = []
        self._returns[i] = 0.0

    def episode_seed(self, env_index: int, number: int) -> int:
        return derive_seed(self._seed, self._stream, env_index, number)

    def _store(self, out: Array, i: int, raw: Any) -> str | None:
        """Puts one raw observation into row i; returns what is wrong with it, if anything."""
        if getattr(raw, "shape", None) != self._raw_shape:
            raw = np.asarray(raw)
            if raw.shape != self._raw_shape:
                return f"the observation has shape {raw.shape}, the space says {self._raw_shape}"
        try:
            out[i] = raw if self._plain else self.spec.observation.encode(np.asarray(raw)[None])[0]
        except (IndexError, TypeError, ValueError) as error:
            return f"the observation {raw!r} does not fit its space ({error})"
        return None

    def _call(self, i: int, during: str, env_actions: Array, function: Any, *args: Any) -> Any:
        try:
            return function(*args)
        except Exception as error:
            raise self._fault(i, during, env_actions, f"{type(error).__name__}: {error}") from error

    def _fault(self, i: int, during: str, env_actions: Array, problem: str) -> EnvironmentFault:
        actions = [np.asarray(action).tolist() for action in (*self._actions[i], env_actions[i])]
        return EnvironmentFault(
            problem,
            env_id=self.env_id,
            env_index=i,
            episode_seed=self.episode_seed(i, self._episode[i]),
            actions=actions,
            during=during,
        )

    def _reset_fault(self, i: int, seed: int, problem: str) -> EnvironmentFault:
        return EnvironmentFault(problem, env_id=self.env_id, env_index=i, episode_seed=seed, actions=[], during="reset")

    def state_dict(self) -> State:
        return {
            "obs": self._obs.copy(),
            "episode": list(self._episode),
            "returns": list(self._returns),
            "actions": [np.asarray(actions) for actions in self._actions],
        }

    def load_state_dict(self, state: State) -> list[int]:
        """Replays each environment's episode so far. One that does not come back to the stored observation is said to
        be not deterministic and begins its next episode; the indices of those are returned."""
        obs = np.array(state["obs"])
        strayed = []
        for i in range(self.num_envs):
            number, actions = state["episode"][i], list(state["actions"][i])
            self._episode[i], self._actions[i], self._returns[i] = number, actions, state["returns"][i]
            seed = self.episode_seed(i, number)
            try:
                slot = np.zeros_like(obs[:1])
                problem = self._store(slot, 0, self._workers[i].replay(seed, actions))
            except Exception as error:
                problem = f"{type(error).__name__}: {error}"
            if problem is None and np.array_equal(slot[0], obs[i]):
                continue
            warnings.warn(
                f"{self.env_id} (index {i}) is not deterministic: playing its episode again (seed {seed}, {len(actions)} "
                f"actions) led elsewhere{f' ({problem})' if problem else ''}, so a new episode begins and this run is not "
                "an exact continuation. If its reset leaves something behind, set env_fresh: true.",
                NonDeterministicEnvironment,
                stacklevel=2,
            )
            obs[i] = self._begin_episode(i, number + 1)
            self._commit_episode(i, number + 1)
            strayed.append(i)
        self._obs = obs
        return strayed

    def close(self) -> None:
        for worker in self._workers:
            worker.close()


def _reward_problem(reward: Any) -> str | None:
    try:
        return None if math.isfinite(reward) else f"the reward is {reward}, not a finite number"
    except TypeError:
        return f"the reward is {reward!r}, not a number"
