"""A ring of transitions, sampled uniformly (Lin 1992; Mnih et al. 2015).

All fields of a transition lie side by side in one record: a sample is then one gather of whole records, about twice as fast
as a gather per field once the ring no longer fits the cache.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from rl_training.errors import CheckpointError, ConfigError
from rl_training.types import Array, State, TransitionBatch, Transitions


class ReplayBuffer:
    """The newest ``capacity`` transitions. The memory is one torch tensor; numpy views write and gather it."""

    def __init__(
        self,
        capacity: int,
        obs_shape: tuple[int, ...],
        *,
        action_shape: tuple[int, ...] = (),
        obs_dtype: type[np.generic] = np.float32,
        action_dtype: type[np.generic] = np.int64,
        rng: np.random.Generator,
        device: torch.device | str = "cpu",
    ) -> None:
        self.capacity = capacity
        self._record = self._record_dtype(obs_shape, obs_dtype, action_shape, action_dtype)
        try:
            self._bytes = torch.zeros((capacity, self._record.itemsize), dtype=torch.uint8)
        except RuntimeError as error:
            gigabytes = capacity * self._record.itemsize / 1e9
            raise ConfigError(
                f"a replay of {capacity} transitions needs {gigabytes:.1f} GB, which this machine does not have; lower "
                "algo_kwargs.buffer_size"
            ) from error
        self._rows = self._as_rows(self._bytes)
        self._columns = [self._rows.view(self._record)[name] for name in Transitions._fields]
        self._rng = rng
        self._device = torch.device(device)
        self._next, self._size = 0, 0

    @staticmethod
    def _record_dtype(
        obs_shape: tuple[int, ...],
        obs_dtype: type[np.generic],
        action_shape: tuple[int, ...],
        action_dtype: type[np.generic],
    ) -> np.dtype[np.void]:
        fields = [
            ("obs", obs_dtype, obs_shape),
            ("action", action_dtype, action_shape),
            ("reward", np.float32),
            ("next_obs", obs_dtype, obs_shape),
            ("discount", np.float32),
        ]
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
        if start + count > self.capacity:  # wraps; of a batch longer than the ring the newest stay
            rows = ((start + np.arange(count)) % self.capacity)[-self.capacity :]
            transitions = Transitions(*(field[-self.capacity :] for field in transitions))
        for column, value in zip(self._columns, transitions, strict=True):
            column[rows] = value
        self._next = (start + count) % self.capacity
        self._size = min(self._size + count, self.capacity)

    def sample(self, batch_size: int) -> TransitionBatch:
        """``batch_size`` transitions, uniformly and with replacement."""
        if self._size == 0:
            raise ValueError("cannot sample from an empty replay buffer")
        return self.gather(self._rng.integers(0, self._size, batch_size))

    def gather(self, indices: NDArray[np.int64]) -> TransitionBatch:
        """The transitions at these rows. The tensors are new, not views of the ring."""
        # torch's allocation is 64-byte aligned where numpy's is not: matrix products then round the same in every run.
        picked = torch.empty((len(indices), self._record.itemsize), dtype=torch.uint8)
        rows = self._as_rows(picked)
        self._rows.take(indices, out=rows, mode="clip")
        records = rows.view(self._record)
        return TransitionBatch(*(self._to_tensor(records[name]) for name in Transitions._fields))

    def _to_tensor(self, column: Array) -> torch.Tensor:
        tensor = torch.from_numpy(column)
        return tensor if self._device.type == "cpu" else tensor.to(self._device)

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
