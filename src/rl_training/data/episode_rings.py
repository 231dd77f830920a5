"""Steps of several environments in the order of time, each observation stored once: what replays of frames and of sequences
are made of.

Each environment has a ring of slots, one observation a slot, an episode's final observation included. What can be sampled,
an item, is a stretch of neighbouring slots and is known by the slot in which it begins. Of stacked images a slot keeps the
newest frame only, and a stack is rebuilt when it is sampled: a frame's predecessors are the slots before it. An n-step window
too is a row of neighbouring slots, so its sum is made here.
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

#: one slot in so many is spare, for observations in which nobody acts: final ones, and frames that precede a first one
STEPS_PER_SPARE_SLOT = 20
#: columns gathered at a time: frames that neighbouring rows share are then still in the cache
GATHERED_TOGETHER = 64
#: so many first steps are looked at for stacks that nobody told of
LOOKS_FOR_STACKS = 100


@dataclass
class _Ring:
    """Where one environment's ring stands. Positions count on for ever; position p lies in slot p % slots."""

    quota: int  # how many items it may hold
    written: int = 0  # observations so far; the last one is the newest
    running: bool = False  # whether an episode goes on from there
    waiting: int = 0  # the first position whose n-step window is not complete
    queued: int = 0  # how many items ever became complete ...
    retired: int = 0  # ... and how many of them are gone again

    def __len__(self) -> int:
        return self.queued - self.retired


class _SlotPriorities(PriorityIndex):
    """Priorities of slots, which also lose them."""

    def remove(self, slots: NDArray[np.int64]) -> None:
        self._tree.set(slots, 0.0)

    def update(self, indices: NDArray[np.int64], priorities: NDArray[np.floating[Any]]) -> None:
        held = self._tree.get(indices) > 0.0  # an item may have gone since it was sampled
        if held.any():
            super().update(indices[held], priorities[held])


