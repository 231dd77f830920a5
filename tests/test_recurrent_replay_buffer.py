"""Recurrent replay: every sequence is what a walk through its episode, step by step, gives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from replays import held_slots
from sequences import ACTIONS, STATE, World, assert_same

from rl_training.data import RecurrentRecorder, RecurrentReplayBuffer, RecurrentStep, memory
from rl_training.errors import CheckpointError, ConfigError
from rl_training.experiment.checkpoint import read_checkpoint, write_checkpoint
from rl_training.types import Step

OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "n = 3": {"n_step": 3},
    "n = 5, longer than a sequence": {"n_step": 5, "sequence_length": 4},
    "one step each": {"sequence_length": 1},
    "overlap": {"overlap": 2, "n_step": 3},
    "overlap of all but one": {"overlap": 4, "n_step": 2},
    "burn-in": {"burn_in": 3, "n_step": 3},
    "overlap and burn-in": {"sequence_length": 8, "overlap": 4, "burn_in": 4, "n_step": 5, "previous_actions": ACTIONS},
    "images": {"stack": 3, "overlap": 2, "burn_in": 2, "n_step": 2, "previous_actions": ACTIONS},
    "masked": {"masked": True, "n_step": 3},
    "prioritised": {"alpha": 0.9, "n_step": 3, "overlap": 1},
}


def check(world: World, whole: bool) -> None:
    """The buffer holds the newest sequences of each environment; all of them if it never was full."""
    for env, found in enumerate(world.found()):
        expected = world.expected(env)
        assert len(found) <= len(expected)
        if whole:
            assert len(found) == len(expected)
        for first, second in zip(found[::-1], expected[::-1], strict=False):
            assert_same(first, second)


@pytest.mark.parametrize("end_chance", [0.02, 0.1, 0.4])
@pytest.mark.parametrize("case", OPTIONS)
def test_sequences_are_those_of_a_walk_through_the_episodes(case: str, end_chance: float) -> None:
    world = World(400, end_chance=end_chance, **OPTIONS[case])
    for _ in range(16):
        check(world.run(5), whole=True)


@pytest.mark.parametrize("end_chance", [0.0, 0.02, 0.1, 0.4])
@pytest.mark.parametrize("case", OPTIONS)
def test_a_full_buffer_keeps_the_newest(case: str, end_chance: float) -> None:
    capacity = 60
    world = World(capacity, end_chance=end_chance, seed=3, **OPTIONS[case])
    for _ in range(23):
        check(world.run(11), whole=False)
    for env, found in enumerate(world.found()):
        steps, length = 0, world.options["sequence_length"] - world.options["overlap"]
        for sequence in found:
            steps += min(length, len(sequence["action"]))
        if end_chance <= 0.02:  # with very short episodes the final observations take more than the spare slots
            assert steps >= capacity // 2 - length, env


@settings(max_examples=25, deadline=None)
@given(
    st.integers(1, 9), st.integers(0, 8), st.integers(0, 8), st.integers(1, 6), st.integers(1, 3), st.integers(0, 2**31),
    st.floats(0.0, 0.6),
)  # fmt: skip
def test_any_setting_gives_the_walks_sequences(
    length: int, overlap: int, burn_in: int, n_step: int, num_envs: int, seed: int, end_chance: float
) -> None:
    overlap = min(overlap, length - 1)
    options: dict[str, Any] = {
        "sequence_length": length,
        "overlap": overlap,
        "burn_in": min(burn_in, length - overlap),
        "n_step": n_step,
    }
    world = World(num_envs * (length + 10), num_envs=num_envs, seed=seed, end_chance=end_chance, **options)
    for _ in range(8):  # the rings have fewer slots than the 72 steps need
        check(world.run(9), whole=False)


def test_shapes_and_padding() -> None:
    world = World(200, end_chance=0.3, n_step=3, overlap=1, burn_in=2).run(60)
    batch = world.buffer.sample(7)
    assert batch.obs.shape == (2 + 5 + 3, 7, 4)
    for name in ("action", "reward", "discount", "bootstrap", "mask", "episode_start"):
        assert getattr(batch, name).shape == (5, 7)
    assert [tuple(state.shape) for state in batch.state] == [(7, *STATE)] * 2
    assert (batch.weights, batch.indices) == (None, None)
    short = batch.mask.sum(dim=0) < 5
    assert short.any()
    assert not batch.mask.diff(dim=0).gt(0).any()  # padding follows the end
    for padded in (batch.reward, batch.discount):
        assert not padded[batch.mask == 0].any()
    assert int(batch.bootstrap.max()) < 5 + 3
    assert not batch.episode_start[1:].any()


def test_sampling_is_uniform_over_sequences() -> None:
    world = World(100, num_envs=1, end_chance=0.2).run(60)
    first = world.buffer.gather(held_slots(world.buffer)).obs[0, :, 0]
    drawn = world.buffer.sample(20_000).obs[0, :, 0]
    shares = torch.stack([(drawn == value).float().mean() for value in first])
    assert shares.sum() == pytest.approx(1.0)
    assert (shares * len(first) - 1.0).abs().max() < 0.25


def test_an_empty_buffer_cannot_be_sampled() -> None:
    with pytest.raises(ValueError, match="empty"):
        World(100).buffer.sample(1)


def test_the_recorder_gives_the_state_before_each_step() -> None:
    recorder = RecurrentRecorder((np.zeros((2, 1)), np.zeros((2, 1))))
    obs = np.zeros((2, 1), np.float32)

    def step(*ended: int) -> Step:
        return Step(
            obs, np.zeros(2, np.int64), np.zeros(2, np.float32), obs, np.zeros(2, np.bool_), np.array(ended, np.bool_)
        )

    after = [(np.full((2, 1), k), np.full((2, 1), -k), np.zeros((2, 9))) for k in range(1, 4)]
    seen = [recorder.record(step(*ended), carry) for ended, carry in zip([(0, 0), (1, 0), (0, 0)], after, strict=True)]
    assert [item.state[0][:, 0].tolist() for item in seen] == [[0, 0], [1, 1], [0, 2]]
    assert [item.state[1][:, 0].tolist() for item in seen] == [[0, 0], [-1, -1], [0, -2]]
    assert [item.start.tolist() for item in seen] == [[True, True], [False, False], [True, False]]
    recorder.discard(1)
    last = recorder.record(step(0, 0), after[0])
    assert last.start.tolist() == [False, True]
    assert last.state[0][:, 0].tolist() == [3, 0]


def test_an_episode_whose_beginning_was_not_seen_is_left_out() -> None:
    """As after a resume without the replay: nothing stands for what the network has seen of it."""
    world = World(200, end_chance=0.0).run(8)
    world.buffer = world.new_buffer(200)
    world.run(20)
    assert len(world.buffer) == 0
    world.end_chance = 1.0
    world.run(1)
    world.end_chance = 0.0
    world.run(6)
    assert len(world.buffer) == 2
    check(world, whole=False)


def test_what_is_discarded_is_forgotten_and_a_new_episode_begins() -> None:
    world = World(200, num_envs=2, end_chance=0.0).run(8)
    held = len(world.buffer)
    world.buffer.discard(0)
    world.recorder.discard(0)
    world.carry = [np.where(np.array([True, False])[:, None, None], np.float32(0), array) for array in world.carry]
    world.episodes[0][-1].ended = False
    cut_off = world.episodes[0].pop()
    world.obs = np.where(np.array([True, False])[:, None], np.float32(7), world.obs)
    from sequences import Episode

    world.episodes[0].append(Episode([world.obs[0]]))
    world.run(12)
    assert len(cut_off) == 8
    complete = world.found()
    assert [len(part) for part in complete] == [1 + 2, 4]  # the first one of the lost episode stays
    assert held == 2
    for found, expected in zip(complete[0][1:], world.expected(0), strict=True):
        assert_same(found, expected)


def test_a_step_that_does_not_follow_the_last_is_refused() -> None:
    world = World(200, end_chance=0.0).run(3)
    world.obs = world.obs + 1
    with pytest.raises(ValueError, match="does not continue"):
        world.step()


@pytest.mark.parametrize("case", OPTIONS)
@pytest.mark.parametrize("steps", [7, 200])
def test_a_restored_buffer_continues_as_the_original(case: str, steps: int, tmp_path: Path) -> None:
    world = World(60, **OPTIONS[case]).run(steps)
    if "alpha" in OPTIONS[case] and len(world.buffer):
        batch = world.buffer.sample(4)
        assert batch.indices is not None
        world.buffer.update_priorities(batch.indices, np.array([3.0, 1.0, 0.5, 7.0]))
    write_checkpoint(tmp_path / "saved", {"replay": world.buffer.state_dict(), "recorder": world.recorder.state_dict()}, {})
    parts = read_checkpoint(tmp_path / "saved", ("replay", "recorder"))
    rng = np.random.default_rng(0)
    twin, recorder = world.new_buffer(60, rng), RecurrentRecorder(tuple(np.zeros((2, *STATE), np.float32) for _ in range(2)))
    twin.load_state_dict(parts["replay"])
    recorder.load_state_dict(parts["recorder"])
    rng.bit_generator.state = world.buffer_rng.bit_generator.state
    original = world.buffer

    class Both:
        """Gives each step to both."""

        def add(self, item: RecurrentStep) -> None:
            original.add(item)
            twin.add(item)

    world.recorder = recorder
    world.buffer = Both()  # type: ignore[assignment]
    world.run(60)
    assert len(original) == len(twin) > 0
    for found, expected in zip(original.sample(9), twin.sample(9), strict=True):
        for a, b in zip(*((x if isinstance(x, tuple) else (x,)) for x in (found, expected)), strict=True):
            assert (a is None and b is None) or np.array_equal(a, b)
    world.buffer = twin
    check(world, whole=False)


def test_a_replay_of_other_settings_is_refused() -> None:
    saved = World(60).run(20).buffer.state_dict()
    with pytest.raises(CheckpointError, match="sequence_length 5"):
        World(60, sequence_length=4).buffer.load_state_dict(saved)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"overlap": 5}, "below sequence_length"),
        ({"overlap": 3, "burn_in": 3}, r"burn_in \(3\) must be at most sequence_length - overlap \(2\)"),
    ],
)
def test_settings_that_cannot_work_are_refused(options: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        World(60, **options)


def test_memory_is_checked_before_it_is_allocated(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(1000, previous_actions=ACTIONS, overlap=2, burn_in=1)
    needed_bytes: list[int] = []
    monkeypatch.setattr("rl_training.data.episode_rings.require_memory", lambda needed, what: needed_bytes.append(needed))
    buffer = world.new_buffer(1000)
    assert needed_bytes == [buffer.nbytes]
    monkeypatch.undo()
    monkeypatch.setattr(memory, "available_memory", lambda: buffer.nbytes - 1)
    with pytest.raises(ConfigError, match="buffer_size"):
        world.new_buffer(1000)


def test_overlap_and_burn_in_cost_no_copies() -> None:
    """Steps are kept once: half of each sequence shared with the next adds states, not observations."""
    options: dict[str, Any] = {"state_shapes": ((1, 4), (1, 4)), "gamma": 0.9, "rng": np.random.default_rng(0)}
    plain = RecurrentReplayBuffer(10_000, (100,), sequence_length=40, **options)
    shared = RecurrentReplayBuffer(10_000, (100,), sequence_length=40, overlap=20, burn_in=20, **options)
    assert shared.nbytes < 1.05 * plain.nbytes


def test_each_frame_of_a_sequence_is_gathered_once() -> None:
    world = World(200, end_chance=0.05, **OPTIONS["images"]).run(60)
    batch = world.buffer.sample(7)
    rows, sequences, stack, *pixels = batch.obs.shape
    assert batch.obs.untyped_storage().nbytes() == sequences * (rows + stack - 1) * np.prod(pixels)
    assert torch.equal(batch.obs[1:, :, :-1], batch.obs[:-1, :, 1:])
