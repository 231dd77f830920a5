"""The segments of a checkpoint: files with settled rows of the replay, which checkpoints share by hard links.

A segment is written once and never changed. The next checkpoint links to it, with the hash that is already known, so a save
writes only what is new. A directory has all of its files, and removing it leaves the others whole: the file system counts
the links. Before a segment is shared it must still be the file that was written or verified; otherwise, and on file systems
without hard links, it is written again from the memory of the replay.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from safetensors.numpy import save_file as save_safetensors

from rl_training.data.segments import Block, Snapshot
from rl_training.errors import CheckpointError
from rl_training.experiment.files import with_usual_permissions
from rl_training.experiment.folder import CheckpointFolder, fingerprint_of, identity_of
from rl_training.experiment.manifest import segment_name
from rl_training.experiment.states import parse_arrays
from rl_training.types import Array, State


@dataclass(frozen=True)
class Segment:
    """A segment on disk."""

    block: Block
    file: Path
    fingerprint: dict[str, Any]  # its entry in a manifest
    identity: tuple[int, ...] | None  # the file as it was when its content was known


#: The segments that the next checkpoint may share, by ring and end: the ring determines where a block that ends there begins.
Segments = Mapping[tuple[str, int], Segment]


@dataclass
class SegmentWriter:
    """Writes the segments of one checkpoint into its directory, or links those that are there already."""

    folder: Path
    shared: Segments
    segments: list[Segment] = field(default_factory=list)
    linked: set[str] = field(default_factory=set)  # names of files that need no flushing

    def write(self, part: str, snapshot: Snapshot) -> State:
        """Saves the blocks of a snapshot, and returns the state to save beside them."""
        segments = []
        for block in snapshot.blocks:
            segment = self._link(part, block) or self._write(part, block, snapshot)
            snapshot.unsaved.saved(block)
            segments.append(segment)
        self.segments += segments
        return snapshot.state([segment.block for segment in segments])

    def _link(self, part: str, block: Block) -> Segment | None:
        known = self.shared.get((block.ring, block.end))
        if known is None:
            return None
        file = self.folder / segment_name(part, known.block.ring, known.block.begin)
        try:
            os.link(known.file, file, follow_symlinks=os.link not in os.supports_follow_symlinks)
        except OSError:  # it is gone, or this file system has no hard links
            return None
        if identity_of(file) != known.identity:
            file.unlink()
            return None
        self.linked.add(file.name)
        return Segment(known.block, file, known.fingerprint, known.identity)

    def _write(self, part: str, block: Block, snapshot: Snapshot) -> Segment:
        file = self.folder / segment_name(part, block.ring, block.begin)
        save_safetensors(_named(block, snapshot.view(block)), file)
        with_usual_permissions(file)
        return Segment(block, file, fingerprint_of(file), identity_of(file))

    def moved_to(self, folder: Path) -> Segments:
        """The segments for the next checkpoint, once this one has its final name."""
        return {
            (segment.block.ring, segment.block.end): Segment(
                segment.block, folder / segment.file.name, segment.fingerprint, segment.identity
            )
            for segment in self.segments
        }


class SegmentReader:
    """Reads the segments of a checkpoint one at a time, and notes them for the checkpoints that follow."""

    def __init__(self, folder: CheckpointFolder, part: str, manifest: Mapping[str, Any]) -> None:
        self._folder, self._part, self._manifest = folder, part, manifest
        self.segments: dict[tuple[str, int], Segment] = {}

    def read(self, block: Block) -> dict[str, Array]:
        """The columns of a block."""
        file = self._folder.path / segment_name(self._part, block.ring, block.begin)
        before = self._folder.identity(file.name)
        arrays = parse_arrays(self._folder.read(file.name, self._manifest), file)
        if before is not None and self._folder.identity(file.name) == before:
            fingerprint = self._manifest["files"][file.name]
            self.segments[block.ring, block.end] = Segment(block, file, fingerprint, before)
        prefix = _prefix(block)
        if not all(name.startswith(prefix) for name in arrays):
            raise CheckpointError(f"{file} does not hold the rows of '{block.ring}' from position {block.begin} on")
        return {name.removeprefix(prefix): array for name, array in arrays.items()}


def _prefix(block: Block) -> str:
    return f"{block.ring}/{block.begin}/"


def _named(block: Block, columns: Mapping[str, Array]) -> dict[str, Array]:
    """The arrays of a segment. Their names say which rows they hold, so that no segment can pass for another."""
    return {_prefix(block) + name: column for name, column in columns.items()}
