"""Prioritised recurrent replay: the same sequences, drawn by priority."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from replays import held_slots, priorities_of
from sequences import World, assert_same, unpack

from rl_training.data import PrioritizedRecurrentReplayBuffer, RecurrentReplayBuffer
from rl_training.types import SequenceBatch


def make(alpha: float = 0.5) -> World:
    return World(400, alpha=alpha, end_chance=0.15).run(60)


def draw(world: World, count: int, beta: float) -> SequenceBatch:
    assert isinstance(world.buffer, PrioritizedRecurrentReplayBuffer)
    return world.buffer.sample(count, beta=beta)


def slots_of(world: World) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return held_slots(world.buffer)


def test_a_sample_has_weights_and_indices() -> None:
    world = make()
    batch = draw(world, 6, 0.4)
    assert batch.weights is not None
    assert batch.indices is not None
    assert batch.weights.shape == (6,)
    assert torch.equal(batch.weights, torch.ones(6))  # all are new and alike
    assert set(batch.indices.tolist()) <= set(slots_of(world).tolist())
    again = world.buffer.gather(batch.indices)
    assert torch.equal(again.obs, batch.obs)


def test_sequences_come_up_by_their_priorities_and_are_corrected() -> None:
    """p = [1, 2, 4, 1], alpha = .5, beta = .4 -> P = [.1847, .2612, .3694, .1847], w / max = [1, .8706, .7579, 1]."""
    world = World(400, alpha=0.5, num_envs=1, end_chance=0.0).run(21)
    slots = slots_of(world)
    assert len(slots) == 4
    world.buffer.update_priorities(slots, np.array([1.0, 2.0, 4.0, 1.0]))
    batch = draw(world, 40_000, 0.4)
    assert batch.indices is not None
    assert batch.weights is not None
    for slot, share, weight in zip(slots, [0.1847, 0.2612, 0.3694, 0.1847], [1, 0.8706, 0.7579, 1], strict=True):
        drawn = batch.indices == slot
        assert drawn.mean() == pytest.approx(share, abs=0.01)
        assert batch.weights[torch.from_numpy(drawn)].mean() == pytest.approx(weight, abs=1e-3)


def test_a_new_sequence_gets_the_largest_priority_ever_seen() -> None:
    world = World(400, alpha=1.0, num_envs=1, end_chance=0.0).run(11)
    first, second = slots_of(world)
    world.buffer.update_priorities(np.array([first, second]), np.array([9.0, 0.5]))
    world.buffer.update_priorities(np.array([first]), np.array([0.5]))
    world.run(5)
    *_, newest = slots_of(world)
    batch = world.buffer.sample(10_000)
    assert batch.indices is not None
    assert (batch.indices == newest).mean() == pytest.approx(0.9, abs=0.02)


def test_what_is_overwritten_is_never_drawn_and_cannot_be_updated() -> None:
    world = World(40, alpha=0.9, num_envs=2, end_chance=0.1).run(30)
    for _ in range(30):
        batch = world.buffer.sample(8)
        world.run(7)
        held = set(slots_of(world).tolist())
        assert batch.indices is not None
        world.buffer.update_priorities(batch.indices, np.linspace(0.1, 5.0, 8))
        assert set(np.flatnonzero(priorities_of(world.buffer)).tolist()) == held


def test_the_sequences_are_those_of_the_uniform_buffer() -> None:
    prioritised, uniform = World(60, alpha=0.9, overlap=2, n_step=3), World(60, overlap=2, n_step=3)
    assert type(uniform.buffer) is RecurrentReplayBuffer
    for _ in range(20):
        prioritised.run(9)
        uniform.run(9)
        rows = [unpack(world.buffer, slots_of(world)) for world in (prioritised, uniform)]
        for first, second in zip(*rows, strict=True):
            assert_same(first, second)


def test_priorities_and_open_sequences_are_saved() -> None:
    world = make(0.9)
    batch = world.buffer.sample(8)
    assert batch.indices is not None
    world.buffer.update_priorities(batch.indices, np.arange(8) + 1.0)
    rng = np.random.default_rng(0)
    twin = world.new_buffer(400, rng)
    twin.load_state_dict(world.buffer.state_dict())
    rng.bit_generator.state = world.buffer_rng.bit_generator.state
    original, restored = world.buffer.sample(16), twin.sample(16)
    assert original.indices is not None
    assert restored.indices is not None
    assert original.indices.tolist() == restored.indices.tolist()
    assert original.weights is not None
    assert restored.weights is not None
    assert torch.equal(original.weights, restored.weights)
    assert world.buffer.state_dict()["next"] == twin.state_dict()["next"]
