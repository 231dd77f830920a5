"""How observations divide into frames, of which a slot of a ring stores only the newest.

A plain image is a stack of frames along its channels. In a mixture every image is such a stack; the other entries have no
history, so they are stored beside the newest frames.
"""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from rl_training.errors import ConfigError
from rl_training.types import Array, ObservationLeaf, ObservationSpec, Step, path_name

#: columns gathered at a time: few enough that frames shared by neighbouring rows are still in the cache
GATHERED_TOGETHER = 64
#: number of first steps checked for undeclared frame stacks
STACK_CHECKS = 100


class Frames(ABC):
    """The frames of packed observations. ``dtype`` is that of one slot: the newest frame, and all that is beside it."""

    dtype: np.dtype[Any]

    def __init__(self, stack: int) -> None:
        self.stack = stack

    @abstractmethod
    def newest(self, obs: Array) -> Array:
        """The part of observations (..., *shape) that slots store."""

    @abstractmethod
    def split(self, obs: Array) -> Sequence[Array]:
        """All frames of one observation, oldest first, each as a slot would store it."""

    @abstractmethod
    def same(self, frame: Array, other: Array) -> bool:
        """Whether two slots hold the same pictures."""

    @abstractmethod
    def rebuild(self, column: Array, slots: NDArray[np.int64]) -> torch.Tensor:
        """The observations (row, batch, ...) whose frames are in these slots (row, batch, stack) of a column."""

    def windows(self, column: Array, slots: NDArray[np.int64], device: torch.device) -> torch.Tensor:
        """The observations (row, batch, ...) of sequences whose frames follow each other in these slots (batch, frame): row r
        has the ``stack`` frames from r on."""
        runs = np.lib.stride_tricks.sliding_window_view(slots, self.stack, axis=1)
        return self.rebuild(column, runs.swapaxes(0, 1)).to(device)

    @abstractmethod
    def images(self, obs: Array) -> list[Array]:
        """The images of a batch of observations, (batch, channel, height, width) each."""


def make_frames(
    obs_shape: tuple[int, ...], obs_dtype: type[np.generic], stack: int, observation: ObservationSpec | None = None
) -> Frames:
    """The frames of a plain array, or of a mixture if ``observation`` is one."""
    if observation is not None and observation.kind == "mixed":
        return MixedFrames(observation, stack)
    return PlainFrames(obs_shape, obs_dtype, stack)


def _require_stacks(channels: int, stack: int, name: str = "images") -> int:
    """The channels of one frame."""
    if channels % stack:
        raise ConfigError(
            f"{name} with {channels} channels are not stacks of {stack} frames; set frame_stack to the number of frames "
            "that the environment stacks"
        )
    return channels // stack


class PlainFrames(Frames):
    """Observations that are one array; a frame is a part of its first axis."""

    def __init__(self, obs_shape: tuple[int, ...], obs_dtype: type[np.generic], stack: int) -> None:
        super().__init__(stack)
        self._channels = _require_stacks(obs_shape[0], stack)
        self._newest: Any = (..., slice(-self._channels, None), *[slice(None)] * (len(obs_shape) - 1))
        self.dtype = np.dtype((obs_dtype, (self._channels, *obs_shape[1:])))

    def newest(self, obs: Array) -> Array:
        newest: Array = obs[self._newest]
        return newest

    def split(self, obs: Array) -> Sequence[Array]:
        frames: Array = obs.reshape(self.stack, self._channels, *obs.shape[1:])
        return list(frames)

    def same(self, frame: Array, other: Array) -> bool:
        return np.array_equal(frame, other)

    def rebuild(self, column: Array, slots: NDArray[np.int64]) -> torch.Tensor:
        rows, batch, _ = slots.shape
        # A single allocation: the allocator would return several of this size to the system, and new ones would be zeroed.
        stacks = torch.empty((rows, batch, self.stack, *column.shape[1:]), dtype=torch.from_numpy(column[:0]).dtype)
        for first in range(0, batch, GATHERED_TOGETHER):
            part = slice(first, first + GATHERED_TOGETHER)
            for row in range(rows):
                column.take(slots[row, part], axis=0, out=stacks[row, part].numpy(), mode="clip")
        return stacks.view(rows, batch, self.stack * self._channels, *column.shape[2:])

    def windows(self, column: Array, slots: NDArray[np.int64], device: torch.device) -> torch.Tensor:
        """A view: each frame is in memory once for all the stacks of its sequence."""
        batch, count = slots.shape
        frames = torch.empty((batch, count, *column.shape[1:]), dtype=torch.from_numpy(column[:0]).dtype)
        column.take(slots, axis=0, out=frames.numpy(), mode="clip")
        frames = frames.to(device)
        sequence, frame, *pixels = frames.stride()
        shape = (count - self.stack + 1, batch, self.stack * self._channels, *column.shape[2:])
        return frames.as_strided(shape, (frame, sequence, *pixels))

    def images(self, obs: Array) -> list[Array]:
        return [obs] if obs.ndim == 4 else []


