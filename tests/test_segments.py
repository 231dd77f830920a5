"""Checkpoints of a replay in segments: against a twin that is never saved, with what they write, share and wait for."""

from __future__ import annotations

import shutil
import tempfile
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
from rl_training.data.segments import SegmentedBuffer
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


def fill(buffer: Any, stream: Stream, steps: int) -> None:
    for _ in range(steps):
        stream.add_to([buffer])


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
