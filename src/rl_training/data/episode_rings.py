"""Storage for replays of frames and of sequences: the steps of several environments in time order, each observation stored
once.

Each environment has a ring of slots with one observation per slot, including the final observation of an episode. An item,
which is what can be sampled, is a run of consecutive slots and is identified by its first slot. For stacked images a slot
keeps only the newest frame; sampling rebuilds the stack from the preceding slots. An n-step window is also a run of
consecutive slots, so n-step sums are computed here.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from rl_training.data.acting_values import Targets
from rl_training.data.frames import Frames, StackCheck
from rl_training.data.item_queue import ItemQueue, RingCounters
from rl_training.data.loaded import require
from rl_training.data.memory import require_memory
from rl_training.data.prioritized_replay_buffer import PriorityIndex
from rl_training.data.segments import Ring, SegmentedBuffer
from rl_training.data.slot_columns import SlotColumns
from rl_training.data.sum_tree import SumTree
from rl_training.errors import CheckpointError
from rl_training.types import Array, State, Step

#: one spare slot per this many steps, for observations without an action: final ones, and frames before the first one
STEPS_PER_SPARE_SLOT = 20


class _SlotPriorities(PriorityIndex):
    """Priorities of slots, which can also be removed. Changes are noted, and applied together by ``settle``."""

    def __init__(self, capacity: int, alpha: float, rng: np.random.Generator) -> None:
        super().__init__(capacity, alpha, rng)
        self.changed: dict[int, bool] = {}  # slots of items added or retired since priorities were settled -> whether added
        self.initial: dict[int, float] = {}  # the first priorities of those that were added; empty if they are not known

    def settle(self) -> None:
        """Gives the items that were added since the last call their priorities, and takes them from the retired ones."""
        if self.changed:
            slots, held = np.array(list(self.changed)), np.array(list(self.changed.values()))
            new = slots[held]
            self._tree.set(slots[~held], 0.0)
            self.add(new, np.array([self.initial[slot] for slot in new.tolist()]) if self.initial else None)
            self.changed.clear()
            self.initial.clear()

    def update(self, indices: NDArray[np.int64], priorities: NDArray[np.floating[Any]]) -> None:
        held = self._tree.get(indices) > 0.0  # an item may have been overwritten since it was sampled
        if held.any():
            super().update(indices[held], priorities[held])


def _layout(frame: np.dtype[Any], action: np.dtype[Any], masked_actions: int) -> dict[str, np.dtype[Any]]:
    """The columns that every ring has, one entry per slot."""
    layout: dict[str, np.dtype[Any]] = {
        "frame": frame,
        "action": action,
        "reward": np.dtype(np.float32),  # the reward of one step until its window is complete, then the n-step sum
        "discount": np.dtype(np.float32),
        "length": np.dtype(np.int32),  # of its window: the slots from here to the observation to bootstrap from
        "age": np.dtype(np.int32),  # number of earlier frames in the episode, at most stack - 1
    }
    if masked_actions:
        layout["action_mask"] = np.dtype((np.bool_, (masked_actions,)))
    return layout


class EpisodeRings(SlotColumns, SegmentedBuffer):
    """The rings. A subclass defines which items a step completes (``_items``) and how far back an item reaches (``_reach``),
    and builds batches with ``_take`` and ``_observations``."""

    def __init__(
        self,
        frames: Frames,
        *,
        slots: int,
        quotas: list[int],
        longest_reach: int,
        under_way: int,
        n_step: int,
        gamma: float,
        action_shape: tuple[int, ...],
        action_dtype: type[np.generic],
        masked_actions: int,
        rng: np.random.Generator,
        device: torch.device | str,
        alpha: float | None,
        targets: Targets | None,
        further_columns: Mapping[str, np.dtype[Any]],
        further_bytes: int = 0,
        what: str,
    ) -> None:
        """``slots`` and ``quotas`` (of items) are per environment. What an item needs begins at most ``longest_reach`` before
        it, and what an incomplete item needs is among the newest ``under_way`` slots. With ``targets``, steps come with the
        Q-values of acting. ``what`` names the replay in an out-of-memory error."""
        self._stacks = StackCheck(frames)
        self.n_step, self.gamma = n_step, gamma
        self._powers = np.array([gamma**k for k in range(n_step + 1)])
        self._longest_reach, self._under_way = longest_reach, under_way
        self._rng = rng
        self._rings = [RingCounters(quota) for quota in quotas]
        layout = {**_layout(frames.dtype, np.dtype((action_dtype, action_shape)), masked_actions), **further_columns}
        if targets is not None:  # of one step the Q-value of the action, until its window is complete: then the TD error
            layout["error"] = np.dtype(np.float32)
        total = len(quotas) * slots
        needed = total * sum(dtype.itemsize for dtype in layout.values()) + 8 * len(quotas) * max(quotas)
        tree = 0 if alpha is None else SumTree.bytes_of(total)
        require_memory(needed + tree + further_bytes, what)
        super().__init__(layout, len(quotas), slots, frames, torch.device(device))
        self._queue = ItemQueue(self._rings)
        self._priorities = None if alpha is None else _SlotPriorities(total, alpha, rng)
        self._targets = targets

    def __len__(self) -> int:
        """The number of items that can be sampled: complete, and with no slot overwritten."""
        return len(self._queue)

    @property
    def nbytes(self) -> int:
        """The memory allocated for the rings."""
        tree = 0 if self._priorities is None else self._priorities.nbytes
        return sum(column.nbytes for column in self._columns.values()) + self._queue.positions.nbytes + tree

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
        columns = {name: self._per_env(name)[:, :used].copy() for name in self._columns}
        return {**self._counters(), "columns": columns, "queue": self._queue.positions.copy()}

    def _counters(self) -> State:
        return {
            "fits": self._fits(),
            "rings": [dict(vars(ring)) for ring in self._rings],
            "priorities": None if self._priorities is None else self._priorities.state_dict(self.num_envs * self._slots),
        }

    def load_state_dict(self, state: State) -> None:
        self._load_counters(state)
        self._queue.positions[:] = state["queue"]
        for name, saved in state["columns"].items():
            self._per_env(name)[:, : self._used_slots()] = saved

    def _load_counters(self, state: State) -> None:
        if state["fits"] != self._fits():
            raise CheckpointError(
                f"the saved replay ({_describe(state['fits'])}) does not fit this buffer ({_describe(self._fits())}); "
                "resume with the settings that the run was started with"
            )
        saved = [RingCounters(**ring) for ring in state["rings"]]
        require([ring.quota for ring in saved] == [ring.quota for ring in self._rings], "it has other rings")
        self._rings[:] = saved
        if self._priorities is not None:
            self._priorities.load_state_dict(state["priorities"])

    # -- writing

    @abstractmethod
    def _items(self, env: int, windows: range, ended: bool) -> Iterable[int]:
        """The first positions of the items that a step has completed; ``windows`` are the n-step windows it completed."""

    @abstractmethod
    def _reach(self, env: int, positions: Any) -> Any:
        """The oldest position that the item at a position needs, at most ``_longest_reach`` before; of one position or of an
        array. It never decreases from one item to the next."""

    def _add_step(self, step: Step, envs: Sequence[int]) -> None:
        """Adds one step of these environments. Observations are whole stacks, oldest frame first. The caller then
        settles the priorities."""
        self._stacks.check(step)
        self._check_continues(step.obs, envs)
        for env in envs:
            self._add_one(env, step)

    def _settle_priorities(self) -> None:
        if self._priorities is not None:
            self._priorities.settle()

    def _check_continues(self, obs: Array, envs: Sequence[int], first: int = 0) -> None:
        """Checks that the observations of these environments, the first row that of environment ``first``, continue from
        those stored."""
        for env in envs:
            ring = self._rings[env]
            newest = self._columns["frame"][self._slot(env, ring.written - 1)]
            if ring.running and not np.array_equal(self._frames.newest(obs[env - first]), newest):
                raise ValueError(f"environment {env} does not continue from its last observation; call discard after a reset")

    def _add_one(self, env: int, step: Step) -> None:
        ring, columns = self._rings[env], self._columns
        if not ring.running:
            self._begin(env, step.obs[env])
        position = ring.written - 1
        slot = self._slot(env, position)
        columns["action"][slot] = step.action[env]
        columns["reward"][slot] = step.reward[env]
        self._append(env, self._frames.newest(step.next_obs[env]), int(columns["age"][slot]) + 1)
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
        frames = self._frames.split(obs)
        oldest = 0
        while oldest + 1 < self.stack and self._frames.same(frames[oldest + 1], frames[0]):
            oldest += 1
        for age, frame in enumerate(frames[oldest:]):
            self._append(env, frame, age)
        self._rings[env].waiting = self._rings[env].written - 1

    def _append(self, env: int, frame: Array, age: int) -> None:
        """Stores one observation and retires the items whose oldest slot it overwrites."""
        ring = self._rings[env]
        overwritten = ring.written - self._slots
        while len(ring) and self._reach(env, self._queue.oldest(env)) <= overwritten:
            self._retire(env)
        if self._unsaved is not None:
            self._unsaved.before_writing(f"env{env}", ring.written + 1)
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
        columns["discount"][slot] = 0.0 if terminated else self._powers[length]

    def _enqueue(self, env: int, begin: int) -> None:
        ring = self._rings[env]
        if len(ring) == ring.quota:
            self._retire(env)
        self._queue.push(env, begin)
        if self._priorities is not None:
            self._priorities.changed[self._slot(env, begin)] = True

    def _retire(self, env: int) -> None:
        if self._priorities is not None:
            self._priorities.changed[self._slot(env, self._queue.oldest(env))] = False
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

    def _slots_of(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """The first slots of the items with these numbers, from 0 to len - 1."""
        env, position = self._queue.numbered(numbers)
        return env * self._slots + position % self._slots

    # -- saving

    def rings(self) -> list[Ring]:
        return [
            Ring(f"env{env}", {name: self._per_env(name)[env] for name in self._columns}, ring.written, self._settled(env))
            for env, ring in enumerate(self._rings)
        ]

    def _settled(self, env: int) -> int:
        """The position below which slots no longer change until they are overwritten: their n-step windows are complete."""
        return self._rings[env].waiting

    @property
    def rest_nbytes(self) -> int:
        return self._queue.positions.nbytes + (0 if self._priorities is None else self._priorities.leaf_nbytes)

    def rest_dict(self) -> State:
        return {**self._counters(), "queue": self._queue.saved()}

    def load_rest_dict(self, state: State) -> None:
        self._load_counters(state)
        self._queue.load(state["queue"])

    def _used_slots(self) -> int:
        return min(self._slots, max(ring.written for ring in self._rings))

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
