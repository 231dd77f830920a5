"""Columns of slots, one ring of slots per environment: gathering from them, and rebuilding stacks of frames."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from rl_training.errors import ConfigError
from rl_training.types import Array, Step

#: columns gathered at a time: few enough that frames shared by neighbouring rows are still in the cache
GATHERED_TOGETHER = 64
#: number of first steps checked for undeclared frame stacks
STACK_CHECKS = 100


class SlotColumns:
    """One array per column, with an entry for each slot of each environment's ring."""

    def __init__(
        self, layout: Mapping[str, np.dtype[Any]], num_envs: int, slots: int, stack: int, device: torch.device
    ) -> None:
        """``slots`` are those of one environment."""
        self.num_envs, self.stack = num_envs, stack
        self._slots, self._device = slots, device
        self._columns: dict[str, Array] = {name: np.zeros(num_envs * slots, dtype) for name, dtype in layout.items()}
        self._channels = self._columns["frame"].shape[1]

    def _slot(self, env: int, position: int) -> int:
        return env * self._slots + position % self._slots

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

    def _per_env(self, name: str) -> Array:
        column = self._columns[name]
        return column.reshape(self.num_envs, self._slots, *column.shape[1:])


class StackCheck:
    """Checks that images are the stacks of frames that they are declared to be."""

    def __init__(self, stack: int, channels: int) -> None:
        """``channels`` are those of a whole observation."""
        if channels % stack:
            raise ConfigError(
                f"images with {channels} channels are not stacks of {stack} frames; set frame_stack to the number of frames "
                "that the environment stacks"
            )
        self._stack, self._channels = stack, channels // stack
        self._checks_left = STACK_CHECKS

    def check(self, step: Step) -> None:
        """Each observation must be the previous one shifted by one frame: only then can stacks be rebuilt."""
        if self._stack > 1:
            moved = step.next_obs[:, : -self._channels] == step.obs[:, self._channels :]
            if not moved.all():
                env = int(np.flatnonzero(~moved.reshape(len(moved), -1).all(axis=1))[0])
                raise ConfigError(
                    f"environment {env} does not stack {self._stack} frames: its observation after a step does not start "
                    f"with the last {self._stack - 1} frames of the previous one; set frame_stack to the number of frames "
                    "that it stacks"
                )
        elif self._checks_left and step.obs.ndim == 4:
            self._checks_left -= 1
            self._warn_of_stacks(step.obs[0], step.next_obs[0])

    def _warn_of_stacks(self, obs: Array, next_obs: Array) -> None:
        """Warns once if an image looks like an undeclared stack: the previous image shifted by some channels."""
        channels = len(obs)
        for new in (c for c in range(1, channels) if channels % c == 0):
            if np.array_equal(next_obs[:-new], obs[new:]) and not np.array_equal(next_obs[-new:], obs[-new:]):
                self._checks_left = 0
                warnings.warn(
                    f"the images look like stacks of {channels // new} frames, but are stored whole; set "
                    f"algo_kwargs.frame_stack: {channels // new} to store each frame once",
                    stacklevel=2,
                )
                return
