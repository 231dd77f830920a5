"""A ring of transitions, sampled uniformly (Lin 1992; Mnih et al. 2015).

All fields of a transition are stored together in one record, so sampling takes one gather of whole records instead of one
per field.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from rl_training.data.loaded import require, require_actions, require_finite, require_masks, require_within
from rl_training.data.memory import require_memory
from rl_training.data.segments import Ring, SegmentedBuffer
from rl_training.errors import CheckpointError
from rl_training.types import Array, SpaceSpec, State, TransitionBatch, Transitions

#: The name of the ring in a checkpoint.
RING = "transitions"


class ReplayBuffer(SegmentedBuffer):
    """The newest ``capacity`` transitions. The memory is one torch tensor, which is written and gathered through numpy views.

    With ``reuse_batches`` a batch is only valid until the next one of its size, which uses the same memory. This saves a
    sixth of a small DQN's step, in a loop that does not need a batch after sampling the next.
    """

    def __init__(
        self,
        capacity: int,
        obs_shape: tuple[int, ...],
        *,
        action_shape: tuple[int, ...] = (),
        obs_dtype: type[np.generic] = np.float32,
        action_dtype: type[np.generic] = np.int64,
        masked_actions: int = 0,
        rng: np.random.Generator,
        device: torch.device | str = "cpu",
        reuse_batches: bool = False,
        further_bytes: int = 0,
    ) -> None:
        """``further_bytes`` is the memory that a subclass needs in addition to the ring."""
        self.capacity = capacity
        self._record = self._record_dtype(obs_shape, obs_dtype, action_shape, action_dtype, masked_actions)
        require_memory(capacity * self._record.itemsize + further_bytes, f"a replay of {capacity} transitions")
        self._bytes = torch.zeros((capacity, self._record.itemsize), dtype=torch.uint8)
        self._rows = self._as_rows(self._bytes)
        self._names = [name for name in Transitions._fields if name in (self._record.names or ())]
        self._columns = [self._rows.view(self._record)[name] for name in self._names]
        self._rng = rng
        self._device = torch.device(device)
        self._next, self._size = 0, 0
        self._written = 0  # transitions added so far
        self._reused: dict[int, tuple[NDArray[np.void], TransitionBatch]] | None = {} if reuse_batches else None

    @staticmethod
    def _record_dtype(
        obs_shape: tuple[int, ...],
        obs_dtype: type[np.generic],
        action_shape: tuple[int, ...],
        action_dtype: type[np.generic],
        masked_actions: int,
    ) -> np.dtype[np.void]:
        fields: list[Any] = [
            ("obs", obs_dtype, obs_shape),
            ("action", action_dtype, action_shape),
            ("reward", np.float32),
            ("next_obs", obs_dtype, obs_shape),
            ("discount", np.float32),
        ]
        if masked_actions:
            fields.append(("next_action_mask", np.bool_, (masked_actions,)))
        return np.dtype(fields, align=True)

    @staticmethod
    def _as_rows(memory: torch.Tensor) -> NDArray[np.void]:
        """A view with one opaque item per record, which numpy copies whole."""
        return memory.numpy().view(f"V{memory.shape[1]}").reshape(len(memory))

    def __len__(self) -> int:
        return self._size

    @property
    def nbytes(self) -> int:
        """The memory allocated for the ring."""
        return self._bytes.nbytes

    def add(self, transitions: Transitions) -> None:
        """Stores one transition (a scalar reward) or a batch of them (a leading axis on every field)."""
        start = self._next
        single = np.ndim(transitions.reward) == 0
        count = 1 if single else len(transitions.reward)
        if self._unsaved is not None:
            self._unsaved.before_writing(RING, self._written + count)
        rows: int | slice | NDArray[np.int64] = start if single else slice(start, start + count)
        kept = slice(None)
        if start + count > self.capacity:  # wraps around; if the batch is longer than the ring, keeps the newest
            rows = ((start + np.arange(count)) % self.capacity)[-self.capacity :]
            kept = slice(-self.capacity, None)
        for column, value in zip(self._columns, transitions, strict=False):  # there may be no mask
            column[rows] = value if single or value is None else value[kept]
        self._written += count
        self._next = (start + count) % self.capacity
        self._size = min(self._size + count, self.capacity)

    def add_block(self, transitions: Transitions, first: int) -> None:
        """Stores the transitions of a block; of which environments they are does not matter."""
        self.add(transitions)

    def sample(self, batch_size: int, beta: float = 0.0) -> TransitionBatch:
        """Samples ``batch_size`` transitions uniformly with replacement. Uniform samples need no correction by ``beta``."""
        if self._size == 0:
            raise ValueError("cannot sample from an empty replay buffer")
        return self.gather(self._rng.integers(0, self._size, batch_size))

    def gather(self, indices: NDArray[np.int64]) -> TransitionBatch:
        """The transitions in these rows, copied from the ring."""
        count = len(indices)
        memory = None if self._reused is None else self._reused.get(count)
        if memory is None:
            memory = self._allocate(count)
            if self._reused is not None:
                self._reused[count] = memory
        rows, batch = memory
        self._rows.take(indices, out=rows, mode="clip")
        return batch if self._device.type == "cpu" else TransitionBatch(*map(self._to_device, batch))

    def example(self, batch_size: int) -> TransitionBatch:
        """A batch with the right shapes and arbitrary contents."""
        return self.gather(np.zeros(batch_size, np.int64))

    def _allocate(self, count: int) -> tuple[NDArray[np.void], TransitionBatch]:
        """Memory for ``count`` records, and its fields as tensors."""
        # Unlike numpy's memory, torch's is 64-byte aligned, so matrix products round the same in every run.
        rows = self._as_rows(torch.empty((count, self._record.itemsize), dtype=torch.uint8))
        records = rows.view(self._record)
        tensors: Any = (torch.from_numpy(records[name]) for name in self._names)
        return rows, TransitionBatch(*tensors)

    def update_priorities(self, indices: NDArray[np.int64], priorities: Array) -> None:
        """Does nothing: uniform replay has no priorities."""

    def discard(self, env_index: int) -> None:
        """Does nothing: transitions are complete when they are added."""

    def _to_device(self, field: Any) -> Any:
        return None if field is None else field.to(self._device)

    def state_dict(self) -> State:
        """A copy of the filled part of the ring, and the write position."""
        return {"records": self._bytes[: self._size].clone(), "next": self._next, "capacity": self.capacity}

    def load_state_dict(self, state: State) -> None:
        records: torch.Tensor = state["records"]
        if state["capacity"] != self.capacity or records.shape[1] != self._record.itemsize:
            raise self._misfit(state["capacity"], records.shape[1])
        self._size = len(records)
        self._bytes[: self._size] = records
        self._next = int(state["next"])
        self._written = self._next + (self.capacity if self._size == self.capacity else 0)

    def check(self, spec: SpaceSpec) -> None:
        end = self._size if self._size < self.capacity else self._next
        require(0 <= self._next < self.capacity and self._next == end, "its next transition is not at the end of the others")
        held = {name: column[: self._size] for name, column in zip(self._names, self._columns, strict=True)}
        require_actions(held["action"], spec.action)
        require_finite(held["reward"], "a reward")
        require_within(held["discount"], 0, 1, "a discount")
        if "next_action_mask" in held:
            require_masks(held["next_action_mask"])

    def rings(self) -> list[Ring]:
        return [Ring(RING, {"records": self._bytes.numpy()}, written=self._written, settled=self._written)]

    @property
    def rest_nbytes(self) -> int:
        return 0

    def rest_dict(self) -> State:
        return {"written": self._written, "capacity": self.capacity, "record_bytes": self._record.itemsize}

    def load_rest_dict(self, state: State) -> None:
        if (state["capacity"], state["record_bytes"]) != (self.capacity, self._record.itemsize):
            raise self._misfit(state["capacity"], state["record_bytes"])
        self._written = int(state["written"])
        self._size, self._next = min(self._written, self.capacity), self._written % self.capacity

    def _misfit(self, capacity: int, record_bytes: int) -> CheckpointError:
        return CheckpointError(
            f"the saved replay (capacity {capacity}, {record_bytes} bytes per transition) does not fit this buffer (capacity "
            f"{self.capacity}, {self._record.itemsize} bytes); resume with the settings that the run was started with"
        )