class MixedFrames(Frames):
    """Observations that are rows of bytes with images among them; a slot is a shorter row with one frame of each image."""

    def __init__(self, spec: ObservationSpec, stack: int) -> None:
        super().__init__(stack)
        self._spec = spec
        self._size = spec.shape[0]
        #: for each leaf: whether it is an image, its place in an observation, and its place in a slot
        self._places: list[tuple[bool, slice, slice]] = []
        end = 0
        for leaf, place in zip(spec.leaves, spec.places, strict=True):
            size = leaf.nbytes
            if leaf.kind == "image":
                _require_stacks(leaf.shape[0], stack, f"the images '{path_name(leaf.path)}'")
                size //= stack
            self._places.append((leaf.kind == "image", place, slice(end, end + size)))
            end += size
        self.dtype = np.dtype((np.uint8, (end,)))

    def _frame(self, obs: Array, age: int) -> Array:
        """The frames of this age, 0 the newest."""
        frame: Array = np.empty((*obs.shape[:-1], *self.dtype.shape), np.uint8)
        for is_image, place, slot in self._places:
            size = slot.stop - slot.start
            begin = place.stop - (age + 1) * size if is_image else place.start
            frame[..., slot] = obs[..., begin : begin + size]
        return frame

    def newest(self, obs: Array) -> Array:
        return self._frame(obs, 0)

    def split(self, obs: Array) -> Sequence[Array]:
        return [self._frame(obs, age) for age in range(self.stack - 1, -1, -1)]

    def same(self, frame: Array, other: Array) -> bool:
        return all(np.array_equal(frame[slot], other[slot]) for is_image, _, slot in self._places if is_image)

    def rebuild(self, column: Array, slots: NDArray[np.int64]) -> torch.Tensor:
        whole = torch.empty((*slots.shape[:2], self._size), dtype=torch.uint8)
        out = whole.numpy()
        for k in range(self.stack):
            frames = column[slots[..., k]]
            for is_image, place, slot in self._places:
                size = slot.stop - slot.start
                if is_image:
                    out[..., place.start + k * size : place.start + (k + 1) * size] = frames[..., slot]
                elif k == self.stack - 1:
                    out[..., place] = frames[..., slot]
        return whole

    def images(self, obs: Array) -> list[Array]:
        entries: list[tuple[ObservationLeaf, Array]] = list(zip(self._spec.leaves, self._spec.entries(obs), strict=True))
        return [entry for leaf, entry in entries if leaf.kind == "image"]


class StackCheck:
    """Checks that images are the stacks of frames that they are declared to be."""

    def __init__(self, frames: Frames) -> None:
        self._frames, self._stack = frames, frames.stack
        self._checks_left = STACK_CHECKS

    @property
    def looks(self) -> bool:
        """Whether ``check`` still does anything."""
        return self._stack > 1 or self._checks_left > 0

    def check(self, step: Step, first: int = 0) -> None:
        """Each observation must be the previous one shifted by one frame: only then can stacks be rebuilt. Row 0 of the step
        is environment ``first``."""
        if not self.looks:
            return
        obs, next_obs = step.obs, step.next_obs
        if step.present is not None:
            obs, next_obs = obs[step.present], next_obs[step.present]
        if not len(obs):
            return
        images = zip(self._frames.images(obs), self._frames.images(next_obs), strict=True)
        if self._stack > 1:
            for image, next_image in images:
                self._require_moved(image, next_image, [first + row for row in step.envs])
            return
        self._checks_left -= 1
        for image, next_image in images:
            if self._checks_left:
                self._warn_of_stacks(image[0], next_image[0])

    def _require_moved(self, obs: Array, next_obs: Array, envs: Sequence[int]) -> None:
        channels = obs.shape[1] // self._stack
        moved = next_obs[:, :-channels] == obs[:, channels:]
        if not moved.all():
            row = int(np.flatnonzero(~moved.reshape(len(moved), -1).all(axis=1))[0])
            raise ConfigError(
                f"environment {envs[row]} does not stack {self._stack} frames: its observation after a step does not start "
                f"with the last {self._stack - 1} frames of the previous one; set frame_stack to the number of frames "
                "that it stacks"
            )

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
