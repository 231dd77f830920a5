"""Restores the unfinished episodes of a checkpoint: from the state that an environment has saved itself, or by a replay of
the actions, in which everything is compared that the environment gives."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rl_training.envs.boundary import Boundary, StepInterrupted
from rl_training.envs.checks import make_receiver, reward_problem
from rl_training.envs.episode_log import EpisodeLog, EpisodeRecord, first_difference
from rl_training.envs.workers import Worker, WorkerLost
from rl_training.errors import FOREIGN, described
from rl_training.types import Array, SpaceSpec, State

#: Actions that a worker gets at a time, so that the results of a long episode never fill the memory.
ACTIONS_AT_A_TIME = 128


class NonDeterministicEnvironment(UserWarning):
    """A replay of an episode's seed and actions did not reproduce the episode."""


class EpisodeNotReplayed(UserWarning):
    """An episode was too long to be replayed when its run was resumed, or its worker process ended in the replay."""


@dataclass(frozen=True)
class SavedEpisode:
    """The unfinished episode of one environment in a checkpoint."""

    record: EpisodeRecord
    length: int
    obs: Array  # the observation reached
    mask: NDArray[np.bool_] | None  # the actions allowed now
    env_state: State | None = None  # if the environment saves its own

    @classmethod
    def of(cls, state: State, i: int) -> SavedEpisode:
        """The episode of environment i in the state of a pool."""
        columns = (state[name][i] for name in ("actions", "obs_digests", "rewards", "mask_digests"))
        record = EpisodeRecord(*map(np.asarray, columns))
        # rl_training 0.2.0 saved neither lengths nor digests; its states get the empty ones of a new pool
        length = max(state["lengths"][i], len(record.actions))
        mask = None if state["mask"] is None else state["mask"][i]
        return cls(record, length, state["obs"][i], mask, state["env_states"][i])


def own_states(workers: Sequence[Worker], name: Callable[[int], str], boundary: Boundary) -> list[State | None] | None:
    """The states that environments save themselves. None while one of them hangs, or if training stops during it: what is
    saved then needs no state of an environment's own."""
    if boundary.since or boundary.broken_off:
        return None
    try:
        boundary.enter(len(workers))
        return [own_state_of(worker, name(i)) for i, worker in enumerate(workers)]
    except StepInterrupted:
        return None
    finally:
        boundary.leave()


def own_state_of(worker: Worker, name: str) -> State | None:
    """The state that an environment saves itself; None if it does not, or if that fails, with a warning."""
    try:
        return worker.own_state()
    except FOREIGN as error:
        warnings.warn(
            f"{name}: its own state cannot be saved ({described(error)}), so its episode will be replayed when the run is "
            "resumed",
            stacklevel=3,
        )
        return None


