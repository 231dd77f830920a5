"""Storage for replays of frames and of sequences: the steps of several environments in time order, each observation stored
once.

Each environment has a ring of slots with one observation per slot, including the final observation of an episode. An item,
which is what can be sampled, is a run of consecutive slots and is identified by its first slot. For stacked images a slot
keeps only the newest frame; sampling rebuilds the stack from the preceding slots. An n-step window is also a run of
consecutive slots, so n-step sums are computed here.
"""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from rl_training.data.memory import require_memory
from rl_training.data.prioritized_replay_buffer import PriorityIndex
from rl_training.data.sum_tree import SumTree
from rl_training.errors import CheckpointError, ConfigError
from rl_training.types import Array, State, Step

#: one spare slot per this many steps, for observations without an action: final ones, and frames before the first one
STEPS_PER_SPARE_SLOT = 20
#: columns gathered at a time: few enough that frames shared by neighbouring rows are still in the cache
GATHERED_TOGETHER = 64
#: number of first steps checked for undeclared frame stacks
STACK_CHECKS = 100


@dataclass
class _Ring:
    """The state of one environment's ring. Positions are never reused; position p is stored in slot p % slots."""

    quota: int  # maximum number of items
    written: int = 0  # number of observations written so far
    running: bool = False  # whether the newest observation's episode continues
    waiting: int = 0  # the first position whose n-step window is not complete
    queued: int = 0  # number of items completed so far
    retired: int = 0  # number of those that can no longer be sampled

    def __len__(self) -> int:
        return self.queued - self.retired


class _SlotPriorities(PriorityIndex):
    """Priorities of slots, which can also be removed."""

    def remove(self, slots: NDArray[np.int64]) -> None:
        self._tree.set(slots, 0.0)

    def update(self, indices: NDArray[np.int64], priorities: NDArray[np.floating[Any]]) -> None:
        held = self._tree.get(indices) > 0.0  # an item may have been overwritten since it was sampled
        if held.any():
            super().update(indices[held], priorities[held])


