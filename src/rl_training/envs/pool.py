"""N environments stepped together. The pool does the resets, the seeding and the episode statistics itself.

Every episode has its own seed, derived from (run seed, stream, env index, episode number), so the state of a deterministic
environment is (episode seed, actions since reset). A checkpoint stores only these; ``load_state_dict`` replays the
actions and compares the observation that it reaches with the stored one.

A step is all or nothing: if an environment fails, the pool's bookkeeping does not change and still describes the state
before the step.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from rl_training.envs.checks import Limits, TreeLimits, flag_problem, make_limits, make_receiver, reward_problem
from rl_training.envs.factory import EnvFactory
from rl_training.envs.spaces import describe_spaces
from rl_training.envs.workers import LocalWorker, ProcessWorker, Worker, require_room_for_workers
from rl_training.errors import EnvironmentFault, described
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


class EnvPool(Protocol):
    """The interface of N environments stepped together, for collecting and evaluation."""

    num_envs: int
    spec: SpaceSpec

    @property
    def obs(self) -> Array:
        """Observations to act on, (env, ...). Each step creates a new array, so callers may keep it."""

    @property
    def action_mask(self) -> NDArray[np.bool_] | None:
        """The actions allowed now, (env, action); None if the environment gives no ``info["action_mask"]``."""

    def reset(self) -> None:
        """Starts the first episode of every environment."""

    def step(self, actions: Array, active: Sequence[int] | None = None) -> tuple[Step, list[Episode]]:
        """Steps every environment (or only those in ``active``) and resets those whose episode ended."""

    def state_dict(self) -> State: ...

    def load_state_dict(self, state: State) -> list[int]:
        """Returns the environments that could not be restored and started a new episode."""

    def close(self) -> None: ...


class SeededEnvPool:
    """A pool that creates its environments and seeds each episode. ``obs`` are the observations to act on; ``step`` returns
    the true next observations and updates ``obs``."""

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
        fit: Callable[[SpaceSpec], SpaceSpec] = lambda spec: spec,
    ) -> None:
        """``fit`` makes the specs what an algorithm takes, for instance several choices as one discrete action."""
        self.num_envs = num_envs
        self.env_id = env_id
        self._seed, self._stream = seed, stream
        self._make_worker = functools.partial(LocalWorker if workers == "inline" else ProcessWorker, factory, fresh)
        self._workers: list[Worker] = [first := LocalWorker(factory, fresh)]
        try:
            self.spec = self._describe(first, fit)
            self._limits = self._make_limits(first)
            if workers != "inline":
                self._workers.pop().close()
                require_room_for_workers(num_envs)
            while len(self._workers) < num_envs:
                self._workers.append(self._make_worker())
        except BaseException:
            self.close()  # nothing stays behind, above all no worker process
            raise
        self._out_of_step = False
        obs_spec = self.spec.observation
        self._store = make_receiver(self.spec).store
        self._obs = np.zeros((num_envs, *obs_spec.shape), obs_spec.dtype)
        self._mask = np.ones((num_envs, self.spec.action.masked_count), np.bool_) if self.spec.action.masked else None
        self._episode = [-1] * num_envs
        self._actions: list[list[Any]] = [[] for _ in range(num_envs)]
        self._returns = [0.0] * num_envs

    def _describe(self, worker: LocalWorker, fit: Callable[[SpaceSpec], SpaceSpec]) -> SpaceSpec:
        """The spaces. Whether actions are masked is known only after a reset."""
        spec = fit(describe_spaces(worker.env, self.env_id))
        seed = self.episode_seed(0, 0)
        try:
            _, mask = worker.reset(seed)
        except (Exception, SystemExit) as error:
            raise self._reset_fault(0, seed, described(error)) from error
        masked = mask is not None and not spec.action.low
        return replace(spec, action=replace(spec.action, masked=masked))

    def _make_limits(self, worker: LocalWorker) -> Limits | TreeLimits | None:
        """The bounds of observations. A run says only once that they are exceeded: where it collects."""
        limits = make_limits(worker.env.observation_space, self.spec.observation, self.env_id, self.num_envs)
        if limits is not None and self._stream != "env":
            limits.only_finite()
        return limits

    @property
    def action_mask(self) -> NDArray[np.bool_] | None:
        """The actions allowed now, (env, action); None if the environment gives no ``info["action_mask"]``."""
        return self._mask

    @property
    def obs(self) -> Array:
        """Observations to act on, (env, ...). Each step creates a new array, so callers may keep it."""
        return self._obs

    def reset(self) -> None:
        """Starts the first episode of every environment."""
        obs, mask = self._obs.copy(), self._copy_mask()
        for i in range(self.num_envs):
            self._begin_episode(obs, mask, i, 0)
        self._obs, self._mask = obs, mask
        for i in range(self.num_envs):
            self._commit_episode(i, 0)

    def _copy_mask(self) -> NDArray[np.bool_] | None:
        return None if self._mask is None else self._mask.copy()

    def step(self, actions: Array, active: Sequence[int] | None = None) -> tuple[Step, list[Episode]]:
        """Steps every environment (or only those in ``active``) and resets those whose episode ended."""
        if self._out_of_step:
            self._get_back_in_step()
        self._out_of_step = True  # until every environment has stepped and the bookkeeping is done
        indices = range(self.num_envs) if active is None else active
        env_actions = self.spec.action.to_env(actions)
        next_obs, next_mask = self._obs.copy(), self._copy_mask()
        reward = np.zeros(self.num_envs, np.float32)
        terminated = np.zeros(self.num_envs, np.bool_)
        truncated = np.zeros(self.num_envs, np.bool_)
        i = 0
        try:
            for i in indices:
                self._workers[i].begin_step(env_actions[i])
            for i in indices:
                observed, step_reward, end, cut = self._workers[i].end_step()
                problem = self._store(next_obs, next_mask, i, observed) or reward_problem(step_reward)
                if type(end) is not bool or type(cut) is not bool:
                    problem = problem or flag_problem("terminated", end) or flag_problem("truncated", cut)
                if problem is not None:
                    raise self._fault(i, env_actions, problem)
                reward[i] = step_reward
                terminated[i] = end
                truncated[i] = cut
        except EnvironmentFault:
            raise
        except (Exception, SystemExit) as error:
            raise self._fault(i, env_actions, described(error)) from error
        if self._limits is not None and not self._limits.hold(next_obs):
            for i in indices:
                problem = self._limits.problem(next_obs[i])
                if problem is not None:
                    raise self._fault(i, env_actions, problem)
        step = Step(self._obs, actions, reward, next_obs, terminated, truncated, next_mask)
        ended = np.flatnonzero(terminated | truncated).tolist()
        obs, mask = next_obs, next_mask
        if ended:
            obs, mask = next_obs.copy(), None if next_mask is None else next_mask.copy()
            for i in ended:
                self._begin_episode(obs, mask, i, self._episode[i] + 1)
        self._obs, self._mask = obs, mask
        finished = self._commit(step, env_actions, indices, ended)
        self._out_of_step = False
        return step, finished

    def _get_back_in_step(self) -> None:
        """Restores all environments to the pool's state after a fault, when some of them have stepped and others have not."""
        for i, worker in enumerate(self._workers):
            if isinstance(worker, ProcessWorker):  # it may have died, or still have an answer pending
                worker.close()
                self._workers[i] = self._make_worker()
        self.load_state_dict(self.state_dict())

    def _commit(self, step: Step, env_actions: Array, indices: Sequence[int], ended: list[int]) -> list[Episode]:
        rewards = step.reward.tolist()
        for i in indices:
            self._actions[i].append(env_actions[i])
            self._returns[i] += rewards[i]
        finished = []
        for i in ended:
            finished.append(Episode(i, self._episode[i], self._returns[i], len(self._actions[i])))
            self._commit_episode(i, self._episode[i] + 1)
        return finished

    def _begin_episode(self, obs: Array, mask: NDArray[np.bool_] | None, i: int, number: int) -> None:
        """Resets environment i and stores its first observation and mask in row i."""
        seed = self.episode_seed(i, number)
        try:
            observed = self._workers[i].reset(seed)
        except (Exception, SystemExit) as error:
            raise self._reset_fault(i, seed, described(error)) from error
        problem = self._store(obs, mask, i, observed)
        if problem is None and self._limits is not None:
            problem = self._limits.problem(obs[i])
        if problem is not None:
            raise self._reset_fault(i, seed, problem)

    def _commit_episode(self, i: int, number: int) -> None:
        self._episode[i] = number
        self._actions[i] = []
        self._returns[i] = 0.0

    def episode_seed(self, env_index: int, number: int) -> int:
        return derive_seed(self._seed, self._stream, env_index, number)

    def _fault(self, i: int, env_actions: Array, problem: str) -> EnvironmentFault:
        actions = [np.asarray(action).tolist() for action in (*self._actions[i], env_actions[i])]
        return EnvironmentFault(
            problem,
            env_id=self.env_id,
            env_index=i,
            episode_seed=self.episode_seed(i, self._episode[i]),
            actions=actions,
            during="step",
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
        """Replays each environment's episode so far. An environment that does not reach the stored observation is not
        deterministic: it starts its next episode, with a warning, and its index is returned."""
        obs, mask = np.array(state["obs"]), self._copy_mask()
        diverged = []
        for i in range(self.num_envs):
            number, actions = state["episode"][i], list(state["actions"][i])
            self._episode[i], self._actions[i], self._returns[i] = number, actions, state["returns"][i]
            seed = self.episode_seed(i, number)
            try:
                slot = np.zeros_like(obs[:1])
                problem = self._store(slot, None, 0, observed := self._workers[i].replay(seed, actions))
            except (Exception, SystemExit) as error:
                problem = described(error)
            if problem is None and np.array_equal(slot[0], obs[i]):
                self._store(obs, mask, i, observed)
                continue
            warnings.warn(
                f"{self.env_id} (index {i}) is not deterministic: replaying its episode (seed {seed}, {len(actions)} "
                f"actions) did not reach the saved observation{f' ({problem})' if problem else ''}, so a new episode starts "
                "and this run is not an exact continuation. If its reset does not restore everything, set env_fresh: true.",
                NonDeterministicEnvironment,
                stacklevel=2,
            )
            self._begin_episode(obs, mask, i, number + 1)
            self._commit_episode(i, number + 1)
            diverged.append(i)
        self._obs, self._mask = obs, mask
        self._out_of_step = False
        return diverged

    def close(self) -> None:
        for worker in self._workers:
            worker.close()
