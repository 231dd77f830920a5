"""Checkpoints of a replay in segments: against a twin that is never saved, with what they write, share and wait for."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from batches import SPEC
from hypothesis import example, given, settings
from hypothesis import strategies as st
from test_state_bytes import flat

from rl_training.data import segments
from rl_training.data.frame_replay_buffer import FrameReplayBuffer
from rl_training.data.prioritized_recurrent_replay_buffer import PrioritizedRecurrentReplayBuffer
from rl_training.data.prioritized_replay_buffer import PrioritizedReplayBuffer
from rl_training.data.recurrent_recorder import RecurrentRecorder
from rl_training.data.recurrent_replay_buffer import RecurrentReplayBuffer
from rl_training.data.replay_buffer import ReplayBuffer
from rl_training.data.segments import Block, SegmentedBuffer, Unsaved
from rl_training.errors import CheckpointError
from rl_training.experiment.checkpoint import load_checkpoint, verify_checkpoint, write_checkpoint
from rl_training.experiment.folder import CheckpointFolder
from rl_training.experiment.segments import SegmentReader, Segments
from rl_training.types import Step, Transitions

ENVS, STACK, STATE = 2, 3, (2,)


@pytest.fixture(scope="module", autouse=True)
def _small_blocks() -> Iterator[None]:
    """Blocks of few rows, so that small buffers have several."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(segments, "SMALLEST_BLOCK", 1)
        patch.setattr(segments, "BLOCKS_PER_RING", 5)
        yield


class Stream:
    """An endless stream of random steps of all environments, with the items that each kind of buffer is given."""

    def __init__(self, seed: int) -> None:
        self._rng = np.random.default_rng(seed)
        self._obs = self._first()
        self._recorder = RecurrentRecorder((np.zeros((ENVS, *STATE), np.float32),))
        self._over = np.zeros(ENVS, np.bool_)

    def _frame(self) -> Any:
        return self._rng.integers(0, 256, (ENVS, 1, 2, 2), np.uint8)

    def _first(self) -> Any:
        frames = [self._frame() for _ in range(STACK)]
        return np.concatenate(frames if self._rng.random() < 0.5 else [frames[0]] * STACK, axis=1)

    def step(self) -> Step:
        rng = self._rng
        fresh = self._first()
        self._obs = np.where(self._over[:, None, None, None], fresh, self._obs)
        next_obs = np.concatenate([self._obs[:, 1:], self._frame()], axis=1)
        terminated, truncated = rng.random((2, ENVS)) < 0.08
        reward = rng.standard_normal(ENVS).astype(np.float32)
        step = Step(self._obs, rng.integers(0, 3, ENVS), reward, next_obs, terminated, truncated)
        self._obs, self._over = next_obs, step.ended
        return step

    def add_to(self, buffers: list[Any], mask: Any = None) -> None:
        step = self.step()._replace(next_action_mask=mask)
        carry = (self._rng.standard_normal((ENVS, *STATE)).astype(np.float32),)
        recorded = self._recorder.record(step, carry)
        for buffer in buffers:
            if isinstance(buffer, ReplayBuffer):
                discount = np.where(step.terminated, np.float32(0), np.float32(0.9))
                flat_obs, flat_next = (array.reshape(ENVS, -1).astype(np.float32) for array in (step.obs, step.next_obs))
                buffer.add(Transitions(flat_obs, step.action, step.reward, flat_next, discount, mask))
            elif isinstance(buffer, RecurrentReplayBuffer):
                buffer.add(recorded)
            else:
                buffer.add(step)
        over = self._rng.random(ENVS) < 0.02
        for env in np.flatnonzero(over).tolist():  # an episode that cannot continue
            self._over[env] = True
            self._recorder.discard(env)
            for buffer in buffers:
                buffer.discard(env)


def transitions(capacity: int, seed: int, **options: Any) -> ReplayBuffer:
    return ReplayBuffer(capacity, (STACK * 4,), rng=np.random.default_rng(seed), **options)


def prioritized(capacity: int, seed: int) -> ReplayBuffer:
    return PrioritizedReplayBuffer(capacity, (STACK * 4,), alpha=0.6, rng=np.random.default_rng(seed))


def frames(capacity: int, seed: int, **options: Any) -> FrameReplayBuffer:
    rng = np.random.default_rng(seed)
    return FrameReplayBuffer(
        capacity, (STACK, 2, 2), stack=STACK, num_envs=ENVS, n_step=3, gamma=0.9, rng=rng, batch_size=0, **options
    )


def prioritized_frames(capacity: int, seed: int) -> FrameReplayBuffer:
    return frames(capacity, seed, alpha=0.6)


def sequence_options(seed: int) -> dict[str, Any]:
    return {
        "sequence_length": 4,
        "state_shapes": (STATE,),
        "gamma": 0.9,
        "n_step": 2,
        "overlap": 1,
        "burn_in": 2,
        "num_envs": ENVS,
        "stack": STACK,
        "obs_dtype": np.uint8,
        "previous_actions": 3,
        "rng": np.random.default_rng(seed),
    }


