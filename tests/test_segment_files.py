"""The files of segments: what is shared, damaged, written again or left behind, and what training waits for."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from test_segments import KINDS, Make, Stream, content, fill, frames, load, save, transitions
from test_segments import _small_blocks as _small_blocks
from test_state_bytes import flat

from rl_training.data import segments
from rl_training.data.replay_buffer import ReplayBuffer
from rl_training.data.segments import Block, Unsaved
from rl_training.errors import CheckpointError
from rl_training.experiment.checkpoint import verify_checkpoint, write_checkpoint
from rl_training.experiment.segments import Segments


def segment_files(path: Path) -> dict[str, os.stat_result]:
    return {file.name: file.stat() for file in path.glob("replay-*.safetensors")}


@pytest.mark.parametrize("make", KINDS)
def test_a_save_writes_what_is_new_and_shares_the_rest(make: Make, tmp_path: Path) -> None:
    buffer, stream = make(500, 0), Stream(0)
    fill(buffer, stream, 120)
    shared = save(tmp_path / "a", buffer)
    fill(buffer, stream, 60)
    save(tmp_path / "b", buffer, shared)
    first, second = segment_files(tmp_path / "a"), segment_files(tmp_path / "b")
    assert first
    assert first.keys() < second.keys()
    for name, found in second.items():
        assert found.st_nlink == (2 if name in first else 1)
        assert name not in first or found.st_ino == first[name].st_ino


@pytest.mark.parametrize("make", KINDS)
def test_files_depend_on_the_buffer_and_not_on_earlier_saves(make: Make, tmp_path: Path) -> None:
    shared: Segments = {}
    often, once = make(200, 0), make(200, 0)
    streams = Stream(0), Stream(0)
    for number in range(9):
        fill(often, streams[0], 8)
        shared = save(tmp_path / f"often{number}", often, shared)
        fill(once, streams[1], 8)
    save(tmp_path / "once", once)
    assert verify_checkpoint(tmp_path / "often8")["files"] == verify_checkpoint(tmp_path / "once")["files"]


@pytest.mark.parametrize("make", KINDS)
def test_the_number_of_segments_is_bounded(make: Make, tmp_path: Path) -> None:
    buffer, stream = make(60, 0), Stream(0)
    shared: Segments = {}
    for number in range(12):
        fill(buffer, stream, 17)
        shared = save(tmp_path / f"{number}", buffer, shared)
        assert len(shared) <= len(buffer.rings()) * (segments.BLOCKS_PER_RING + 1)


def test_more_rings_than_blocks_are_saved_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "MOST_BLOCKS", 1)
    buffer = frames(60, 0)
    fill(buffer, Stream(0), 100)
    assert save(tmp_path / "c", buffer) == {}
    loaded = frames(60, 0)
    load(tmp_path / "c", loaded)
    assert content(loaded) == content(buffer)
    assert buffer.snapshot_nbytes >= sum(column.nbytes for ring in buffer.rings() for column in ring.columns.values())


@pytest.fixture
def two(tmp_path: Path) -> tuple[ReplayBuffer, Segments, Path]:
    """A buffer that was saved once, and has something new since."""
    buffer = transitions(50, 0)
    stream = Stream(0)
    fill(buffer, stream, 20)
    shared = save(tmp_path / "a", buffer)
    fill(buffer, stream, 3)
    return buffer, shared, tmp_path / "a"


def in_place(file: Path) -> None:
    """Damage that every link shows."""
    with file.open("r+b") as stream:
        stream.seek(-1, os.SEEK_END)
        last = stream.read(1)
        stream.seek(-1, os.SEEK_END)
        stream.write(bytes([last[0] ^ 1]))
    os.utime(file, ns=(0, 0))  # whatever the resolution of the clock


def replaced(file: Path) -> None:
    content = file.read_bytes()
    file.unlink()
    file.write_bytes(content)


def linked_elsewhere(file: Path) -> None:
    file.rename(file.with_suffix(".moved"))
    file.symlink_to(file.with_suffix(".moved"))


@pytest.mark.parametrize("change", [Path.unlink, in_place, replaced, linked_elsewhere])
def test_a_segment_that_is_not_what_it_was_is_written_again(
    two: tuple[ReplayBuffer, Segments, Path], change: Callable[[Path], None]
) -> None:
    buffer, shared, path = two
    for file in path.glob("replay-*.safetensors"):
        change(file)
    second = path.with_name("b")
    save(second, buffer, shared)
    loaded = transitions(50, 0)
    load(second, loaded)
    assert content(loaded) == content(buffer)
    assert not any(file.is_symlink() for file in second.iterdir())


def test_without_hard_links_everything_is_written(
    two: tuple[ReplayBuffer, Segments, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*arguments: object, **options: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    buffer, shared, path = two
    monkeypatch.setattr(os, "link", refused)
    save(path.with_name("b"), buffer, shared)
    assert {found.st_nlink for found in segment_files(path.with_name("b")).values()} == {1}
    loaded = transitions(50, 0)
    load(path.with_name("b"), loaded)
    assert content(loaded) == content(buffer)


def test_a_copied_directory_is_whole(two: tuple[ReplayBuffer, Segments, Path]) -> None:
    _, _, path = two
    copy = path.with_name("copy")
    shutil.copytree(path, copy)
    shutil.rmtree(path)
    verify_checkpoint(copy)


@pytest.fixture
def file_limit() -> Iterator[Callable[[int], None]]:
    """Limits the size of files, which makes writing fail as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    yield lambda limit: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
    resource.setrlimit(resource.RLIMIT_FSIZE, before)
    signal.signal(signal.SIGXFSZ, handler)


