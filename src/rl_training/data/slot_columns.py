"""Columns of slots, one ring of slots per environment: gathering from them, and rebuilding stacks of frames."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from rl_training.data.frames import Frames
from rl_training.data.loaded import require_actions, require_finite, require_within
from rl_training.types import Array, SpaceSpec


class SlotColumns:
    """One array per column, with an entry for each slot of each environment's ring."""

    def __init__(
        self, layout: Mapping[str, np.dtype[Any]], num_envs: int, slots: int, frames: Frames, device: torch.device
    ) -> None:
        """``slots`` are those of one environment."""
        self.num_envs, self.stack, self._frames = num_envs, frames.stack, frames
        self._slots, self._device = slots, device
        self._columns: dict[str, Array] = {name: np.zeros(num_envs * slots, dtype) for name, dtype in layout.items()}

    def _slot(self, env: int, position: int) -> int:
        return env * self._slots + position % self._slots

    def _run(self, env: int, position: int, count: int) -> NDArray[np.int64]:
        """The slots of consecutive positions of an environment."""
        return env * self._slots + np.arange(position, position + count) % self._slots

    def _shifted(self, slots: NDArray[np.int64], steps: Array) -> NDArray[np.int64]:
        """The slots this many steps after (or before) these, in the same rings."""
        ring = slots // self._slots * self._slots  # the first slot of the ring
        shifted: NDArray[np.int64] = ring + (slots - ring + steps) % self._slots
        return shifted

    def _observations(self, slots: NDArray[np.int64]) -> torch.Tensor:
        """The observations whose newest frames are in ``slots`` (row, batch). Missing earlier frames repeat the first one."""
        if self.stack == 1:
            return self._take("frame", slots)
        back = np.minimum(self._columns["age"][slots][..., None], np.arange(self.stack - 1, -1, -1))  # (row, batch, stack)
        frames = self._shifted(slots[..., None], -back)
        return self._frames.rebuild(self._columns["frame"], frames).to(self._device)

    def _take(self, name: str, slots: NDArray[np.int64]) -> torch.Tensor:
        column = self._columns[name]
        # Gather into torch's memory: unlike numpy's, it is 64-byte aligned, so matrix products round the same in every run.
        taken = torch.empty((*slots.shape, *column.shape[1:]), dtype=torch.from_numpy(column[:0]).dtype)
        column.take(slots, axis=0, out=taken.numpy(), mode="clip")
        return taken.to(self._device)

    def _check_columns(self, spec: SpaceSpec, n_step: int) -> None:
        """Refuses columns that were loaded with numbers out of range. A slot that nothing was written to has zeros."""
        columns = self._columns
        require_actions(columns["action"], spec.action)
        require_finite(columns["reward"], "a reward")
        require_within(columns["discount"], 0, 1, "a discount")
        require_within(columns["length"], 0, n_step, "the length of a window")
        require_within(columns["age"], 0, self.stack - 1, "the age of a frame")

    def _per_env(self, name: str) -> Array:
        column = self._columns[name]
        return column.reshape(self.num_envs, self._slots, *column.shape[1:])
