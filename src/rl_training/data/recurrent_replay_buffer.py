"""Replay of sequences for networks with memory (Hausknecht & Stone 2015, arXiv:1507.06527; stored states, burn-in and
overlap: Kapturowski et al. 2019, OpenReview r1lyTjAqYX).

A sequence is a part of one episode. Steps are stored once, in the rings, so overlap and burn-in cost no memory, and images
are kept as single frames. Only the recurrent state at the start of a sequence is stored separately; at the start of an
episode it is zero.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from rl_training.data.block_rings import BlockRings
from rl_training.data.blocks import CompactSteps, Span, compact, spans
from rl_training.data.episode_rings import STEPS_PER_SPARE_SLOT, equal_shares
from rl_training.data.frames import make_frames
from rl_training.data.segments import Ring
from rl_training.errors import ConfigError
from rl_training.types import Array, Carry, ObservationSpec, SequenceBatch, State, Step, reset_rows


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
        self._start, self._state = np.array(state["start"]), tuple(np.array(array) for array in state["state"])
        self._number = np.array(state["number"])


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


class RecurrentReplayBuffer(BlockRings):
    """Sequences of ``sequence_length`` steps from about the newest ``capacity`` steps, an equal share for each environment.

    A sequence starts every ``sequence_length`` - ``overlap`` steps of an episode; the last one may be shorter and is padded
    when sampled. A sequence can be sampled once its episode has ended or the n further steps that its targets need have been
    added. A batch also has the ``burn_in`` steps before each sequence and the state before those; the first sequence of an
    episode has no burn-in. With ``previous_actions`` (the number of actions) it also has the previous action and reward of
    each observation.
    """

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
    ) -> None:
        """``observation`` is needed only for the spec of a mixture of images and other entries."""
        problem = cutting_problem(sequence_length, overlap, burn_in)
        if problem:
            raise ConfigError(problem)
        self._stride = sequence_length - overlap
        self.capacity, self.sequence_length, self.burn_in = capacity, sequence_length, burn_in
        self._previous_actions = previous_actions
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

    def sample(self, batch_size: int, beta: float = 0.0) -> SequenceBatch:
        """Samples ``batch_size`` sequences uniformly with replacement. Uniform samples need no correction by ``beta``."""
        return self.gather(self._draw(batch_size, beta)[0])

    def example(self, batch_size: int) -> SequenceBatch:
        """A batch with the right shapes and arbitrary contents."""
        return self.gather(np.zeros(batch_size, np.int64))

    def gather(self, slots: NDArray[np.int64]) -> SequenceBatch:
        """The sequences that start in these slots, as new tensors."""
        columns, total = self._columns, self.sequence_length
        length, first = columns["sequence"][slots], columns["first"][slots]
        time = np.arange(total)[:, None]
        mask = (time < length).astype(np.float32)
        steps = self._shifted(slots, np.minimum(time, length - 1))  # padding repeats the last step
        windows = columns["length"][steps]
        last = length - 1 + windows[-1]  # the last observation that a target needs; later rows repeat it
        earliest = np.where(first, 0, -self.burn_in)
        rows = np.arange(-self.burn_in, total + self.n_step)[:, None].clip(earliest, last)
        observed = self._shifted(slots, rows)
        mask_tensor = self._to_device(mask)
        return SequenceBatch(
            obs=self._observations(observed),
            action=self._take("action", steps),
            reward=self._take("reward", steps) * mask_tensor,
            discount=self._take("discount", steps) * mask_tensor,
            bootstrap=self._to_device(np.where(mask, time + windows, time)),
            mask=mask_tensor,
            episode_start=self._to_device((time == 0) & first),
            state=tuple(self._state(states, slots, first) for states in self._states),
            previous=self._previous(observed) if self._previous_actions else None,
            action_mask=self._take("action_mask", observed[self.burn_in :]) if "action_mask" in columns else None,
            burn_in=self.burn_in,
            has_burn_in=self._to_device(~first) if self.burn_in else None,
        )

    def _state(self, states: Array, slots: NDArray[np.int64], first: NDArray[np.bool_]) -> torch.Tensor:
        taken = torch.empty((len(slots), *states.shape[1:]))
        states.take(slots // self._stride, axis=0, out=taken.numpy(), mode="clip")
        taken[torch.from_numpy(first)] = 0.0
        return taken.to(self._device)

    def _previous(self, observed: NDArray[np.int64]) -> torch.Tensor:
        """(row, batch, action + 1): one-hot previous action and its reward of each observation; zero where there is none."""
        previous = torch.zeros((*observed.shape, self._previous_actions + 1))
        array = previous.numpy()
        array[..., :-1] = self._columns["previous_action"][observed][..., None] == np.arange(self._previous_actions)
        array[..., -1] = self._columns["previous_reward"][observed]
        return previous.to(self._device)

    def _to_device(self, array: Array) -> torch.Tensor:
        return torch.from_numpy(array).to(self._device)

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