class EpisodeRings(ABC):
    """The rings. A subclass says which items become complete (``_items``), how far back one reaches (``_reach``), and puts
    samples together from ``_take`` and ``_observations``."""

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
        """``slots`` and ``quotas`` (of items) are each environment's; ``what`` names the replay if it does not fit."""
        if obs_shape[0] % stack:
            raise ConfigError(
                f"{obs_shape[0]} channels are not {stack} frames; set frame_stack to what the environment stacks"
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
            "reward": np.dtype(np.float32),  # of one step while its window is open, then the n-step sum
            "discount": np.dtype(np.float32),
            "length": np.dtype(np.int32),  # of the window: so many slots on is the observation to bootstrap from
            "age": np.dtype(np.int32),  # how many frames before this one are its episode's, stack - 1 at most
            **further_columns,
        }
        if masked_actions:
            layout["action_mask"] = np.dtype((np.bool_, (masked_actions,)))
        total = self.num_envs * slots
        needed = total * sum(dtype.itemsize for dtype in layout.values()) + 8 * self.num_envs * max(quotas)
        tree = 0 if alpha is None else SumTree.bytes_of(total)
        require_memory(needed + tree + further_bytes, what)
        self._columns = {name: np.zeros(total, dtype) for name, dtype in layout.items()}
        #: positions of the items that can be sampled; the i-th that became complete is at i % its length
        self._queue = np.zeros((self.num_envs, max(quotas)), np.int64)
        self._priorities = None if alpha is None else _SlotPriorities(total, alpha, rng)
        self._looks_for_stacks = LOOKS_FOR_STACKS
        self._changed: dict[int, bool] = {}  # slots that came or went in this step, and whether they can now be sampled

    def __len__(self) -> int:
        """How many items can be sampled now: complete, and every slot of them still there."""
        return sum(map(len, self._rings))

    @property
    def nbytes(self) -> int:
        """The memory that the rings take, full or not."""
        tree = 0 if self._priorities is None else self._priorities.nbytes
        return sum(column.nbytes for column in self._columns.values()) + self._queue.nbytes + tree

    def discard(self, env_index: int) -> None:
        """Forgets an environment's open items, when its episode cannot go on. What was complete stays."""
        self._rings[env_index].running = False

    def update_priorities(self, indices: NDArray[np.int64], priorities: Array) -> None:
        """New priorities of sampled items. A uniform buffer has none to update."""
        if self._priorities is not None:
            self._priorities.update(indices, priorities)

    def state_dict(self) -> State:
        """The used part of the rings (a copy), open windows included."""
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
                "resume with the run's own settings"
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
        """Where the items begin that a step has completed; it completed the n-step windows from ``windows``."""

    @abstractmethod
    def _reach(self, env: int, position: int) -> int:
        """The oldest position that the item at this one needs. It never falls from one item to the next."""

    def _add_steps(self, step: Step, envs: Iterable[int]) -> None:
        """One step of these environments, with whole stacks, oldest frame first."""
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
        """A stack can be rebuilt from single frames only if each observation is the one before it, moved by one frame."""
        if self.stack > 1:
            moved = step.next_obs[:, : -self._channels] == step.obs[:, self._channels :]
            if not moved.all():
                env = int(np.flatnonzero(~moved.reshape(self.num_envs, -1).all(axis=1))[0])
                raise ConfigError(
                    f"environment {env} gives no stack of {self.stack} frames: its observation after a step does not begin "
                    f"with the last {self.stack - 1} frames of the one before; set frame_stack to the number of frames that "
                    "it stacks"
                )
        elif self._looks_for_stacks and step.obs.ndim == 4:
            self._looks_for_stacks -= 1
            self._warn_of_stacks(step.obs[0], step.next_obs[0])
        for env, ring in enumerate(self._rings):
            newest = self._columns["frame"][self._slot(env, ring.written - 1)]
            if ring.running and not np.array_equal(step.obs[env, -self._channels :], newest):
                raise ValueError(f"environment {env} does not go on from its last observation; discard it after a reset")

    def _warn_of_stacks(self, obs: Array, next_obs: Array) -> None:
        """Said once, if an image is the one before moved by some channels and its newest differ: a stack stored whole."""
        channels = len(obs)
        for new in (c for c in range(1, channels) if channels % c == 0):
            if np.array_equal(next_obs[:-new], obs[new:]) and not np.array_equal(next_obs[-new:], obs[-new:]):
                self._looks_for_stacks = 0
                warnings.warn(
                    f"the images look like stacks of {channels // new} frames and are stored whole; with "
                    f"algo_kwargs.frame_stack: {channels // new} each frame is stored once",
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
        complete = position + 1 if ended else position + 2 - self.n_step  # the first that is not
        windows = range(ring.waiting, max(ring.waiting, complete))
        for begin in windows:
            self._complete(env, begin, position, terminated)
        ring.waiting = windows.stop
        ring.running = not ended
        for begin in self._items(env, windows, ended):
            self._enqueue(env, begin)

    def _begin(self, env: int, obs: Array) -> None:
        """An episode's first stack, of which repetitions of the oldest frame need no slots."""
        frames = obs.reshape(self.stack, self._channels, *obs.shape[1:])
        oldest = 0
        while oldest + 1 < self.stack and np.array_equal(frames[oldest + 1], frames[0]):
            oldest += 1
        for age, frame in enumerate(frames[oldest:]):
            self._append(env, frame, age)
        self._rings[env].waiting = self._rings[env].written - 1

    def _append(self, env: int, frame: Array, age: int) -> None:
        """One more observation. The items whose oldest slot makes way for it can no longer be sampled."""
        ring = self._rings[env]
        overwritten = ring.written - self._slots
        while len(ring) and self._reach(env, self._oldest(env)) <= overwritten:
            self._retire(env)
        slot = self._slot(env, ring.written)
        self._columns["frame"][slot] = frame
        self._columns["age"][slot] = min(age, self.stack - 1)
        ring.written += 1

    def _complete(self, env: int, begin: int, last: int, terminated: bool) -> None:
        """The window from ``begin`` to ``last`` is whole. No later window needs the first reward again."""
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
        """The slots of ``count`` items, with replacement; of a prioritised buffer with weights, corrected by ``beta``."""
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
        """Where the items numbered 0 ... len - 1 begin."""
        retired = np.array([ring.retired for ring in self._rings])
        counts = np.array([len(ring) for ring in self._rings])
        ends = counts.cumsum()
        env = ends.searchsorted(numbers, side="right")
        entries = retired[env] + numbers - (ends - counts)[env]
        positions = self._queue[env, entries % self._queue.shape[1]]
        slots: NDArray[np.int64] = env * self._slots + positions % self._slots
        return slots

    def _further(self, slots: NDArray[np.int64], steps: Array) -> NDArray[np.int64]:
        """So many positions after (or before) these slots, in the same environments."""
        ring = slots // self._slots * self._slots  # where its environment's slots begin
        further: NDArray[np.int64] = ring + (slots - ring + steps) % self._slots
        return further

    def _observations(self, slots: NDArray[np.int64]) -> torch.Tensor:
        """The observations whose newest frames are in ``slots`` (row, batch); a first frame stands for earlier ones."""
        if self.stack == 1:
            return self._take("frame", slots)
        column, (rows, batch) = self._columns["frame"], slots.shape
        back = np.minimum(self._columns["age"][slots][..., None], np.arange(self.stack - 1, -1, -1))  # (row, batch, stack)
        frames = self._further(slots[..., None], -back)
        # One piece of memory for all: the allocator hands several of this size back to the system and has them cleared again.
        stacks = torch.empty((rows, batch, self.stack, *column.shape[1:]), dtype=torch.uint8)
        for first in range(0, batch, GATHERED_TOGETHER):
            part = slice(first, first + GATHERED_TOGETHER)
            for row in range(rows):
                column.take(frames[row, part], axis=0, out=stacks[row, part].numpy(), mode="clip")
        return stacks.view(rows, batch, self.stack * self._channels, *column.shape[2:]).to(self._device)

    def _take(self, name: str, slots: NDArray[np.int64]) -> torch.Tensor:
        column = self._columns[name]
        # Into torch's memory, which is 64-byte aligned where numpy's is not: products then round the same in every run.
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
    """A capacity dealt out to environments."""
    return [capacity // num_envs + (env < capacity % num_envs) for env in range(num_envs)]
