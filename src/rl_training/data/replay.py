"""Replay: turns the steps of a run into batches for its updates.

A recorder turns steps into items (n-step transitions, steps with recurrent states), a buffer stores items and samples
batches. ``Replay`` joins the two; their types of items and of blocks (several steps at once) must agree,
so a mismatched pair does not type-check.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from rl_training.data.segments import ReadBlock, SegmentedBuffer, Snapshot
from rl_training.types import Array, Carry, SpaceSpec, State, Step


class Sampled(Protocol):
    """The interface of batches: the indices of the items, if the replay is prioritised."""

    @property
    def indices(self) -> NDArray[np.int64] | None: ...


ItemT = TypeVar("ItemT")
BatchT = TypeVar("BatchT", bound=Sampled)
BlockT = TypeVar("BlockT")
BlockT_co = TypeVar("BlockT_co", covariant=True)
ItemT_contra = TypeVar("ItemT_contra", contravariant=True)
BlockT_contra = TypeVar("BlockT_contra", contravariant=True)
BatchT_co = TypeVar("BatchT_co", bound=Sampled, covariant=True)


class Recorder(Protocol[ItemT, BlockT_co]):
    """Turns steps into items."""

    def record(self, step: Step, carry: Carry) -> ItemT | None:
        """The items that this step completes; ``carry`` is the policy's carry after the step, not yet reset."""

    def block(self, recorded: Sequence[ItemT], frame_channels: int | None) -> BlockT_co:
        """The items of several steps, at least one, for ``Buffer.add_block``. ``frame_channels`` is the number of channels of
        a frame if observations are stacks of frames."""

    def discard(self, env_index: int) -> None:
        """Drops the incomplete items of an environment whose episode cannot continue."""

    def state_dict(self) -> State: ...

    def load_state_dict(self, state: State) -> None: ...

    def check(self, spec: SpaceSpec) -> None:
        """Refuses what was loaded if it cannot come from environments with this spec."""


class Buffer(Protocol[ItemT_contra, BlockT_contra, BatchT_co]):
    """Stores items and samples batches."""

    def __len__(self) -> int: ...

    @property
    def nbytes(self) -> int: ...

    def add(self, items: ItemT_contra, /) -> None: ...

    def add_block(self, block: BlockT_contra, /, first: int) -> None:
        """Adds a block of a recorder of some of the environments, the first of which has this index."""

    def sample(self, batch_size: int, beta: float = ...) -> BatchT_co: ...

    def example(self, batch_size: int) -> BatchT_co:
        """A batch with the right shapes and arbitrary contents."""

    def update_priorities(self, indices: NDArray[np.int64], priorities: Array) -> None: ...

    def discard(self, env_index: int) -> None: ...

    def state_dict(self) -> State: ...

    def load_state_dict(self, state: State) -> None: ...

    def check(self, spec: SpaceSpec) -> None:
        """Refuses what was loaded if it cannot come from environments with this spec."""


def clipped(step: Step, limit: float | None) -> Step:
    """A step with its rewards clipped to +-limit."""
    return step if limit is None else step._replace(reward=step.reward.clip(-limit, limit))


class Replay(Generic[BatchT]):
    """``observe`` each step, ``sample`` a batch for each update, then ``update_priorities`` with the new priorities."""

    def __init__(
        self,
        recorder: Recorder[ItemT, BlockT],
        buffer: Buffer[ItemT, BlockT, BatchT],
        *,
        batch_size: int,
        beta: Callable[[int], float] | None = None,
        clip_reward: float | None = None,
    ) -> None:
        """``beta`` is the importance-sampling exponent of a prioritised buffer as a function of the env steps."""
        self.recorder: Recorder[Any, Any] = recorder
        self.buffer: Buffer[Any, Any, BatchT] = buffer
        self.batch_size = batch_size
        self._beta, self._clip = beta, clip_reward

    def __len__(self) -> int:
        """The number of items that can be sampled."""
        return len(self.buffer)

    @property
    def nbytes(self) -> int:
        """The maximum memory of the stored items."""
        return self.buffer.nbytes

    def observe(self, step: Step, carry: Carry) -> None:
        """Adds one step of all environments; ``carry`` is the policy's carry after the step, not yet reset."""
        items = self.recorder.record(clipped(step, self._clip), carry)
        if items is not None:
            self.buffer.add(items)

    def add_block(self, block: Any, first: int) -> None:
        """Adds what a recorder elsewhere has made of several steps of some environments, the first of which has this
        index."""
        self.buffer.add_block(block, first=first)

    def sample(self, env_steps: int) -> BatchT:
        """Samples the batch of one update."""
        if self._beta is None:
            return self.buffer.sample(self.batch_size)
        return self.buffer.sample(self.batch_size, self._beta(env_steps))

    def example(self) -> BatchT:
        """A batch with the shapes that ``sample`` gives and arbitrary contents."""
        return self.buffer.example(self.batch_size)

    def update_priorities(self, batch: BatchT, priorities: Array) -> None:
        """Sets the new priorities of a sampled batch; uniform replay has none."""
        if batch.indices is not None:
            self.buffer.update_priorities(batch.indices, priorities)

    def state_dict(self) -> State:
        """The stored items."""
        return self.buffer.state_dict()

    def load_state_dict(self, state: State) -> None:
        self.buffer.load_state_dict(state)

    def snapshot(self) -> Snapshot:
        """The stored items, to be saved while training continues. A buffer without rings is copied whole."""
        if isinstance(self.buffer, SegmentedBuffer):
            return self.buffer.snapshot()
        return Snapshot(self.buffer.state_dict(), ())

    @property
    def snapshot_nbytes(self) -> int:
        """The most memory that a snapshot takes."""
        return self.buffer.snapshot_nbytes if isinstance(self.buffer, SegmentedBuffer) else self.buffer.nbytes

    def load_snapshot(self, state: State, read: ReadBlock) -> None:
        """Loads a saved snapshot; ``read`` gives its blocks."""
        if isinstance(self.buffer, SegmentedBuffer) and state["rings"]:
            self.buffer.load_snapshot(state, read)
        else:
            self.buffer.load_state_dict(state["rest"])

    def rest_dict(self, *, whole: bool) -> State:
        """The part of a snapshot that is not in its rings; with ``whole``, the state of a buffer without rings."""
        if isinstance(self.buffer, SegmentedBuffer) and not whole:
            return self.buffer.rest_dict()
        return self.buffer.state_dict()

    def open_state_dict(self) -> State:
        """The items that are still incomplete, such as n-step windows."""
        return self.recorder.state_dict()

    def load_open_state_dict(self, state: State) -> None:
        self.recorder.load_state_dict(state)

    def check(self, spec: SpaceSpec) -> None:
        """Refuses what was loaded if it cannot come from environments with this spec: an update would fail, or read memory
        that belongs to something else."""
        self.recorder.check(spec)
        self.buffer.check(spec)

    def discard(self, env_index: int) -> None:
        """Drops the incomplete items of an environment whose episode cannot continue."""
        self.recorder.discard(env_index)
        self.buffer.discard(env_index)
