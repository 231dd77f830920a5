"""Records steps with the recurrent states that a replay of sequences needs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rl_training.data.blocks import CompactSteps, compact
from rl_training.data.loaded import require_like, require_within
from rl_training.types import Carry, SpaceSpec, State, Step, reset_rows


class RecurrentStep(NamedTuple):
    """A step of all environments, with the policy's recurrent state before it."""

    step: Step
    start: NDArray[np.bool_]  # (env,) whether the step is the first of its episode
    state: Carry  # (env, ...) each
    number: NDArray[np.int64]  # (env,) of the step in its episode, from 0


class RecurrentBlock(NamedTuple):
    """Several such steps, with only those states that a replay of sequences stores."""

    steps: CompactSteps
    start: NDArray[np.bool_]  # (time, env)
    kept: NDArray[np.bool_]  # (time, env): the steps before which there is a state
    state: Carry  # (kept, ...) each


def starts_burn_in(number: NDArray[np.int64], stride: int, burn_in: int) -> NDArray[np.bool_]:
    """Whether the burn-in of a sequence, other than the first of an episode, begins with the steps of these numbers."""
    sequence = number + burn_in
    starts: NDArray[np.bool_] = (sequence % stride == 0) & (sequence >= stride)
    return starts


class RecurrentRecorder:
    """Adds to each step the recurrent state before it."""

    def __init__(self, initial: Carry, stride: int = 1, burn_in: int = 0) -> None:
        """``initial`` is the state at the start of an episode, (env, ...) each, all zero; a carry may have more arrays. A
        sequence starts every ``stride`` steps."""
        self._state = initial
        self._start = np.ones(len(initial[0]), np.bool_)
        self._number = np.zeros(len(initial[0]), np.int64)
        self._stride, self._burn_in = stride, burn_in

    def record(self, step: Step, carry: Carry) -> RecurrentStep:
        """``carry`` is the policy's carry after the step, not yet reset."""
        recorded = RecurrentStep(step, self._start, self._state, self._number)
        self._start = step.ended
        self._state = reset_rows(carry[: len(self._state)], step.ended)
        self._number = np.where(step.ended, 0, self._number + 1)
        return recorded

    def block(self, recorded: Sequence[RecurrentStep], frame_channels: int | None) -> RecurrentBlock:
        number = np.stack([one.number for one in recorded])
        kept = starts_burn_in(number, self._stride, self._burn_in)
        columns = zip(*(one.state for one in recorded), strict=True)
        state = tuple(np.stack(arrays)[kept] for arrays in columns)
        steps = compact([one.step for one in recorded], frame_channels)
        return RecurrentBlock(steps, np.stack([one.start for one in recorded]), kept, state)

    def discard(self, env_index: int) -> None:
        """Starts a new episode of an environment whose episode cannot continue."""
        over = np.arange(len(self._start)) == env_index
        self._start, self._state = self._start | over, reset_rows(self._state, over)
        self._number = np.where(over, 0, self._number)

    def state_dict(self) -> State:
        state = [array.copy() for array in self._state]
        return {"start": self._start.copy(), "state": state, "number": self._number.copy()}

    def load_state_dict(self, state: State) -> None:
        require_like(state["start"], self._start, "the flags of episode starts")
        require_like(state["number"], self._number, "the step numbers of the episodes")
        for saved, own in zip(state["state"], self._state, strict=True):
            require_like(saved, own, "a recurrent state")
        self._start, self._state = np.array(state["start"]), tuple(np.array(array) for array in state["state"])
        self._number = np.array(state["number"])

    def check(self, spec: SpaceSpec) -> None:
        require_within(self._number, 0, np.inf, "the number of a step")


def cutting_problem(sequence_length: int, overlap: int, burn_in: int) -> str | None:
    """Why episodes cannot be cut into such sequences; None if they can."""
    stride = sequence_length - overlap
    if not 0 <= overlap < sequence_length:
        return f"overlap ({overlap}) must be below sequence_length ({sequence_length})"
    if not 0 <= burn_in <= stride:
        return (
            f"burn_in ({burn_in}) must be at most sequence_length - overlap ({stride}), so that every sequence except the "
            "first of an episode has enough steps before it"
        )
    return None
