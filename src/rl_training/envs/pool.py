"""N environments stepped together. The pool does the resets, the seeding and the episode statistics itself.

Every episode has its own seed, derived from (run seed, stream, env index, episode number), so the state of a deterministic
environment is (episode seed, actions since reset). A checkpoint stores these with digests of what they gave;
``load_state_dict`` replays the actions and compares. An environment can also save its state itself (``own_state.py``).

A step is all or nothing: if an environment fails, the pool's bookkeeping does not change and still describes the state
before the step.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from rl_training.envs.boundary import Boundary, SlowCallWatch
from rl_training.envs.checks import LARGEST, flag_problem, like, make_limits, make_receiver, reward_problem
from rl_training.envs.episode_log import EpisodeLog
from rl_training.envs.factory import EnvFactory
from rl_training.envs.final_info import NO_INFO, SUCCESS
from rl_training.envs.limit import EpisodeLimit
from rl_training.envs.own_check import OwnStateCheck
from rl_training.envs.restoring import NonDeterministicEnvironment as NonDeterministicEnvironment
from rl_training.envs.restoring import Restoring, SavedEpisode
from rl_training.envs.spaces import describe_spaces
from rl_training.envs.worker_set import WorkerSet
from rl_training.envs.workers import LocalWorker
from rl_training.errors import FOREIGN, DivergenceError, EnvironmentFault, described, shown
from rl_training.rng import TRAINING_EPISODES, derive_seed
from rl_training.types import Array, SpaceSpec, State, Step


class Episode(NamedTuple):
    """A finished episode. ``info`` has the chosen entries of the info of its last step, as plain data."""

    env_index: int
    number: int
    episode_return: float
    length: int
    info: Mapping[str, Any] = NO_INFO

    @property
    def success(self) -> float | None:
        """What the environment reports as ``info["is_success"]``, if it does."""
        value = self.info.get(SUCCESS)
        return float(value) if isinstance(value, bool | int | float) else None


class EnvPool(Protocol):
    """The interface of N environments stepped together, for collecting and evaluation."""

    num_envs: int
    spec: SpaceSpec
    boundary: Boundary  # marks the calls of environments, so that training can be stopped and saved during one

    @property
    def obs(self) -> Array:
        """Observations to act on, (env, ...). Each step creates a new array, so callers may keep it."""

    @property
    def action_mask(self) -> NDArray[np.bool_] | None:
        """The actions allowed now, (env, action); None if the environment gives no ``info["action_mask"]``."""

    def reset(self, stream: str | None = None, limit: EpisodeLimit | None = None) -> None:
        """Starts the first episode of every environment. ``stream`` changes the stream of their seeds; ``limit`` ends
        episodes that the environments do not end."""

    def step(self, actions: Array, active: Sequence[int] | None = None) -> tuple[Step, list[Episode]]:
        """Steps every environment (or only those in ``active``) and resets those whose episode ended."""

    def state_dict(self) -> State: ...

    def load_state_dict(self, state: State) -> list[int]:
        """Returns the environments that could not be restored and started a new episode."""

    def close(self) -> None: ...


def _copied(mask: NDArray[np.bool_] | None) -> NDArray[np.bool_] | None:
    return None if mask is None else mask.copy()


class SeededEnvPool:
    """A pool that creates its environments and seeds each episode. ``obs`` are the observations to act on; ``step`` returns
    the true next observations and updates ``obs``."""

    def __init__(
        self,
        factory: EnvFactory,
        *,
        num_envs: int = 1,
        first: int = 0,
        seed: int = 0,
        stream: str = TRAINING_EPISODES,
        env_id: str = "environment",
        workers: str = "inline",
        fresh: bool = False,
        max_replay_steps: int | None = None,
        timeout: float | None = None,
        info_keys: Sequence[str] = (SUCCESS,),
        fit: Callable[[SpaceSpec], SpaceSpec] = lambda spec: spec,
    ) -> None:
        """``fit`` adapts the specs to an algorithm, for instance several choices to one discrete action. ``info_keys`` are
        the entries of the info of an episode's last step that are kept. ``first`` is the index of the first environment in
        the whole run, by which episodes are seeded and environments named."""
        self.num_envs, self._first = num_envs, first
        self.env_id, self._info_keys = env_id, info_keys
        self.boundary = Boundary()
        self._watch: SlowCallWatch | None = None
        self._seed, self._stream = seed, stream
        self._limit: EpisodeLimit | None = None
        self._workers = WorkerSet(factory, fresh=fresh, inline=workers == "inline", timeout=timeout)
        try:
            self.spec = self._describe(self._workers.first, fit)
            space = self._workers.first.env.observation_space
            self._limits = make_limits(space, self.spec.observation, env_id, num_envs, stream)
            self._workers.fill(num_envs)
            if workers == "inline" and timeout is not None:
                self._watch = SlowCallWatch(self.boundary, timeout, env_id)
        except BaseException:
            self.close()  # nothing stays behind, above all no worker process
            raise
        self._out_of_step = False
        obs_spec = self.spec.observation
        self._store = make_receiver(self.spec).store
        self._obs = np.zeros((num_envs, *obs_spec.shape), obs_spec.dtype)
        self._mask = np.ones((num_envs, self.spec.action.masked_count), np.bool_) if self.spec.action.masked else None
        self._episode, self._returns = [-1] * num_envs, [0.0] * num_envs
        self._log = EpisodeLog(num_envs, self.spec, max_replay_steps)
        self._own_check = OwnStateCheck(self._workers.make, self.spec, self.boundary)

    def _describe(self, worker: LocalWorker, fit: Callable[[SpaceSpec], SpaceSpec]) -> SpaceSpec:
        """The spaces. Whether actions are masked is known only after a reset."""
        spec = fit(describe_spaces(worker.env, self.env_id))
        seed = self.episode_seed(0, 0)
        try:
            _, mask = worker.reset(seed)
        except FOREIGN as error:
            raise self._reset_fault(0, seed, described(error)) from error
        masked = mask is not None and not spec.action.low
        return replace(spec, action=replace(spec.action, masked=masked))

    @property
    def action_mask(self) -> NDArray[np.bool_] | None:
        return self._mask

    @property
    def obs(self) -> Array:
        return self._obs

    def reset(self, stream: str | None = None, limit: EpisodeLimit | None = None) -> None:
        self._stream, self._limit = stream or self._stream, limit
        if self._out_of_step:
            self._workers.renew_processes()
        self._out_of_step = True
        obs, mask = self._obs.copy(), _copied(self._mask)
        for i in range(self.num_envs):
            self._begin_episode(obs, mask, i, 0)
        self._obs, self._mask = obs, mask
        for i in range(self.num_envs):
            self._commit_episode(obs, mask, i, 0)
        self._out_of_step = False

    def step(self, actions: Array, active: Sequence[int] | None = None) -> tuple[Step, list[Episode]]:
        if self._out_of_step:
            self.load_state_dict(self.state_dict())
        indices = range(self.num_envs) if active is None else active
        env_actions = self.spec.action.to_env(actions)
        if env_actions.dtype.kind == "f" and not np.isfinite(env_actions).all():
            raise DivergenceError(f"the policy's actions are not finite: {shown(env_actions.tolist())}")
        self._out_of_step = True  # until every environment has stepped and the bookkeeping is done
        next_obs, next_mask = self._obs.copy(), _copied(self._mask)
        reward = np.zeros(self.num_envs, np.float32)
        terminated = np.zeros(self.num_envs, np.bool_)
        truncated = np.zeros(self.num_envs, np.bool_)
        i, failed, cause = 0, None, None
        ended: list[int] = []
        workers, store = self._workers.workers, self._store
        try:
            self.boundary.enter()
            if not self._workers.inline:
                for i in indices:
                    workers[i].begin_step(env_actions[i])
            for i in indices:
                observed, step_reward, end, cut = workers[i].step(env_actions[i])
                problem = store(next_obs, next_mask, i, observed)
                if type(step_reward) is not float or not -LARGEST <= step_reward <= LARGEST:
                    problem = problem or reward_problem(step_reward)
                if type(end) is not bool or type(cut) is not bool:
                    problem = problem or flag_problem("terminated", end) or flag_problem("truncated", cut)
                if problem is not None:
                    failed = problem
                    break
                reward[i] = step_reward
                if end or cut:
                    terminated[i], truncated[i] = end, cut
                    ended.append(i)
        except FOREIGN as error:
            failed, cause = described(error), error
        finally:
            self.boundary.leave()
        if failed is not None:
            raise self._fault(i, env_actions, failed) from cause
        if self._limits is not None and not self._limits.hold(next_obs):
            for i in indices:
                problem = self._limits.problem(next_obs[i])
                if problem is not None:
                    raise self._fault(i, env_actions, problem)
        if self._limit is not None:
            self._limit.apply(self._log.lengths, terminated | truncated, truncated)
            ended = np.flatnonzero(terminated | truncated).tolist()
        step = Step(self._obs, actions, reward, next_obs, terminated, truncated, next_mask)
        obs, mask = next_obs, next_mask
        infos: list[dict[str, Any]] = []
        if ended:
            infos = [self._final_info(i, env_actions) for i in ended]
            obs, mask = next_obs.copy(), _copied(next_mask)
            for i in ended:
                self._begin_episode(obs, mask, i, self._episode[i] + 1)
        self._obs, self._mask = obs, mask
        finished = self._commit(step, env_actions, active, ended, infos)
        self._out_of_step = False
        return step, finished

    def _final_info(self, i: int, env_actions: Array) -> dict[str, Any]:
        try:
            return self._workers.workers[i].final_info(self._info_keys)
        except FOREIGN as error:
            raise self._fault(i, env_actions, described(error)) from error

    def _commit(
        self, step: Step, env_actions: Array, active: Sequence[int] | None, ended: list[int], infos: list[dict[str, Any]]
    ) -> list[Episode]:
        self._log.add(env_actions, step.next_obs, step.reward, step.next_action_mask, active)
        self._returns = [total + reward for total, reward in zip(self._returns, step.reward.tolist(), strict=True)]
        finished = []
        for i, info in zip(ended, infos, strict=True):
            finished.append(Episode(self._first + i, self._episode[i], self._returns[i], self._log.length(i), info))
            self._commit_episode(self._obs, self._mask, i, self._episode[i] + 1)
        return finished

    def _begin_episode(self, obs: Array, mask: NDArray[np.bool_] | None, i: int, number: int) -> None:
        """Resets environment i and stores its first observation and mask in row i."""
        seed = self.episode_seed(i, number)
        try:
            self.boundary.enter()
            observed = self._workers.workers[i].reset(seed)
        except FOREIGN as error:
            raise self._reset_fault(i, seed, described(error)) from error
        finally:
            self.boundary.leave()
        problem = self._store(obs, mask, i, observed)
        if problem is None and self._limits is not None and not self._limits.hold(obs):
            problem = self._limits.problem(obs[i])
        if problem is not None:
            raise self._reset_fault(i, seed, problem)

    def _commit_episode(self, obs: Array, mask: NDArray[np.bool_] | None, i: int, number: int) -> None:
        self._log.begin(i, obs[i], None if mask is None else mask[i])
        self._episode[i], self._returns[i] = number, 0.0

    def episode_seed(self, env_index: int, number: int) -> int:
        """The seed of an episode of one of these environments, whose index here is given."""
        return derive_seed(self._seed, self._stream, self._first + env_index, number)

    def _fault(self, i: int, env_actions: Array, problem: str) -> EnvironmentFault:
        earlier = self._log.actions(i)
        return EnvironmentFault(
            problem,
            env_id=self.env_id,
            env_index=self._first + i,
            episode_seed=self.episode_seed(i, self._episode[i]),
            actions=None if earlier is None else [*earlier.tolist(), env_actions[i].tolist()],
            step=self._log.length(i) + 1,
        )

    def _reset_fault(self, i: int, seed: int, problem: str) -> EnvironmentFault:
        return EnvironmentFault(problem, env_id=self.env_id, env_index=self._first + i, episode_seed=seed, actions=[], step=0)

    def state_dict(self) -> State:
        # After a fault, an environment may have stepped further than the pool: its episode is then replayed.
        usable = not self._out_of_step and self._episode[0] >= 0
        workers, check = self._workers.workers, self._own_check
        own = check.states(workers, self._episode, self._log, self.episode_seed, self._name) if usable else None
        return {
            "obs": self._obs.copy(),
            "mask": _copied(self._mask),
            "episode": list(self._episode),
            "returns": list(self._returns),
            "env_states": own or [None] * self.num_envs,
            "env_states_complete": check.complete,
            **self._log.state_dict(),
        }

    def load_state_dict(self, state: State) -> list[int]:
        """Restores each environment's episode so far: from the state that it saved itself, or by a replay. An environment for
        which this fails starts its next episode, with a warning, and its index is returned."""
        if self._out_of_step:
            self._workers.renew_processes()
        self._out_of_step = True  # until all of them are restored
        obs, mask = like(np.array(state["obs"]), self._obs), _copied(self._mask)
        restored: list[SavedEpisode | None] = []
        for i, number in enumerate(state["episode"]):
            living = functools.partial(self._workers.living, i)
            restoring = Restoring(living, self._name(i), self.episode_seed(i, number), self.spec, self.boundary)
            episode = restoring.restore(SavedEpisode.of(state, i), self._log.most_steps)
            if episode is None:
                living()
                self._begin_episode(obs, mask, i, number + 1)
            elif mask is not None:
                mask[i] = episode.mask
            restored.append(episode)
        self._episode, self._returns = list(state["episode"]), list(state["returns"])
        self._obs, self._mask = obs, mask
        for i, episode in enumerate(restored):
            if episode is None:
                self._commit_episode(obs, mask, i, self._episode[i] + 1)
            else:
                self._log.restore(i, episode.record, episode.length)
        self._own_check.load(state)
        self._out_of_step = False
        return [i for i, episode in enumerate(restored) if episode is None]

    def _name(self, i: int) -> str:
        return f"{self.env_id} (index {self._first + i})"

    def close(self) -> None:
        if self._watch is not None:
            self._watch.close()
        self._workers.close(hanging=self.boundary.broken_off)