class Restoring:
    """Restores one environment. ``name`` is its name in messages, ``seed`` the seed of its episode; ``worker`` returns a new
    worker if the process of the last one died."""

    def __init__(self, worker: Callable[[], Worker], name: str, seed: int, spec: SpaceSpec, boundary: Boundary) -> None:
        self._worker, self._name, self._seed, self._spec = worker, name, seed, spec
        self._boundary = boundary

    def restore(self, saved: SavedEpisode, most_steps: int | None) -> SavedEpisode | None:
        """The episode as it was restored. None if that is not possible or would replay more than ``most_steps``, with a
        warning."""
        try:
            self._boundary.enter(saved.length + 2)
            return self._restored(saved, most_steps)
        finally:
            self._boundary.leave()

    def _restored(self, saved: SavedEpisode, most_steps: int | None) -> SavedEpisode | None:
        if saved.env_state is not None:
            problem = self._restore_own(saved.env_state)
            if problem is None:
                return saved
            self._warn(f"{self._name}: {problem}; its episode is replayed instead", NonDeterministicEnvironment)
        lost = "so a new episode starts and this run is not an exact continuation"
        too_long = most_steps is not None and saved.length > most_steps
        if too_long or len(saved.record.actions) != saved.length:
            limit = f"({most_steps})" if too_long else "when it was saved"
            self._warn(
                f"{self._name} is {saved.length} steps into its episode, more than checkpoint.max_replay_steps {limit}, "
                f"{lost}",
                EpisodeNotReplayed,
            )
            return None
        try:
            found, problem = self._replay(saved)
        except WorkerLost as error:
            self._warn(f"{self._name}: the replay of its episode failed because {error}, {lost}", EpisodeNotReplayed)
            return None
        if problem is None:
            return found
        self._warn(
            f"{self._name} is not deterministic: in a replay of its episode (seed {self._seed}, {saved.length} actions), "
            f"{problem}, {lost}. If its reset does not restore everything, set env_fresh: true.",
            NonDeterministicEnvironment,
        )
        return None

    @staticmethod
    def _warn(message: str, category: type[Warning]) -> None:
        warnings.warn(message, category, stacklevel=5)

    def _restore_own(self, state: State) -> str | None:
        try:
            return self._worker().restore_own_state(self._seed, state)
        except FOREIGN as error:
            return f"its own state cannot be restored ({described(error)})"

    def _replay(self, saved: SavedEpisode) -> tuple[SavedEpisode, str | None]:
        """Replays a saved episode. Returns the replayed one, and how it differs, if it does."""
        spec, log = self._spec, EpisodeLog(1, self._spec)
        obs, mask = _empty(spec)
        played = Played(obs, mask)
        try:
            worker = self._worker()
            failure = make_receiver(spec).store(obs, mask, 0, worker.reset(self._seed))
            log.begin(0, obs[0], None if mask is None else mask[0])
            played = played._replace(failure=failure)
            if failure is None:
                played = play(worker, saved.record.actions, spec, log, played)
        except WorkerLost:
            raise
        except FOREIGN as error:
            played = played._replace(failure=described(error))
        obs, mask = played.obs, played.mask
        found = replace(saved, record=log.record(0), obs=obs[0], mask=None if mask is None else mask[0])
        return found, _problem(saved, found, played.failure, played.ended)


class Played(NamedTuple):
    """The result of some actions: the last observation and mask, what failed, and the flag that ended the episode."""

    obs: Array
    mask: NDArray[np.bool_] | None
    failure: str | None = None
    ended: str | None = None


def _empty(spec: SpaceSpec) -> tuple[Array, NDArray[np.bool_] | None]:
    obs = np.zeros((1, *spec.observation.shape), spec.observation.dtype)
    return obs, np.ones((1, spec.action.count), np.bool_) if spec.action.masked else None


def play(worker: Worker, actions: Array, spec: SpaceSpec, log: EpisodeLog, first: Played | None = None) -> Played:
    """Plays the actions of a record until one fails or the episode ends, and logs the results."""
    receiver, (obs, mask), failure, ended = make_receiver(spec), first[:2] if first else _empty(spec), None, None
    if not spec.action.low:
        actions = actions.astype(spec.action.raw_dtype)  # the type in which the environment got them
    for start in range(0, len(actions), ACTIONS_AT_A_TIME):
        if failure is not None or ended is not None:
            break
        some = actions[start : start + ACTIONS_AT_A_TIME]
        results, failure = worker.play(list(some))
        for action, (observed, reward, terminated, truncated) in zip(some, results, strict=False):
            obs, mask = obs.copy(), None if mask is None else mask.copy()
            problem = receiver.store(obs, mask, 0, observed) or reward_problem(reward)
            if problem is not None:
                failure = problem
                break
            log.add(np.asarray(action)[None], obs, np.array([reward], np.float32), mask)
            ended = "terminated" if terminated else "truncated" if truncated else None
    return Played(obs, mask, failure, ended)


def _problem(saved: SavedEpisode, found: SavedEpisode, failure: str | None, ended: str | None) -> str | None:
    if len(found.record.obs) == 0:
        return f"its reset failed: {failure}"
    if failure is not None:
        failure = f"step {len(found.record.actions) + 1} of {saved.length} failed: {failure}"
    if len(saved.record.obs) == saved.length + 1:
        return first_difference(saved.record, found.record, ended) or failure
    if failure is None and (ended is not None or not np.array_equal(found.obs, saved.obs)):
        return "the saved observation was not reached"  # all that can be compared in a run of rl_training 0.2.0
    return failure
