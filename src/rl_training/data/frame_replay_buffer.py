"""Replay of stacked images that keeps every frame once (the idea of Mnih et al. 2015's replay; priorities: Schaul et al.,
arXiv:1511.05952).

A stack of 4 repeats each frame 4 times, and the next observation does so again; stored as they are, transitions take 8 times
the memory. Here each environment has a ring of slots, one frame a slot in the order of time, and a stack is rebuilt when it
is sampled: a frame's predecessors are the slots before it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from rl_training.data.memory import require_memory
from rl_training.data.prioritized_replay_buffer import PriorityIndex
from rl_training.errors import CheckpointError, ConfigError
from rl_training.types import Array, State, Step, TransitionBatch

#: one slot in so many is spare, for frames that begin no transition: final ones, and those that precede a first one
TRANSITIONS_PER_SPARE_SLOT = 20
#: transitions gathered at a time: frames of both their observations are then still in the cache for the second
GATHERED_TOGETHER = 64


@dataclass
class _Ring:
    """Where one environment's ring stands. Positions count on for ever; position p lies in slot p % slots."""

    quota: int  # how many transitions it may hold
    written: int = 0  # frames so far; the last one is the newest observation
    running: bool = False  # whether an episode goes on from there
    waiting: int = 0  # the first position whose n-step window is not complete
    queued: int = 0  # how many transitions ever became complete ...
    retired: int = 0  # ... and how many of them are gone again

    def __len__(self) -> int:
        return self.queued - self.retired


class _SlotPriorities(PriorityIndex):
    """Priorities of slots, which also lose them."""

    @property
    def nbytes(self) -> int:
        return self._tree.nbytes

    def remove(self, slots: NDArray[np.int64]) -> None:
        self._tree.set(slots, 0.0)

    def update(self, indices: NDArray[np.int64], priorities: NDArray[np.floating[Any]]) -> None:
        held = self._tree.get(indices) > 0.0  # a transition may have gone since it was sampled
        if held.any():
            super().update(indices[held], priorities[held])


