"""A ring of transitions, sampled uniformly (Lin 1992; Mnih et al. 2015).

All fields of a transition lie side by side in one record: a sample is then one gather of whole records
instead of one per field.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from rl_training.data.memory import require_memory
from rl_training.errors import CheckpointError
from rl_training.types import Array, State, TransitionBatch, Transitions


class ReplayBuffer:
    """The newest ``capacity`` transitions. The memory is one torch tensor; numpy views write and gather it.

    With ``reuse_batches`` a batch is good until the next of its size, which takes the same memory: for a loop that is done
    with one before it asks for another, and saves a sixth of a small DQN's step.
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
        """``further_bytes`` is what a subclass takes beside the ring."""
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
        self._rooms: dict[int, tuple[NDArray[np.void], TransitionBatch]] | None = {} if reuse_batches else None

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
        """One opaque item per record, which numpy copies whole."""
        return memory.numpy().view(f"V{memory.shape[1]}").reshape(len(memory))

    def __len__(self) -> int:
        return self._size

    @property
    def nbytes(self) -> int:
        """The memory that the ring takes, full or not."""
        return self._bytes.nbytes

    def add(self, transitions: Transitions) -> None:
        """Stores one transition (a scalar reward) or a batch of them (a leading axis on every field)."""
        start = self._next
        single = np.ndim(transitions.reward) == 0
        count = 1 if single else len(transitions.reward)
        rows: int | slice | NDArray[np.int64] = start if single else slice(start, start + count)
        kept = slice(None)
        if start + count > self.capacity:  # wraps; of a batch longer than the ring the newest stay
            rows = ((start + np.arange(count)) % self.capacity)[-self.capacity :]
            kept = slice(-self.capacity, None)
        for column, value in zip(self._columns, transitions, strict=False):  # there may be no mask
            column[rows] = value if single or value is None else value[kept]
        self._next = (start + count) % self.capacity
        self._size = min(self._size + count, self.capacity)

    def sample(self, batch_size: int, beta: float = 0.0) -> TransitionBatch:
        """``batch_size`` transitions, uniformly and with replacement; uniform samples need no correction by ``beta``."""
        if self._size == 0:
            raise ValueError("cannot sample from an empty replay buffer")
        return self.gather(self._rng.integers(0, self._size, batch_size))

    def gather(self, indices: NDArray[np.int64]) -> TransitionBatch:
        """The transitions at these rows. The tensors are no views of the ring."""
        count = len(indices)
        room = None if self._rooms is None else self._rooms.get(count)
        if room is None:
            room = self._make_room(count)
            if self._rooms is not None:
                self._rooms[count] = room
        rows, batch = room
        self._rows.take(indices, out=rows, mode="clip")
        return batch if self._device.type == "cpu" else TransitionBatch(*map(self._to_device, batch))

    def example(self, batch_size: int) -> TransitionBatch:
        """A batch of the right shapes, whatever its content."""
        return self.gather(np.zeros(batch_size, np.int64))

    def _make_room(self, count: int) -> tuple[NDArray[np.void], TransitionBatch]:
        """Memory for so many records, and its fields as tensors."""
        # torch's allocation is 64-byte aligned where numpy's is not: matrix products then round the same in every run.
        rows = self._as_rows(torch.empty((count, self._record.itemsize), dtype=torch.uint8))
        records = rows.view(self._record)
        tensors: Any = (torch.from_numpy(records[name]) for name in self._names)
        return rows, TransitionBatch(*tensors)

    def update_priorities(self, indices: NDArray[np.int64], priorities: Array) -> None:
        """Uniform replay has none to update."""

    def discard(self, env_index: int) -> None:
        """Whole transitions belong to no open episode."""

    def _to_device(self, field: Any) -> Any:
        return None if field is None else field.to(self._device)

    def state_dict(self) -> State:
        """The filled part of the ring (a copy) and the write position."""
        return {"records": self._bytes[: self._size].clone(), "next": self._next, "capacity": self.capacity}

    def load_state_dict(self, state: State) -> None:
        records: torch.Tensor = state["records"]
        if state["capacity"] != self.capacity or records.shape[1] != self._record.itemsize:
            raise CheckpointError(
                f"the saved replay (capacity {state['capacity']}, {records.shape[1]} bytes a transition) does not fit this "
                f"buffer (capacity {self.capacity}, {self._record.itemsize} bytes); resume with the run's own settings"
            )
        self._size = len(records)
        self._bytes[: self._size] = records
        self._next = int(state["next"])
