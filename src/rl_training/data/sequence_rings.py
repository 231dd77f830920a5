"""Rings of steps that are cut into sequences, each a part of one episode.

Steps are stored once, in the rings, so overlap and burn-in cost no memory, and images are kept as single frames. Only the
recurrent state at the start of a sequence is stored separately; at the start of an episode it is zero.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from rl_training.data.acting_values import Targets
from rl_training.data.block_rings import BlockRings
from rl_training.data.blocks import CompactSteps, Span, spans
from rl_training.data.episode_rings import STEPS_PER_SPARE_SLOT, equal_shares
from rl_training.data.frames import make_frames
from rl_training.data.loaded import require, require_finite, require_within
from rl_training.data.recurrent_recorder import RecurrentBlock, RecurrentStep, cutting_problem, starts_burn_in
from rl_training.data.segments import Ring
from rl_training.errors import ConfigError
from rl_training.types import Array, Carry, ObservationSpec, SpaceSpec, State, Step


class SequenceRings(BlockRings):
    """Rings whose items are sequences. A subclass makes batches of them."""

    def __init__(
        self,
        capacity: int,
        obs_shape: tuple[int, ...],
        *,
        sequence_length: int,
        state_shapes: tuple[tuple[int, ...], ...],
        gamma: float,
        n_step: int = 1,
        overlap: int = 0,
        burn_in: int = 0,
        num_envs: int = 1,
        stack: int = 1,
        obs_dtype: type[np.generic] = np.float32,
        observation: ObservationSpec | None = None,
        previous_actions: int = 0,
        masked_actions: int = 0,
        rng: np.random.Generator,
        device: torch.device | str = "cpu",
        alpha: float | None = None,
        targets: Targets | None = None,
        eta: float = 1.0,
    ) -> None:
        """``observation`` is needed only for the spec of a mixture of images and other entries. With ``targets``, blocks come
        with the Q-values of acting, which give sequences their first priorities: ``eta`` times the largest TD error, and the
        rest of the mean."""
        problem = cutting_problem(sequence_length, overlap, burn_in)
        if problem:
            raise ConfigError(problem)
        self._stride = sequence_length - overlap
        self.capacity, self.sequence_length, self.burn_in = capacity, sequence_length, burn_in
        self._previous_actions, self._eta = previous_actions, eta
        share = equal_shares(capacity, num_envs)[0]
        self._reach_back = burn_in + self._stride + stack - 1
        slots = share + share // STEPS_PER_SPARE_SLOT + sequence_length + n_step + self._reach_back + 2 * stack + 3
        slots += -slots % self._stride  # a whole number of strides: see ``_states``
        columns: dict[str, np.dtype[Any]] = {
            "sequence": np.dtype(np.int32),  # length of the sequence that starts here
            "first": np.dtype(np.bool_),  # whether it is the first of its episode
        }
        if previous_actions:
            columns |= {"previous_action": np.dtype(np.int32), "previous_reward": np.dtype(np.float32)}
        rows = num_envs * (slots // self._stride)
        super().__init__(
            make_frames(obs_shape, obs_dtype, stack, observation),
            slots=slots,
            quotas=[slots] * num_envs,  # sequences are only retired when their steps are overwritten
            longest_reach=self._reach_back,
            under_way=sequence_length + n_step + self._reach_back + 2 * stack,
            n_step=n_step,
            gamma=gamma,
            action_shape=(),
            action_dtype=np.int64,
            masked_actions=masked_actions,
            rng=rng,
            device=device,
            alpha=alpha,
            targets=targets,
            further_columns=columns,
            further_bytes=sum(4 * rows * int(np.prod(shape)) for shape in state_shapes),
            what=f"a replay of {capacity} steps in sequences",
        )
        #: A row per stride of slots: a sequence's state is stored in the row of its first slot. The first sequences of
        #: episodes have no stored state, and the others start at least a stride apart, so that no two share a row.
        self._states = tuple(np.zeros((rows, *shape), np.float32) for shape in state_shapes)
        self._episode = [0] * num_envs  # the position of the running episode's first step
        self._next = [0] * num_envs  # the position at which the next sequence starts

    @property
    def nbytes(self) -> int:
        return super().nbytes + sum(states.nbytes for states in self._states)

    def add(self, recorded: RecurrentStep) -> None:
        """Adds one step of all environments. Episodes whose start was not recorded are left out: their state is unknown."""
        envs = [env for env in recorded.step.envs if self._rings[env].running or recorded.start[env]]
        self._add_step(recorded.step, envs)
        for env in envs:
            position = self._rings[env].written - 2
            begin = position + self.burn_in  # the burn-in of a sequence that starts there starts here
            whole_strides, rest = divmod(begin - self._episode[env], self._stride)
            if whole_strides and not rest:
                self._store_state(env, begin, tuple(array[env] for array in recorded.state))
        self._settle_priorities()

    def add_block(self, block: RecurrentBlock, first: int) -> None:
        """Adds several steps of environment ``first`` and those after it."""
        self._check_block(block.steps, first)
        for span in spans(block.steps, self._longest_span):
            env = first + span.env
            if self._rings[env].running or block.start[span.begin, span.env]:
                self._add_span(env, block.steps, span)
                self._add_states(env, block, span)
        self._settle_priorities()

    def _add_states(self, env: int, block: RecurrentBlock, span: Span) -> None:
        """Stores the states from which sequences start: each before the step at which its burn-in begins."""
        begin = self._rings[env].written - 1 + span.begin - span.end  # the position of the first step
        number = begin - self._episode[env] + np.arange(span.end - span.begin)
        for t in np.flatnonzero(starts_burn_in(number, self._stride, self.burn_in)):
            before = (span.begin + int(t)) * block.kept.shape[1] + span.env
            kept = np.count_nonzero(block.kept.ravel()[:before])
            self._store_state(env, begin + int(t) + self.burn_in, tuple(array[kept] for array in block.state))

    def _store_state(self, env: int, begin: int, state: Carry) -> None:
        """Stores the state before the burn-in of the sequence that will start at this position."""
        if self._unsaved is not None:
            self._unsaved.before_writing(f"states{env}", begin // self._stride + 1)
        for states, array in zip(self._states, state, strict=True):
            states[self._slot(env, begin) // self._stride] = array

    # -- writing

    def _begin(self, env: int, obs: Array) -> None:
        super()._begin(env, obs)
        position = self._rings[env].written - 1
        self._episode[env] = self._next[env] = position
        slot = self._slot(env, position)
        if "action_mask" in self._columns:  # no target bootstraps from a first observation, but its mask must allow an action
            self._columns["action_mask"][slot] = True
        self._note_previous(slot, -1, 0.0)

    def _add_one(self, env: int, step: Step) -> None:
        super()._add_one(env, step)
        self._note_previous(self._slot(env, self._rings[env].written - 1), step.action[env], step.reward[env])

    def _add_span(self, env: int, block: CompactSteps, span: Span) -> None:
        super()._add_span(env, block, span)
        count = span.end - span.begin
        slots = self._run(env, self._rings[env].written - count, count)
        self._note_previous(slots, block.rest.action[span.place], block.rest.reward[span.place])

    def _note_previous(self, slots: NDArray[np.int64] | int, action: Array | int, reward: Array | float) -> None:
        if self._previous_actions:
            self._columns["previous_action"][slots] = action
            self._columns["previous_reward"][slots] = reward

    def _items(self, env: int, windows: range, ended: bool) -> Iterator[int]:
        overlap = self.sequence_length - self._stride
        while True:
            begin, first = self._next[env], self._next[env] == self._episode[env]
            length = min(self.sequence_length, windows.stop - begin)
            if length < self.sequence_length and not (ended and (first or length > overlap)):
                return  # incomplete; or the episode has ended and the previous sequence has all of its steps
            slot = self._slot(env, begin)
            self._columns["sequence"][slot], self._columns["first"][slot] = length, first
            self._next[env] = begin + self._stride
            yield begin

    def _reach(self, env: int, positions: Any) -> Any:
        """Reaches a stride beyond the burn-in, because the row of the state may be overwritten that much before its slot."""
        return positions - self._reach_back

    def _first_priorities(self, env: int, positions: NDArray[np.int64]) -> Array:
        return np.array([self._first_priority(env, position) for position in positions.tolist()])

    def _first_priority(self, env: int, position: int) -> float:
        """The initial priority of a sequence, from its known TD errors; NaN if there are none."""
        error = self._columns["error"][self._run(env, position, self._columns["sequence"][self._slot(env, position)])]
        known = error[np.isfinite(error)].astype(np.float64)
        return float(self._eta * known.max() + (1.0 - self._eta) * known.mean()) if len(known) else np.nan

    # -- saving

    def state_dict(self) -> State:
        used = -(-(self._used_slots() + self.burn_in) // self._stride)
        states = [self._states_per_env(array)[:, :used].copy() for array in self._states]
        return {**super().state_dict(), "states": states}

    def load_state_dict(self, state: State) -> None:
        super().load_state_dict(state)
        for array, saved in zip(self._states, state["states"], strict=True):
            self._states_per_env(array)[:, : saved.shape[1]] = saved

    def _counters(self) -> State:
        return {**super()._counters(), "episode": list(self._episode), "next": list(self._next)}

    def _load_counters(self, state: State) -> None:
        super()._load_counters(state)
        self._episode, self._next = list(state["episode"]), list(state["next"])

    def check(self, spec: SpaceSpec) -> None:
        super().check(spec)
        require_within(self._columns["sequence"], 0, self.sequence_length, "the length of a sequence")
        require_within(self._columns["sequence"][self._held_slots()], 1, self.sequence_length, "the length of a sequence")
        for states in self._states:
            require_finite(states, "a recurrent state")
        for ring, episode, begin in zip(self._rings, self._episode, self._next, strict=True):
            numbers = type(episode) is type(begin) is int
            within = numbers and 0 <= episode <= begin < ring.written + self.sequence_length
            require(within, "a sequence does not begin within its episode")

    def rings(self) -> list[Ring]:
        return super().rings() + [self._ring_of_states(env) for env in range(self.num_envs) if self._states]

    def _settled(self, env: int) -> int:
        return min(super()._settled(env), self._next[env])  # a sequence's first slot is written when it is complete

    def _ring_of_states(self, env: int) -> Ring:
        """States are written in order, each when the burn-in of its sequence starts."""
        columns = {str(i): self._states_per_env(array)[env] for i, array in enumerate(self._states)}
        newest = self._rings[env].written - 2 + self.burn_in  # the last position of which a state may have been written
        started = self._rings[env].written >= 2
        written, settled = (newest // self._stride + 1, (newest + 1) // self._stride) if started else (0, 0)
        return Ring(f"states{env}", columns, written, settled)

    def _states_per_env(self, states: Array) -> Array:
        return states.reshape(self.num_envs, -1, *states.shape[1:])

    def _fits(self) -> dict[str, Any]:
        sequences = {"sequence_length": self.sequence_length, "stride": self._stride, "burn_in": self.burn_in}
        return {**super()._fits(), **sequences, "states": [list(states.shape[1:]) for states in self._states]}
