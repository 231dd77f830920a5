"""A Gymnasium ``VectorEnv`` as a pool: environments that step together by themselves.

Its promise is weaker than that of ``SeededEnvPool``: later episodes have no seed of their own, so a repeated run is the same
only if the vector environment is, and a resumed run goes on with new episodes.

In every mode of automatic resets the steps are those of a plain loop. ``SAME_STEP`` returns the first observation of the next
episode, with the true final one in ``info``. ``DISABLED`` waits for a reset of those whose episode has ended. ``NEXT_STEP``
spends the following step on the reset: what it returns then is no transition, and ``Step.present`` is False there. Where
Gymnasium's own vector environments can reset some of their members at once, that is done instead.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from gymnasium.vector.utils import iterate
from numpy.typing import NDArray

from rl_training.envs.boundary import Boundary
from rl_training.envs.checks import flag_problem, make_limits, make_receiver, reward_problem
from rl_training.envs.factory import AnyVectorEnv
from rl_training.envs.final_info import SUCCESS, chosen
from rl_training.envs.limit import EpisodeLimit
from rl_training.envs.pool import Episode, NonDeterministicEnvironment
from rl_training.envs.spaces import describe_spaces
from rl_training.envs.workers import close_in_time
from rl_training.errors import FOREIGN, ConfigError, DivergenceError, EnvironmentFault, described, shown
from rl_training.rng import TRAINING_EPISODES, derive_seed
from rl_training.types import Array, SpaceSpec, State, Step


def _mode_of(env: AnyVectorEnv, env_id: str) -> AutoresetMode:
    mode = env.metadata.get("autoreset_mode") if isinstance(env.metadata, dict) else None
    try:
        return AutoresetMode(mode)
    except ValueError as error:
        raise ConfigError(
            f"the vector environment {env_id} does not declare when it resets: set metadata['autoreset_mode'] to one of "
            f"gymnasium.vector.AutoresetMode, not {mode!r}"
        ) from error


class VectorEnvPool:
    """A vector environment that the user made. It steps all of its members, whichever are ``active``."""

    def __init__(
        self,
        env: AnyVectorEnv,
        *,
        seed: int = 0,
        stream: str = TRAINING_EPISODES,
        env_id: str = "environment",
        info_keys: Sequence[str] = (SUCCESS,),
        fit: Callable[[SpaceSpec], SpaceSpec] = lambda spec: spec,
    ) -> None:
        """``fit`` adapts the specs to an algorithm; ``info_keys`` are the entries of an episode's last info that are kept."""
        self._info_keys = info_keys
        self._env, self.env_id = env, env_id
        self.boundary = Boundary()
        self._limit: EpisodeLimit | None = None
        self.num_envs: int = env.num_envs
        self._seed, self._stream = seed, stream
        mode = _mode_of(env, env_id)
        by_mask = isinstance(env.unwrapped, SyncVectorEnv | AsyncVectorEnv)
        self._can_stop = by_mask or mode is AutoresetMode.DISABLED  # whether it can end an episode that goes on
        self._same_step = mode is AutoresetMode.SAME_STEP
        self.skips_steps = not self._can_stop and not self._same_step
        spec = fit(describe_spaces(env, env_id))
        self._episode = [0] * self.num_envs
        self._pending = np.zeros(self.num_envs, np.bool_)  # members that spend their next step on a reset
        self._starts = 0  # how often all members have been started
        self._lengths = [0] * self.num_envs  # steps of the running episodes
        self._raw, info = self._reset_all()
        masked = "action_mask" in info and not spec.action.low
        self.spec = replace(spec, action=replace(spec.action, masked=masked))
        self._store = make_receiver(self.spec).store
        self._limits = make_limits(env.single_observation_space, self.spec.observation, env_id, self.num_envs, stream)
        shape, dtype = (self.num_envs, *self.spec.observation.shape), self.spec.observation.dtype
        self._obs: Array = np.zeros(shape, dtype)
        self._mask = np.ones((self.num_envs, self.spec.action.masked_count), np.bool_) if masked else None
        self._returns = [0.0] * self.num_envs

    def _reset_all(self) -> tuple[Any, dict[str, Any]]:
        seed = derive_seed(self._seed, self._stream, self._starts)
        try:
            self.boundary.enter()
            obs, info = self._env.reset(seed=seed)
        except FOREIGN as error:
            raise self._fault(0, described(error), "reset") from error
        finally:
            self.boundary.leave()
        self._pending[:] = False
        return obs, info

    @property
    def obs(self) -> Array:
        """Observations to act on, (env, ...). Each step creates a new array, so callers may keep it."""
        return self._obs

    @property
    def action_mask(self) -> NDArray[np.bool_] | None:
        """The actions allowed now, (env, action); None if the environment gives no ``info["action_mask"]``."""
        return self._mask

    def reset(self, stream: str | None = None, limit: EpisodeLimit | None = None) -> None:
        """Starts the first episode of every environment. ``stream`` changes the stream of their seeds; ``limit`` ends
        episodes that the environments do not end, if single members can be reset."""
        self._stream, self._limit = stream or self._stream, limit
        self._begin(*self._reset_all())
        self._episode = [0] * self.num_envs

    def _begin(self, raw: Any, info: dict[str, Any]) -> None:
        obs, mask = self._obs.copy(), self._copy_mask()
        self._receive(obs, mask, raw, info, range(self.num_envs), "reset")
        self._obs, self._mask = obs, mask
        self._returns, self._lengths = [0.0] * self.num_envs, [0] * self.num_envs

    def _copy_mask(self) -> NDArray[np.bool_] | None:
        return None if self._mask is None else self._mask.copy()

    def _receive(
        self, obs: Array, mask: NDArray[np.bool_] | None, raw: Any, info: Any, rows: Sequence[int], during: str
    ) -> None:
        """Stores the observations and masks of some members, or raises what is wrong with them."""
        members = list(iterate(self._env.observation_space, raw)) if len(rows) else []
        masks = info.get("action_mask")
        for i in rows:
            problem = self._store(obs, mask, i, (members[i], None if masks is None else masks[i]))
            if problem is None and self._limits is not None and not self._limits.hold(obs):
                problem = self._limits.problem(obs[i])
            if problem is not None:
                raise self._fault(i, problem, during)

    def step(self, actions: Array, active: Sequence[int] | None = None) -> tuple[Step, list[Episode]]:
        """Steps every environment and resets those whose episode ended; only those in ``active`` are reported."""
        before, pending = self._obs, self._pending
        sent = self._to_env(actions)
        if sent.dtype.kind == "f" and not np.isfinite(sent).all():
            raise DivergenceError(f"the policy's actions are not finite: {shown(sent.tolist())}")
        for i in np.flatnonzero(~pending):
            self._lengths[i] += 1
        try:
            self.boundary.enter()
            raw, reward, terminated, truncated, info = self._env.step(sent)
        except FOREIGN as error:
            raise self._fault(0, described(error), "step") from error
        finally:
            self.boundary.leave()
        self._require(reward_problem, reward)
        ends, cuts = self._flags("terminated", terminated), self._flags("truncated", truncated)
        by_itself = (ends | cuts) & ~pending
        if self._limit is not None and self._can_stop:
            self._limit.apply([length - 1 for length in self._lengths], by_itself, cuts)
        ended = (ends | cuts) & ~pending
        next_obs, next_mask = self._obs.copy(), self._copy_mask()
        obs, mask = self._obs.copy(), self._copy_mask()
        over = np.flatnonzero(ended).tolist()
        going = np.flatnonzero(~ended).tolist()
        self._receive(next_obs, next_mask, raw, info, going, "step")
        reset = by_itself & self._same_step  # those that the environment has already reset
        again = np.flatnonzero(reset).tolist()
        if again:
            self._receive_final(next_obs, next_mask, info, again)
            self._receive(obs, mask, raw, info, again, "reset")
        self._receive(next_obs, next_mask, raw, info, np.flatnonzero(ended & ~reset).tolist(), "step")
        if self._can_stop and (ended & ~reset).any():
            self._reset_some(obs, mask, ended & ~reset)
        obs[going] = next_obs[going]
        if self.skips_steps:  # the next step returns the first observations; until then, keep the final ones
            obs[over] = next_obs[over]
        if mask is not None and next_mask is not None:
            mask[going] = next_mask[going]
        present = ~pending if pending.any() else None
        self._obs, self._mask = obs, mask
        self._pending = ended if self.skips_steps else np.zeros_like(ended)
        gained = np.where(pending, 0.0, reward).astype(np.float32)
        step = Step(before, actions, gained, next_obs, (ends & ended) | pending, cuts & ended, next_mask, present)
        infos = [self._final_info(info.get("final_info", {}) if reset[i] else info, i) for i in over]
        return step, self._count(gained.tolist(), over, infos, range(self.num_envs) if active is None else active)

    def _final_info(self, info: dict[str, Any], i: int) -> dict[str, Any]:
        """The chosen info entries of one member; Gymnasium marks those that it has in ``_key``."""
        given = [key for key in self._info_keys if key in info and (f"_{key}" not in info or info[f"_{key}"][i])]
        return chosen({key: info[key][i] for key in given}, given)

    def _to_env(self, actions: Array) -> Array:
        sent = self.spec.action.to_env(actions)
        space = self._env.action_space
        return sent.astype(space.dtype) if isinstance(space, spaces.Box | spaces.MultiDiscrete | spaces.MultiBinary) else sent

    def _require(self, find_problem: Callable[[Any], str | None], values: Any) -> None:
        for i, value in enumerate(values):
            problem = find_problem(value)
            if problem is not None:
                raise self._fault(i, problem, "step")

    def _flags(self, name: str, values: Any) -> NDArray[np.bool_]:
        self._require(functools.partial(flag_problem, name), values)
        return np.asarray(values).astype(np.bool_)

    def _receive_final(self, obs: Array, mask: NDArray[np.bool_] | None, info: dict[str, Any], over: Sequence[int]) -> None:
        """Stores the true final observations, which SAME_STEP puts into ``info``."""
        final, masks = info.get("final_obs"), info.get("final_info", {}).get("action_mask")
        for i in over:
            if final is None or final[i] is None:
                raise self._fault(i, "the episode was reset in its last step, but info has no 'final_obs'", "step")
            problem = self._store(obs, mask, i, (final[i], None if masks is None else masks[i]))
            if problem is not None:
                raise self._fault(i, problem, "step")

    def _reset_some(self, obs: Array, mask: NDArray[np.bool_] | None, ended: NDArray[np.bool_]) -> None:
        """Starts the next episodes of some members, each from a seed of its own."""
        seeds: Any = [derive_seed(self._seed, self._stream, i, n + 1, self._starts) for i, n in enumerate(self._episode)]
        try:
            self.boundary.enter()
            raw, info = self._env.reset(seed=seeds, options={"reset_mask": ended.copy()})
        except FOREIGN as error:
            raise self._fault(int(np.flatnonzero(ended)[0]), described(error), "reset") from error
        finally:
            self.boundary.leave()
        self._receive(obs, mask, raw, info, np.flatnonzero(ended).tolist(), "reset")

    def _count(
        self, rewards: list[float], over: Sequence[int], infos: Sequence[dict[str, Any]], active: Sequence[int]
    ) -> list[Episode]:
        for i, reward in enumerate(rewards):
            self._returns[i] += reward
        finished = []
        for i, info in zip(over, infos, strict=True):
            if i in active:
                finished.append(Episode(i, self._episode[i], self._returns[i], self._lengths[i], info))
            self._episode[i] += 1
            self._returns[i], self._lengths[i] = 0.0, 0
        return finished

    def _fault(self, i: int, problem: str, during: str) -> EnvironmentFault:
        seed = derive_seed(self._seed, self._stream, self._starts)
        step = 0 if during == "reset" else self._lengths[i]
        return EnvironmentFault(problem, env_id=self.env_id, env_index=i, episode_seed=seed, actions=None, step=step)

    def state_dict(self) -> State:
        return {"starts": self._starts, "episode": list(self._episode)}

    def load_state_dict(self, state: State) -> list[int]:
        """Starts new episodes: a vector environment cannot be brought back to the middle of one."""
        warnings.warn(
            f"{self.env_id} is a vector environment, which cannot be brought back to the middle of its episodes: new ones "
            "start, and this run is not an exact continuation",
            NonDeterministicEnvironment,
            stacklevel=2,
        )
        self._starts = int(state["starts"]) + 1
        self._begin(*self._reset_all())
        self._episode = [number + 1 for number in state["episode"]]
        return list(range(self.num_envs))

    def close(self) -> None:
        close_in_time(self._close, hanging=self.boundary.broken_off)

    def _close(self) -> None:
        try:
            self._env.close()
        except FOREIGN as error:
            warnings.warn(f"closing {self.env_id} failed ({described(error)}); ignored", stacklevel=2)
