"""Checks that the states that environments save themselves are complete.

A ``get_state`` that returns what ``set_state`` was given may still leave something out. So once in a run, a second copy of an
environment is restored from a state that was saved earlier in an episode, and repeats the actions that followed: observations
and rewards must be those of the episode.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from rl_training.envs.boundary import Boundary, StepInterrupted
from rl_training.envs.episode_log import EpisodeLog, EpisodeRecord, first_difference
from rl_training.envs.restoring import NonDeterministicEnvironment, own_states, play
from rl_training.envs.workers import Worker
from rl_training.errors import FOREIGN
from rl_training.types import SpaceSpec, State

#: Steps that the copy makes at most.
STEPS = 32


class Noted(NamedTuple):
    """A state that was saved."""

    episode: int
    length: int
    state: State


class OwnStateCheck:
    """``complete`` is None until the check could be made, and False if it failed: then no such state is saved any more."""

    def __init__(self, make: Callable[[], Worker], spec: SpaceSpec, boundary: Boundary) -> None:
        self.complete: bool | None = None
        self._make, self._spec, self._boundary = make, spec, boundary
        self._noted: dict[int, Noted] = {}

    def states(
        self,
        workers: Sequence[Worker],
        episodes: Sequence[int],
        log: EpisodeLog,
        seed: Callable[[int, int], int],
        name: Callable[[int], str],
    ) -> list[State | None] | None:
        """The states that environments save themselves now, unless they were found to be incomplete. ``seed`` and ``name``
        are functions of an environment's index, and of its episode."""
        for i in list(self._noted):
            self.check(i, episodes[i], log, seed, name)
        own = None if self.complete is False else own_states(workers, name, self._boundary)
        if own is not None:
            self.note(own, episodes, log.lengths)
        return own

    def load(self, state: State) -> None:
        """Continues from a pool's state."""
        self.complete = state["env_states_complete"]
        self.note(state["env_states"], state["episode"], state["lengths"])

    def note(self, states: Sequence[State | None], episodes: Sequence[int], lengths: Sequence[int]) -> None:
        """Remembers what has just been saved or restored, until the check is made."""
        if self.complete is None:
            found = enumerate(zip(episodes, lengths, states, strict=True))
            self._noted = {i: Noted(episode, length, state) for i, (episode, length, state) in found if state is not None}

    def check(
        self, i: int, episode: int, log: EpisodeLog, seed: Callable[[int, int], int], name: Callable[[int], str]
    ) -> None:
        """Makes the check with environment i, if a state was noted earlier in the episode that is under way."""
        noted = self._noted.get(i)
        if self.complete is not None or noted is None or noted.episode != episode or noted.length >= log.length(i):
            return
        if self._boundary.since or self._boundary.broken_off:
            return  # an environment hangs, and the run is saved as it is
        record = log.record(i)
        if len(record.actions) != log.length(i):
            return  # it is too long to be kept
        try:
            problem = self._problem(record, noted, seed(i, episode))
        except (StepInterrupted, *FOREIGN):
            return  # the copy could not be created or played, which says nothing about states
        self.complete, self._noted = problem is None, {}
        if problem is not None:
            warnings.warn(
                f"{name(i)}: its own state is incomplete: a copy that was restored at step {noted.length} of its episode "
                f"did not continue as the episode did ({problem}); from now on, states are not saved, and episodes are "
                "replayed when the run is resumed",
                NonDeterministicEnvironment,
                stacklevel=4,
            )

    def _problem(self, record: EpisodeRecord, noted: Noted, seed: int) -> str | None:
        begin, end = noted.length, min(noted.length + STEPS, len(record.actions))
        saved = EpisodeRecord(
            record.actions[begin:end],
            record.obs[begin : end + 1],
            record.reward[begin:end],
            record.mask[begin : end + 1],
        )
        self._boundary.enter(end - begin + 2)
        try:
            worker = self._make()
            try:
                problem = worker.restore_own_state(seed, noted.state)
                if problem is not None:
                    return problem
                log = EpisodeLog(1, self._spec)
                played = play(worker, saved.actions, self._spec, log)
            finally:
                worker.close()
        finally:
            self._boundary.leave()
        found = log.record(0)
        same_start = {"obs": np.concatenate([saved.obs[:1], found.obs]), "mask": np.concatenate([saved.mask[:1], found.mask])}
        return first_difference(saved, found._replace(**same_start), played.ended) or played.failure
