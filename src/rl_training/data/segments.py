"""The memory of a replay as rings of rows, so that a checkpoint writes only the rows that are new since the last one.

A ring is written in order, and again from its start when it is full. Its rows are numbered by positions, which are never
reused: position p is stored in row p % rows. A row that is settled does not change until it is overwritten, so a block of
settled rows is saved once, and later checkpoints share it. Blocks begin at fixed rows. Which ones there are depends on the
state of the ring alone, and two runs that were saved at different moments still have the same blocks.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from rl_training.errors import CheckpointError
from rl_training.types import Array, State

#: A ring has at most this many blocks. Each save writes less than one block again, the one that is being filled.
BLOCKS_PER_RING = 64
#: All rings of a replay have at most this many blocks: each is a file, with a line in the manifest of a checkpoint.
MOST_BLOCKS = 4096
#: Bytes below which a block is not worth a file of its own.
SMALLEST_BLOCK = 2**16


class Block(NamedTuple):
    """Consecutive positions of one ring, which are consecutive rows as well."""

    ring: str
    begin: int
    end: int


@dataclass(frozen=True)
class Ring:
    """Views of the memory of a ring, and how far it has been written."""

    name: str
    columns: Mapping[str, Array]  # (row, ...) each
    written: int  # positions below this have been written
    settled: int  # positions below this only change when they are overwritten

    @property
    def rows(self) -> int:
        return len(next(iter(self.columns.values())))

    @property
    def row_bytes(self) -> int:
        return sum(column.nbytes for column in self.columns.values()) // self.rows

    @property
    def oldest(self) -> int:
        """The oldest position that has not been overwritten."""
        return max(0, self.written - self.rows)

    def block_rows(self, most_blocks: int) -> int:
        """The length of a block, if the ring has at most this many."""
        return max(-(-self.rows // most_blocks), -(-SMALLEST_BLOCK // max(1, self.row_bytes)))

    def blocks(self, most_blocks: int) -> list[Block]:
        """The blocks that are settled, oldest first. Of the oldest, a part may have been overwritten, and is left out."""
        found, length = [], self.block_rows(most_blocks)
        if length >= self.rows:
            return []
        lap, row = divmod(self.oldest, self.rows)
        begin = lap * self.rows + row // length * length
        while (end := min(begin + length, (begin // self.rows + 1) * self.rows)) <= self.settled:
            found.append(Block(self.name, max(begin, self.oldest), end))
            begin = end
        return found

    def view(self, block: Block) -> dict[str, Array]:
        """The rows of a block in the memory of the ring."""
        first = block.begin % self.rows
        return {name: column[first : first + block.end - block.begin] for name, column in self.columns.items()}

    def copy_from(self, begin: int) -> dict[str, Array]:
        """A copy of the rows from this position to the last one written, in the order of positions."""
        rows = np.arange(begin, self.written) % self.rows
        return {name: column[rows] for name, column in self.columns.items()}

    def put(self, begin: int, saved: Mapping[str, Array]) -> None:
        """Stores saved rows from this position on."""
        rows = np.arange(begin, begin + len(next(iter(saved.values())))) % self.rows
        contiguous = len(rows) > 0 and rows[-1] - rows[0] == len(rows) - 1
        for name, column in self.columns.items():
            column[slice(rows[0], rows[-1] + 1) if contiguous else rows] = saved[name]


class Unsaved:
    """The blocks that a checkpoint has yet to save from the memory of a replay. They must not be overwritten before that."""

    def __init__(self, rows: Mapping[str, int], blocks: Sequence[Block]) -> None:
        self._rows = rows
        self._left: dict[str, deque[Block]] = {name: deque() for name in rows}
        for block in blocks:
            self._left[block.ring].append(block)
        self._changed = threading.Condition()

    def before_writing(self, ring: str, end: int) -> None:
        """Waits until the rows of the positions below ``end`` may be written."""
        left = self._left[ring]
        if left:
            with self._changed:
                self._changed.wait_for(lambda: not left or left[0].begin >= end - self._rows[ring])

    def saved(self, block: Block) -> None:
        """Notes that a block has been saved. The blocks of a ring are saved oldest first."""
        with self._changed:
            saved = self._left[block.ring].popleft()
            assert saved == block
            self._changed.notify_all()

    def release(self) -> None:
        """Notes that the checkpoint is finished or was given up."""
        with self._changed:
            for left in self._left.values():
                left.clear()
            self._changed.notify_all()


class Snapshot:
    """A replay at one moment, to be saved while training continues: blocks of settled rows, which are read from the replay's
    own memory, and a copy of everything else."""

    def __init__(self, rest: State, rings: Sequence[Ring]) -> None:
        self.rest = rest
        self._rings = {ring.name: ring for ring in rings}
        most = blocks_per_ring(len(rings))
        self.blocks = [block for ring in rings if most for block in ring.blocks(most)]
        # The ones that will be overwritten first come first.
        self.blocks.sort(key=lambda block: block.begin + self._rings[block.ring].rows - self._rings[block.ring].written)
        self.unsaved = Unsaved({ring.name: ring.rows for ring in rings}, self.blocks)
        ends: dict[str, int] = {}
        for block in self.blocks:
            ends[block.ring] = max(block.end, ends.get(block.ring, 0))
        self._tails = {}
        for ring in rings:
            begin = ends.get(ring.name, ring.oldest)
            tail = ring.copy_from(begin)
            self._tails[ring.name] = {"rows": ring.rows, "written": ring.written, "begin": begin, "tail": tail}

    def view(self, block: Block) -> dict[str, Array]:
        """The columns of a block, in the memory of the replay."""
        return self._rings[block.ring].view(block)

    def state(self, saved: Sequence[Block]) -> State:
        """The state to save beside these blocks. They may begin earlier than those of the snapshot."""
        rings: dict[str, State] = {name: {**tail, "segments": []} for name, tail in self._tails.items()}
        for block in sorted(saved):
            rings[block.ring]["segments"].append([block.begin, block.end])
        return {"rest": self.rest, "rings": rings}


def blocks_per_ring(rings: int) -> int:
    """How many blocks each of this many rings may have; 0 if there are too many rings."""
    return min(BLOCKS_PER_RING, MOST_BLOCKS // max(1, rings))


#: Reads the columns of a saved block.
ReadBlock = Callable[[Block], Mapping[str, Array]]


class SegmentedBuffer(ABC):
    """A buffer whose memory consists of rings."""

    _unsaved: Unsaved | None = None  # what is left to save of the last snapshot

    @abstractmethod
    def rings(self) -> list[Ring]:
        """The rings as they are now."""

    @abstractmethod
    def rest_dict(self) -> State:
        """A copy of everything that is not in the rings."""

    @abstractmethod
    def load_rest_dict(self, state: State) -> None: ...

    @property
    @abstractmethod
    def rest_nbytes(self) -> int:
        """The most memory that the arrays of ``rest_dict`` take."""

    def snapshot(self) -> Snapshot:
        """The buffer as it is now. It must be saved or released before the buffer can overwrite its blocks."""
        snapshot = Snapshot(self.rest_dict(), self.rings())
        self._unsaved = snapshot.unsaved
        return snapshot

    @property
    def snapshot_nbytes(self) -> int:
        """The most memory that a snapshot takes, but for short rows that are not settled yet."""
        rings = self.rings()
        most = blocks_per_ring(len(rings))
        blocks = sum(ring.row_bytes * (min(ring.rows, ring.block_rows(most)) if most else ring.rows) for ring in rings)
        return blocks + self.rest_nbytes

    def load_snapshot(self, state: State, read: ReadBlock) -> None:
        """Loads what a snapshot saved into a new buffer; ``read`` gives the blocks, one at a time."""
        self.load_rest_dict(state["rest"])
        rings, saved = {ring.name: ring for ring in self.rings()}, state["rings"]
        if rings.keys() != saved.keys():
            raise CheckpointError(f"the saved replay has the rings {', '.join(saved)}, but this one has {', '.join(rings)}")
        for name, ring in rings.items():
            begin = ring.oldest
            for block in _checked_blocks(ring, saved[name]):
                columns = read(block)
                _check_columns(ring, columns, block.end - block.begin)
                ring.put(block.begin, columns)
                begin = block.end
            tail = saved[name]["tail"]
            _check_columns(ring, tail, ring.written - begin)
            ring.put(begin, tail)


def _checked_blocks(ring: Ring, saved: State) -> Iterator[Block]:
    """The saved blocks of a ring, oldest first, if they and the tail hold all of its rows."""
    blocks = [Block(ring.name, begin, end) for begin, end in saved["segments"]]
    numbers = [saved["rows"], saved["written"], saved["begin"], *(number for block in blocks for number in block[1:])]
    if any(type(number) is not int for number in numbers) or numbers[:2] != [ring.rows, ring.written]:
        raise CheckpointError(f"the saved replay does not fit this one: its ring '{ring.name}' has another size")
    at = min(ring.oldest, blocks[0].begin if blocks else ring.oldest)
    for block in blocks:
        same_lap = block.begin // ring.rows == (block.end - 1) // ring.rows
        if not (0 <= block.begin == at < block.end and same_lap and block.end > ring.oldest):
            raise CheckpointError(f"the saved replay lacks rows of its ring '{ring.name}' from position {at} on")
        at = block.end
    if at != saved["begin"]:
        raise CheckpointError(f"the saved replay lacks rows of its ring '{ring.name}' from position {at} on")
    yield from blocks


def _check_columns(ring: Ring, columns: Mapping[str, Any], rows: int) -> None:
    """Checks that saved rows have the columns of a ring."""
    if ring.columns.keys() != columns.keys():
        raise CheckpointError(f"the saved replay has other columns in its ring '{ring.name}': {', '.join(columns)}")
    for name, column in ring.columns.items():
        array = columns[name]
        if array.dtype != column.dtype or array.shape != (rows, *column.shape[1:]):
            raise CheckpointError(
                f"the saved replay has {array.shape} of {array.dtype} in the column '{name}' of its ring '{ring.name}', but "
                f"{(rows, *column.shape[1:])} of {column.dtype} are needed"
            )