def test_a_full_disk_leaves_the_earlier_checkpoint_and_a_buffer_that_goes_on(
    tmp_path: Path, file_limit: Callable[[int], None]
) -> None:
    buffer, stream = transitions(500, 0), Stream(0)
    fill(buffer, stream, 120)
    shared = save(tmp_path / "a", buffer)
    fill(buffer, stream, 60)
    block = max(found.st_size for found in segment_files(tmp_path / "a").values())
    file_limit(block // 2)
    with pytest.raises(CheckpointError, match=r"cannot write the checkpoint .*b: .*File too large"):
        save(tmp_path / "b", buffer, shared)
    file_limit(resource.RLIM_INFINITY)
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
    verify_checkpoint(tmp_path / "a")
    fill(buffer, stream, 400)  # nothing waits for the checkpoint that was given up
    save(tmp_path / "b", buffer, shared)
    loaded = transitions(500, 0)
    load(tmp_path / "b", loaded)
    assert content(loaded) == content(buffer)


class Noticed(threading.Condition):
    """Tells when somebody waits."""

    def __init__(self, waiting: threading.Event) -> None:
        super().__init__()
        self._noticed = waiting

    def wait(self, timeout: float | None = None) -> bool:
        self._noticed.set()
        return super().wait(timeout)


@pytest.mark.parametrize("make", KINDS)
def test_rows_are_not_overwritten_before_they_are_saved(make: Make) -> None:
    buffer, stream = make(40, 0), Stream(0)
    fill(buffer, stream, 150)
    snapshot = buffer.snapshot()
    assert len(snapshot.blocks) > 3
    held = {block: flat(snapshot.view(block)) for block in snapshot.blocks}
    waiting, overtaken, found = threading.Event(), threading.Event(), {}
    snapshot.unsaved._changed = Noticed(waiting)

    def write() -> None:
        """Saves each block only when the other thread waits for it, or does not overwrite anything any more."""
        for block in snapshot.blocks:
            while not waiting.wait(0.01) and not overtaken.is_set():
                pass
            waiting.clear()
            found[block] = flat(snapshot.view(block))
            snapshot.unsaved.saved(block)

    writer = threading.Thread(target=write)
    writer.start()
    fill(buffer, stream, 150)
    overtaken.set()
    writer.join()
    assert found == held


def operations(block: Block, moment: int) -> int:
    """Saves the only block that is left before the operation ``moment`` of ``before_writing``, unless that holds the lock.
    Returns how many operations it has."""
    unsaved, passed = Unsaved({"a": 10}, [block]), 0

    def trace(frame: Any, event: str, argument: Any) -> Any:
        nonlocal passed
        if frame.f_code is not Unsaved.before_writing.__code__:
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            passed += 1
            if passed == moment and not unsaved._changed._is_owned():  # type: ignore[attr-defined]
                saving = threading.Thread(target=unsaved.saved, args=(block,))
                saving.start()
                saving.join()
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        unsaved.before_writing("a", 10)
    finally:
        sys.settrace(before)
    return passed


def test_the_last_block_may_be_saved_at_any_moment_while_training_looks_for_it() -> None:
    block = Block("a", 0, 5)
    count = operations(block, 0)
    assert count > 5
    for moment in range(1, count + 1):
        operations(block, moment)


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o077, 0o600)])
def test_segments_have_the_permissions_of_other_files(umask: int, mode: int, tmp_path: Path) -> None:
    buffer = KINDS[0](40, 0)
    fill(buffer, Stream(0), 150)
    before = os.umask(umask)
    try:
        write_checkpoint(tmp_path / "c", {"replay": buffer.snapshot()}, {})
    finally:
        os.umask(before)
    files = {file.name: file.stat().st_mode & 0o777 for file in (tmp_path / "c").iterdir()}
    assert any(name.startswith("replay-") for name in files)
    assert set(files.values()) == {mode}


def test_the_memory_of_a_snapshot_is_said() -> None:
    for make in KINDS:
        buffer: Any = make(2000, 0)
        fill(buffer, Stream(0), 1300)
        snapshot = buffer.snapshot()
        state = snapshot.state([])
        copied = sum(array.nbytes for ring in state["rings"].values() for array in ring["tail"].values())
        priorities = state["rest"].get("priorities")
        copied += getattr(priorities["priorities"] if isinstance(priorities, dict) else priorities, "nbytes", 0)
        assert copied <= 1.1 * buffer.snapshot_nbytes
        snapshot.unsaved.release()