class FrameReplayBuffer:
    """The newest ``capacity`` n-step transitions, an equal share for each environment; uniform, or prioritised by ``alpha``.

    ``add`` takes whole steps. The n-step sums are made here, for a window too is a row of neighbouring slots.
    An episode of L steps takes L + 1 slots, and up to ``stack`` - 1 more if its first observation is not one frame repeated.
    The spare slots pay for that while episodes have 20 steps or more (20 * ``stack`` if first observations are stacks of
    different frames); with shorter ones the buffer holds fewer than ``capacity`` transitions.
    """

    def __init__(
        self,
        capacity: int,
        obs_shape: tuple[int, ...],
        *,
        stack: int,
        num_envs: int,
        n_step: int,
        gamma: float,
        action_shape: tuple[int, ...] = (),
        action_dtype: type[np.generic] = np.int64,
        masked_actions: int = 0,
        rng: np.random.Generator,
        device: torch.device | str = "cpu",
        alpha: float | None = None,
    ) -> None:
        if obs_shape[0] % stack:
            raise ConfigError(
                f"{obs_shape[0]} channels are not {stack} frames; set frame_stack to what the environment stacks"
            )
        if capacity < num_envs:
            raise ConfigError(f"algo_kwargs.buffer_size is {capacity}, but must be at least num_envs, {num_envs}")
        self.capacity, self.stack, self.num_envs = capacity, stack, num_envs
        self.n_step, self.gamma = n_step, gamma
        self._channels = obs_shape[0] // stack
        self._rng, self._device = rng, torch.device(device)

        shares = [capacity // num_envs + (env < capacity % num_envs) for env in range(num_envs)]
        self._slots = shares[0] + shares[0] // TRANSITIONS_PER_SPARE_SLOT + n_step + 3 * stack + 2  # of each environment
        self._rings = [_Ring(share) for share in shares]
        layout: dict[str, Any] = {
            "frame": np.dtype((np.uint8, (self._channels, *obs_shape[1:]))),
            "action": np.dtype((action_dtype, action_shape)),
            "reward": np.dtype(np.float32),  # of one step while its window is open, then the n-step sum
            "discount": np.dtype(np.float32),
            "length": np.dtype(np.int32),  # of the window: so many slots on is the next observation
            "age": np.dtype(np.int32),  # how many frames before this one are its episode's, stack - 1 at most
        }
        if masked_actions:
            layout["action_mask"] = np.dtype((np.bool_, (masked_actions,)))
        total = num_envs * self._slots
        priority = 0 if alpha is None else 9  # a leaf and its part of the nodes above
        needed = total * (sum(dtype.itemsize for dtype in layout.values()) + priority) + 8 * num_envs * shares[0]
        require_memory(needed, f"a replay of {capacity} transitions, each frame stored once,")
        self._columns = {name: np.zeros(total, dtype) for name, dtype in layout.items()}
        #: positions of the transitions that can be sampled; the i-th that became complete is at i % its length
        self._queue = np.zeros((num_envs, shares[0]), np.int64)
        self._priorities = None if alpha is None else _SlotPriorities(total, alpha, rng)
        self._changed: dict[int, bool] = {}  # slots that came or went in this step, and whether they can now be sampled

    def __len__(self) -> int:
        """How many transitions can be sampled now: the window complete, every frame of it still there."""
        return sum(map(len, self._rings))

    @property
    def nbytes(self) -> int:
        """The memory that the rings take, full or not."""
        tree = 0 if self._priorities is None else self._priorities.nbytes
        return sum(column.nbytes for column in self._columns.values()) + self._queue.nbytes + tree

    def add(self, step: Step) -> None:
        """One step of all environments, with whole stacks, oldest frame first."""
        self._check(step)
        self._changed.clear()
        for env in range(self.num_envs):
            self._add_one(env, step)
        if self._priorities is not None and self._changed:
            slots = np.array(list(self._changed))
            held = np.array(list(self._changed.values()))
            self._priorities.remove(slots[~held])
            self._priorities.add(slots[held])

    def discard(self, env_index: int) -> None:
        """Forgets an environment's open windows, when its episode cannot go on. What was complete stays."""
        self._rings[env_index].running = False

    def sample(self, batch_size: int, beta: float = 0.4) -> TransitionBatch:
        """``batch_size`` transitions with replacement; of a prioritised buffer with weights, corrected by ``beta``."""
        if len(self) == 0:
            raise ValueError("cannot sample from an empty replay buffer")
        if self._priorities is None:
            return self.gather(self._slots_of(self._rng.integers(0, len(self), batch_size)))
        slots, weights = self._priorities.sample(batch_size, len(self), beta)
        return self.gather(slots)._replace(weights=torch.from_numpy(weights).to(self._device), indices=slots)

    def update_priorities(self, indices: NDArray[np.int64], priorities: Array) -> None:
        """New priorities of sampled transitions. A uniform buffer has none to update."""
        if self._priorities is not None:
            self._priorities.update(indices, priorities)

    def gather(self, slots: NDArray[np.int64]) -> TransitionBatch:
        """The transitions that begin in these slots. The tensors are new, not views of the rings."""
        ring = slots // self._slots * self._slots  # where its environment's slots begin
        next_slots = ring + (slots - ring + self._columns["length"][slots]) % self._slots
        obs, next_obs = self._stacks(np.stack([slots, next_slots]), ring)
        return TransitionBatch(
            obs=obs,
            action=self._take("action", slots),
            reward=self._take("reward", slots),
            next_obs=next_obs,
            discount=self._take("discount", slots),
            next_action_mask=self._take("action_mask", next_slots) if "action_mask" in self._columns else None,
        )

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

    def _check(self, step: Step) -> None:
        """A stack can be rebuilt from single frames only if each observation is the one before it, moved by one frame."""
        assert step.obs.dtype == step.next_obs.dtype == np.uint8
        moved = step.next_obs[:, : -self._channels] == step.obs[:, self._channels :]
        if not moved.all():
            env = int(np.flatnonzero(~moved.reshape(self.num_envs, -1).all(axis=1))[0])
            raise ConfigError(
                f"environment {env} gives no stack of {self.stack} frames: its observation after a step does not begin with "
                f"the last {self.stack - 1} frames of the one before; set frame_stack to the number of frames that it stacks"
            )
        for env, ring in enumerate(self._rings):
            newest = self._columns["frame"][self._slot(env, ring.written - 1)]
            if ring.running and not np.array_equal(step.obs[env, -self._channels :], newest):
                raise ValueError(f"environment {env} does not go on from its last observation; discard it after a reset")

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
        for begin in range(ring.waiting, complete):
            self._complete(env, begin, position, terminated)
        ring.waiting = max(ring.waiting, complete)
        ring.running = not ended

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
        """One more frame. The transitions whose oldest frame makes way for it can no longer be sampled."""
        ring, ages = self._rings[env], self._columns["age"]
        overwritten = ring.written - self._slots
        while len(ring) and (oldest := self._oldest(env)) - ages[self._slot(env, oldest)] <= overwritten:
            self._retire(env)
        slot = self._slot(env, ring.written)
        self._columns["frame"][slot] = frame
        ages[slot] = min(age, self.stack - 1)
        ring.written += 1

    def _complete(self, env: int, begin: int, last: int, terminated: bool) -> None:
        """The window from ``begin`` to ``last`` becomes a transition. No later window needs the first reward again."""
        ring, columns, slot = self._rings[env], self._columns, self._slot(env, begin)
        total = 0.0
        for position in range(last, begin - 1, -1):
            total = float(columns["reward"][self._slot(env, position)]) + self.gamma * total
        length = last + 1 - begin
        columns["reward"][slot] = total
        columns["length"][slot] = length
        columns["discount"][slot] = 0.0 if terminated else self.gamma**length
        if len(ring) == ring.quota:
            self._retire(env)
        self._queue[env, ring.queued % self._queue.shape[1]] = begin
        ring.queued += 1
        self._changed[slot] = True

    def _retire(self, env: int) -> None:
        self._changed[self._slot(env, self._oldest(env))] = False
        self._rings[env].retired += 1

    # -- reading

    def _oldest(self, env: int) -> int:
        """The position of an environment's oldest transition."""
        return int(self._queue[env, self._rings[env].retired % self._queue.shape[1]])

    def _slot(self, env: int, position: int) -> int:
        return env * self._slots + position % self._slots

    def _slots_of(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """Where the transitions numbered 0 ... len - 1 begin."""
        retired = np.array([ring.retired for ring in self._rings])
        counts = np.array([len(ring) for ring in self._rings])
        ends = counts.cumsum()
        env = ends.searchsorted(numbers, side="right")
        entries = retired[env] + numbers - (ends - counts)[env]
        positions = self._queue[env, entries % self._queue.shape[1]]
        slots: NDArray[np.int64] = env * self._slots + positions % self._slots
        return slots

    def _stacks(self, slots: NDArray[np.int64], ring: NDArray[np.int64]) -> torch.Tensor:
        """The observations whose newest frames are in ``slots`` (2, batch); a first frame stands for earlier ones."""
        column, batch = self._columns["frame"], slots.shape[1]
        back = np.minimum(self._columns["age"][slots][..., None], np.arange(self.stack - 1, -1, -1))  # (2, batch, stack)
        frames = ring[:, None] + ((slots - ring)[..., None] - back) % self._slots
        # One piece of memory for both: the allocator hands two of this size back to the system and has them cleared again.
        stacks = torch.empty((2, batch, self.stack, *column.shape[1:]), dtype=torch.uint8)
        for first in range(0, batch, GATHERED_TOGETHER):
            rows = slice(first, first + GATHERED_TOGETHER)
            for part in (0, 1):
                column.take(frames[part, rows], axis=0, out=stacks[part, rows].numpy(), mode="clip")
        return stacks.view(2, batch, self.stack * self._channels, *column.shape[2:]).to(self._device)

    def _take(self, name: str, slots: NDArray[np.int64]) -> torch.Tensor:
        column = self._columns[name]
        # Into torch's memory, which is 64-byte aligned where numpy's is not: products then round the same in every run.
        taken = torch.empty((len(slots), *column.shape[1:]), dtype=torch.from_numpy(column[:0]).dtype)
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
            "capacity": self.capacity,
            "num_envs": self.num_envs,
            "stack": self.stack,
            "n_step": self.n_step,
            "gamma": self.gamma,
            "prioritized": self._priorities is not None,
            "columns": {name: [column.dtype.str, *column.shape[1:]] for name, column in self._columns.items()},
        }


def _describe(fits: dict[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in fits.items() if name != "columns") + f", {fits['columns']['frame']}"