class EpisodeRings(ABC):
    """The rings. A subclass defines which items a step completes (``_items``) and how far back an item reaches (``_reach``),
    and builds batches with ``_take`` and ``_observations``."""

    def __init__(
        self,
        obs_shape: tuple[int, ...],
        *,
        slots: int,
        quotas: list[int],
        stack: int,
        n_step: int,
        gamma: float,
        obs_dtype: type[np.generic],
        action_shape: tuple[int, ...],
        action_dtype: type[np.generic],
        masked_actions: int,
        rng: np.random.Generator,
        device: torch.device | str,
        alpha: float | None,
        further_columns: Mapping[str, np.dtype[Any]],
        further_bytes: int = 0,
        what: str,
    ) -> None:
        """``slots`` and ``quotas`` (of items) are per environment; ``what`` names the replay in an out-of-memory error."""
        if obs_shape[0] % stack:
            raise ConfigError(
                f"images with {obs_shape[0]} channels are not stacks of {stack} frames; set frame_stack to the number of "
                "frames that the environment stacks"
            )
        self.stack, self.num_envs = stack, len(quotas)
        self.n_step, self.gamma = n_step, gamma
        self._channels = obs_shape[0] // stack
        self._rng, self._device = rng, torch.device(device)
        self._slots = slots
        self._rings = [_Ring(quota) for quota in quotas]
        layout: dict[str, Any] = {
            "frame": np.dtype((obs_dtype, (self._channels, *obs_shape[1:]))),
            "action": np.dtype((action_dtype, action_shape)),
            "reward": np.dtype(np.float32),  # of one step until its window is complete, then the n-step sum
            "discount": np.dtype(np.float32),
            "length": np.dtype(np.int32),  # of the window: slots from here to the observation to bootstrap from
            "age": np.dtype(np.int32),  # number of earlier frames in the episode, at most stack - 1
            **further_columns,
        }
        if masked_actions:
            layout["action_mask"] = np.dtype((np.bool_, (masked_actions,)))
        total = self.num_envs * slots
        needed = total * sum(dtype.itemsize for dtype in layout.values()) + 8 * self.num_envs * max(quotas)
        tree = 0 if alpha is None else SumTree.bytes_of(total)
        require_memory(needed + tree + further_bytes, what)
        self._columns = {name: np.zeros(total, dtype) for name, dtype in layout.items()}
        #: positions of the items that can be sampled; the i-th completed item is at index i % row length
        self._queue = np.zeros((self.num_envs, max(quotas)), np.int64)
        self._priorities = None if alpha is None else _SlotPriorities(total, alpha, rng)
        self._stack_checks = STACK_CHECKS
        self._changed: dict[int, bool] = {}  # slots of items added or retired in this step -> whether it was added

    def __len__(self) -> int:
        """The number of items that can be sampled: complete, and with no slot overwritten."""
        return sum(map(len, self._rings))

    @property
    def nbytes(self) -> int:
        """The memory allocated for the rings."""
        tree = 0 if self._priorities is None else self._priorities.nbytes
        return sum(column.nbytes for column in self._columns.values()) + self._queue.nbytes + tree

    def discard(self, env_index: int) -> None:
        """Drops an environment's incomplete items because its episode cannot continue. Complete items stay."""
        self._rings[env_index].running = False

    def update_priorities(self, indices: NDArray[np.int64], priorities: Array) -> None:
        """Sets new priorities of sampled items. A uniform buffer ignores them."""
        if self._priorities is not None:
            self._priorities.update(indices, priorities)

    def state_dict(self) -> State:
        """A copy of the used part of the rings, including incomplete windows."""
        used = self._used_slots()
        return {
            "fits": self._fits(),
            "columns": {name: self._per_env(name)[:, :used].copy() for name in self._columns},
            "queue": self._queue.copy(),
            "rings": [dict(vars(ring)) for ring in self._rings],
            "priorities": None if self._priorities is None else self._priorities.state_dict(self.num_envs * self._slots),
        }

    def load_state_dict(self, state: State) -> None:
        if state["fits"] != self._fits():
            raise CheckpointError(
                f"the saved replay ({_describe(state['fits'])}) does not fit this buffer ({_describe(self._fits())}); "
                "resume with the settings that the run was started with"
            )
        self._rings = [_Ring(**ring) for ring in state["rings"]]
        self._queue[:] = state["queue"]
        for name, saved in state["columns"].items():
            self._per_env(name)[:, : self._used_slots()] = saved
        if self._priorities is not None:
            self._priorities.load_state_dict(state["priorities"])

    # -- writing

    @abstractmethod
    def _items(self, env: int, windows: range, ended: bool) -> Iterable[int]:
        """The first positions of the items that a step has completed; ``windows`` are the n-step windows it completed."""

    @abstractmethod
    def _reach(self, env: int, position: int) -> int:
        """The oldest position that the item at this position needs. It never decreases from one item to the next."""

    def _add_steps(self, step: Step, envs: Iterable[int]) -> None:
        """Adds one step of these environments. Observations are whole stacks, oldest frame first."""
        self._check(step)
        self._changed.clear()
        for env in envs:
            self._add_one(env, step)
        if self._priorities is not None and self._changed:
            slots = np.array(list(self._changed))
            held = np.array(list(self._changed.values()))
            self._priorities.remove(slots[~held])
            self._priorities.add(slots[held])

    def _check(self, step: Step) -> None:
        """Checks that each observation is the previous one shifted by one frame: only then can stacks be rebuilt."""
        if self.stack > 1:
            moved = step.next_obs[:, : -self._channels] == step.obs[:, self._channels :]
            if not moved.all():
                env = int(np.flatnonzero(~moved.reshape(self.num_envs, -1).all(axis=1))[0])
                raise ConfigError(
                    f"environment {env} does not stack {self.stack} frames: its observation after a step does not start with "
                    f"the last {self.stack - 1} frames of the previous one; set frame_stack to the number of frames that "
                    "it stacks"
                )
        elif self._stack_checks and step.obs.ndim == 4:
            self._stack_checks -= 1
            self._warn_of_stacks(step.obs[0], step.next_obs[0])
        for env, ring in enumerate(self._rings):
            newest = self._columns["frame"][self._slot(env, ring.written - 1)]
            if ring.running and not np.array_equal(step.obs[env, -self._channels :], newest):
                raise ValueError(f"environment {env} does not continue from its last observation; call discard after a reset")

    def _warn_of_stacks(self, obs: Array, next_obs: Array) -> None:
        """Warns once if an image looks like an undeclared stack: the previous image shifted by some channels."""
        channels = len(obs)
        for new in (c for c in range(1, channels) if channels % c == 0):
            if np.array_equal(next_obs[:-new], obs[new:]) and not np.array_equal(next_obs[-new:], obs[-new:]):
                self._stack_checks = 0
                warnings.warn(
                    f"the images look like stacks of {channels // new} frames, but are stored whole; set "
                    f"algo_kwargs.frame_stack: {channels // new} to store each frame once",
                    stacklevel=2,
                )
                return

    def _add_one(self, env: int, step: Step) -> None:
        ring, columns = self._rings[env], self._columns
        if not ring.running:
            self._begin(env, step.obs[env])
        position = ring.written - 1
        slot = self._slot(env, position)
        columns["action"][slot] = step.action[env]
        columns["reward"][slot] = step.reward[env]
        self._append(env, step.next_obs[env, -self._channels :], int(columns["age"][slot]) + 1)
        if "action_mask" in columns and step.next_action_mask is not None:
            columns["action_mask"][self._slot(env, position + 1)] = step.next_action_mask[env]
        terminated, ended = bool(step.terminated[env]), bool(step.ended[env])
        complete = position + 1 if ended else position + 2 - self.n_step  # the first incomplete window
        windows = range(ring.waiting, max(ring.waiting, complete))
        for begin in windows:
            self._complete(env, begin, position, terminated)
        ring.waiting = windows.stop
        ring.running = not ended
        for begin in self._items(env, windows, ended):
            self._enqueue(env, begin)

    def _begin(self, env: int, obs: Array) -> None:
        """Stores an episode's first stack. Repetitions of the oldest frame take no slots."""
        frames = obs.reshape(self.stack, self._channels, *obs.shape[1:])
        oldest = 0
        while oldest + 1 < self.stack and np.array_equal(frames[oldest + 1], frames[0]):
            oldest += 1
        for age, frame in enumerate(frames[oldest:]):
            self._append(env, frame, age)
        self._rings[env].waiting = self._rings[env].written - 1

    def _append(self, env: int, frame: Array, age: int) -> None:
        """Stores one observation and retires the items whose oldest slot it overwrites."""
        ring = self._rings[env]
        overwritten = ring.written - self._slots
        while len(ring) and self._reach(env, self._oldest(env)) <= overwritten:
            self._retire(env)
        slot = self._slot(env, ring.written)
        self._columns["frame"][slot] = frame
        self._columns["age"][slot] = min(age, self.stack - 1)
        ring.written += 1

    def _complete(self, env: int, begin: int, last: int, terminated: bool) -> None:
        """Stores the n-step sum of the window ``begin`` to ``last`` over its first reward, which is not needed again."""
        columns, slot = self._columns, self._slot(env, begin)
        total = 0.0
        for position in range(last, begin - 1, -1):
            total = float(columns["reward"][self._slot(env, position)]) + self.gamma * total
        length = last + 1 - begin
        columns["reward"][slot] = total
        columns["length"][slot] = length
        columns["discount"][slot] = 0.0 if terminated else self.gamma**length

    def _enqueue(self, env: int, begin: int) -> None:
        ring = self._rings[env]
        if len(ring) == ring.quota:
            self._retire(env)
        self._queue[env, ring.queued % self._queue.shape[1]] = begin
        ring.queued += 1
        self._changed[self._slot(env, begin)] = True

    def _retire(self, env: int) -> None:
        self._changed[self._slot(env, self._oldest(env))] = False
        self._rings[env].retired += 1

    # -- reading

    def _draw(self, count: int, beta: float) -> tuple[NDArray[np.int64], torch.Tensor | None]:
        """Samples ``count`` items with replacement: slots and, if prioritised, importance weights of exponent ``beta``."""
        if len(self) == 0:
            raise ValueError("cannot sample from an empty replay buffer")
        if self._priorities is None:
            return self._slots_of(self._rng.integers(0, len(self), count)), None
        slots, weights = self._priorities.sample(count, len(self), beta)
        return slots, torch.from_numpy(weights).to(self._device)

    def _oldest(self, env: int) -> int:
        """The position of an environment's oldest item."""
        return int(self._queue[env, self._rings[env].retired % self._queue.shape[1]])

    def _slot(self, env: int, position: int) -> int:
        return env * self._slots + position % self._slots

    def _slots_of(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """The first slots of the items with these numbers, from 0 to len - 1."""
        retired = np.array([ring.retired for ring in self._rings])
        counts = np.array([len(ring) for ring in self._rings])
        ends = counts.cumsum()
        env = ends.searchsorted(numbers, side="right")
        entries = retired[env] + numbers - (ends - counts)[env]
        positions = self._queue[env, entries % self._queue.shape[1]]
        slots: NDArray[np.int64] = env * self._slots + positions % self._slots
        return slots

    def _shifted(self, slots: NDArray[np.int64], steps: Array) -> NDArray[np.int64]:
        """The slots this many steps after (or before) these, in the same rings."""
        ring = slots // self._slots * self._slots  # the first slot of the ring
        shifted: NDArray[np.int64] = ring + (slots - ring + steps) % self._slots
        return shifted

    def _observations(self, slots: NDArray[np.int64]) -> torch.Tensor:
        """The observations whose newest frames are in ``slots`` (row, batch). Missing earlier frames repeat the first one."""
        if self.stack == 1:
            return self._take("frame", slots)
        column, (rows, batch) = self._columns["frame"], slots.shape
        back = np.minimum(self._columns["age"][slots][..., None], np.arange(self.stack - 1, -1, -1))  # (row, batch, stack)
        frames = self._shifted(slots[..., None], -back)
        # A single allocation: the allocator would return several of this size to the system, and new ones would be zeroed.
        stacks = torch.empty((rows, batch, self.stack, *column.shape[1:]), dtype=torch.uint8)
        for first in range(0, batch, GATHERED_TOGETHER):
            part = slice(first, first + GATHERED_TOGETHER)
            for row in range(rows):
                column.take(frames[row, part], axis=0, out=stacks[row, part].numpy(), mode="clip")
        return stacks.view(rows, batch, self.stack * self._channels, *column.shape[2:]).to(self._device)

    def _take(self, name: str, slots: NDArray[np.int64]) -> torch.Tensor:
        column = self._columns[name]
        # Gather into torch's memory: unlike numpy's, it is 64-byte aligned, so matrix products round the same in every run.
        taken = torch.empty((*slots.shape, *column.shape[1:]), dtype=torch.from_numpy(column[:0]).dtype)
        column.take(slots, axis=0, out=taken.numpy(), mode="clip")
        return taken.to(self._device)

    # -- saving

    def _used_slots(self) -> int:
        return min(self._slots, max(ring.written for ring in self._rings))

    def _per_env(self, name: str) -> Array:
        column = self._columns[name]
        return column.reshape(self.num_envs, self._slots, *column.shape[1:])

    def _fits(self) -> dict[str, Any]:
        return {
            "slots": self._slots,
            "num_envs": self.num_envs,
            "stack": self.stack,
            "n_step": self.n_step,
            "gamma": self.gamma,
            "prioritized": self._priorities is not None,
            "columns": {name: [column.dtype.str, *column.shape[1:]] for name, column in self._columns.items()},
        }


def _describe(fits: dict[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in fits.items() if name != "columns") + f", {fits['columns']['frame']}"


def equal_shares(capacity: int, num_envs: int) -> list[int]:
    """Divides a capacity among the environments as equally as possible."""
    return [capacity // num_envs + (env < capacity % num_envs) for env in range(num_envs)]