def sequences(capacity: int, seed: int) -> RecurrentReplayBuffer:
    return RecurrentReplayBuffer(capacity, (STACK, 2, 2), **sequence_options(seed))


def prioritized_sequences(capacity: int, seed: int) -> RecurrentReplayBuffer:
    return PrioritizedRecurrentReplayBuffer(capacity, (STACK, 2, 2), alpha=0.6, **sequence_options(seed))


Make = Callable[[int, int], SegmentedBuffer]
KINDS: list[Make] = [transitions, prioritized, frames, prioritized_frames, sequences, prioritized_sequences]


def content(buffer: Any) -> list[Any]:
    """Everything that a buffer holds. Of the queue, only the entries that are in use count."""
    state = buffer.state_dict()
    if "queue" in state:
        state["queue"] = buffer.rest_dict()["queue"]
    return flat(state)


def save(path: Path, buffer: SegmentedBuffer, shared: Segments | None = None) -> Segments:
    return write_checkpoint(path, {"replay": buffer.snapshot()}, {}, shared)


def load(path: Path, buffer: Any) -> Segments:
    loaded = load_checkpoint(path, ["replay"])
    with CheckpointFolder(path) as folder:
        reader = SegmentReader(folder, "replay", loaded.manifest)
        buffer.load_snapshot(loaded.parts["replay"], reader.read)
    buffer.check(SPEC)
    return reader.segments


def shake(buffers: list[Any], rng: np.random.Generator) -> None:
    """Samples and sets new priorities, alike in all buffers."""
    if not len(buffers[0]):
        return
    priorities = rng.random(4)
    batches = [buffer.sample(4) for buffer in buffers]
    for buffer, batch in zip(buffers, batches, strict=True):
        assert flat([field for field in batch if hasattr(field, "numpy")]) == flat(
            [field for field in batches[0] if hasattr(field, "numpy")]
        )
        if batch.indices is not None:
            buffer.update_priorities(batch.indices, priorities)


PROGRAMS = st.lists(st.one_of(st.integers(1, 40), st.sampled_from(["save", "load", "forget", "prune"])), max_size=14)


@pytest.mark.parametrize("make", KINDS)
@settings(max_examples=4, deadline=None)
@given(st.integers(0, 2**31), st.integers(8, 60), PROGRAMS)
@example(1, 20, [40, "save", "load", 3, "save", "load", 40, 40, "save", "load"])
@example(2, 30, [5, "save", 7, "save", 9, "save", "load", 40, "save", 11, "save", "prune", "load", 13, "save", "load"])
def test_a_buffer_that_is_saved_and_loaded_equals_one_that_never_was(
    make: Make, seed: int, capacity: int, program: list[int | str]
) -> None:
    compare_with_a_twin(make, seed, capacity, program)


@pytest.mark.slow
@pytest.mark.parametrize("make", KINDS)
@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2**31), st.integers(8, 60), PROGRAMS)
def test_many_programs_of_saving_and_loading(make: Make, seed: int, capacity: int, program: list[int | str]) -> None:
    compare_with_a_twin(make, seed, capacity, program)


def compare_with_a_twin(make: Make, seed: int, capacity: int, program: list[int | str]) -> None:
    """Adds, saves and loads as the program says, beside a buffer that is only added to."""
    twin, buffer = make(capacity, seed), make(capacity, seed)
    stream, rng = Stream(seed), np.random.default_rng(seed)
    shared: Segments = {}
    saved: list[tuple[Path, list[Any]]] = []
    saves = 0
    with tempfile.TemporaryDirectory() as folder:
        for operation in [*program, "save", "load", 3]:
            if isinstance(operation, int):
                for _ in range(operation):
                    stream.add_to([twin, buffer])
                    if not operation % 3:
                        shake([twin, buffer], rng)
            elif operation == "save":
                saves += 1
                path = Path(folder) / f"c{saves}"
                shared = save(path, buffer, shared)
                saved.append((path, content(twin)))
            elif operation == "forget":
                shared = {}
            elif operation == "prune" and len(saved) > 1:
                shutil.rmtree(saved.pop(0)[0])
            elif operation == "load" and saved:
                path, held = saved[-1]
                loaded = make(capacity, seed)
                shared = load(path, loaded)
                assert content(loaded) == held
                if held == content(twin):  # go on with the loaded one
                    loaded._rng.bit_generator.state = buffer._rng.bit_generator.state  # type: ignore[attr-defined]
                    buffer = loaded
        assert content(buffer) == content(twin)
        for path, held in saved:  # every earlier checkpoint is still what it was
            verify_checkpoint(path)
            again = make(capacity, seed)
            load(path, again)
            assert content(again) == held


def fill(buffer: Any, stream: Stream, steps: int) -> None:
    for _ in range(steps):
        stream.add_to([buffer])


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
