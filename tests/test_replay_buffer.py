"""The replay ring against a plain list."""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rl_training.data import ReplayBuffer
from rl_training.errors import CheckpointError
from rl_training.types import Transitions


def make_transitions(first: int, count: int) -> Transitions:
    """Transitions whose every field contains their number."""
    numbers = np.arange(first, first + count)
    obs = np.stack([numbers, numbers + 0.25], axis=1).astype(np.float32)
    reward, discount = (numbers / 2).astype(np.float32), (numbers % 3 / 3).astype(np.float32)
    return Transitions(obs, numbers % 7, reward, obs + 1000, discount)


def make_buffer(capacity: int, seed: int = 0) -> ReplayBuffer:
    return ReplayBuffer(capacity, (2,), rng=np.random.default_rng(seed))


def contents(buffer: ReplayBuffer) -> dict[int, tuple[Any, ...]]:
    """Everything stored, by transition number."""
    batch = buffer.gather(np.arange(len(buffer)))
    rows = zip(*(field.tolist() for field in batch[:5]), strict=True)
    return {int(row[0][0]): row for row in rows}


@settings(max_examples=60, deadline=None)
@given(capacity=st.integers(1, 12), sizes=st.lists(st.integers(0, 15), max_size=8))
def test_keeps_exactly_the_newest_transitions(capacity: int, sizes: list[int]) -> None:
    buffer, twin = make_buffer(capacity), deque[int](maxlen=capacity)
    added = 0
    for size in sizes:  # a size of 0 stands for one transition without a batch axis
        batch = make_transitions(added, max(size, 1))
        buffer.add(batch if size else Transitions(*(field[0] for field in batch[:5])))
        twin.extend(range(added, added + max(size, 1)))
        added += max(size, 1)
    stored = contents(buffer)
    assert len(buffer) == len(twin)
    assert sorted(stored) == sorted(twin)
    for number, (obs, action, reward, next_obs, discount) in stored.items():
        expected = make_transitions(number, 1)
        assert obs == expected.obs[0].tolist()
        assert next_obs == expected.next_obs[0].tolist()
        assert (action, reward) == (expected.action[0], expected.reward[0])
        assert discount == float(expected.discount[0])


@pytest.mark.parametrize("reuse", [False, True])
def test_a_batch_stays_unless_its_memory_is_to_be_reused(reuse: bool) -> None:
    buffer = ReplayBuffer(10, (2,), rng=np.random.default_rng(0), reuse_batches=reuse)
    buffer.add(make_transitions(0, 10))
    first = buffer.gather(np.arange(4))
    kept = first.obs.clone()
    assert buffer.gather(np.arange(3)).obs.tolist() == kept[:3].tolist()  # of another size: memory of its own
    assert torch.equal(first.obs, kept)
    second = buffer.gather(np.arange(4, 8))
    assert second.reward.tolist() == [2.0, 2.5, 3.0, 3.5]
    assert torch.equal(first.obs, second.obs if reuse else kept)


def test_sample_has_the_right_shapes_and_types() -> None:
    buffer = make_buffer(10)
    buffer.add(make_transitions(0, 4))
    batch = buffer.sample(6)
    assert batch.obs.shape == batch.next_obs.shape == (6, 2)
    assert batch.action.shape == batch.reward.shape == batch.discount.shape == (6,)
    assert batch.obs.dtype == batch.reward.dtype == batch.discount.dtype == torch.float32
    assert batch.action.dtype == torch.int64


def test_sampling_is_uniform_over_what_is_stored() -> None:
    buffer = make_buffer(20)
    buffer.add(make_transitions(0, 33))
    draws = torch.cat([buffer.sample(100).obs[:, 0] for _ in range(200)]).int().numpy()
    counts = np.bincount(draws - 13, minlength=20)
    assert len(counts) == 20
    chi_squared = float(((counts - 1000.0) ** 2 / 1000.0).sum())
    assert chi_squared < 43.8  # the 0.999 quantile at 19 degrees of freedom


def test_a_sample_is_a_copy() -> None:
    buffer = make_buffer(4)
    buffer.add(make_transitions(0, 4))
    batch = buffer.sample(8)
    before = batch.obs.clone()
    buffer.add(make_transitions(100, 4))
    assert torch.equal(batch.obs, before)


def test_the_same_stream_gives_the_same_samples() -> None:
    first, second = make_buffer(50, seed=3), make_buffer(50, seed=3)
    for buffer in (first, second):
        buffer.add(make_transitions(0, 50))
    assert torch.equal(first.sample(32).obs, second.sample(32).obs)


def test_state_round_trip_continues_exactly() -> None:
    original, restored = make_buffer(10), make_buffer(10)
    original.add(make_transitions(0, 13))
    state = original.state_dict()
    original.add(make_transitions(13, 3))  # the saved state must not follow the ring
    restored.load_state_dict(state)
    assert sorted(contents(restored)) == list(range(3, 13))
    restored.add(make_transitions(13, 3))
    rows = np.arange(10)
    for found, expected in zip(restored.gather(rows)[:5], original.gather(rows)[:5], strict=True):
        assert torch.equal(found, expected)  # row by row: the write position came along


def test_continuous_actions_and_images_fit_too() -> None:
    buffer = ReplayBuffer(
        5,
        (3, 2, 2),
        obs_dtype=np.uint8,
        action_shape=(2,),
        action_dtype=np.float32,
        rng=np.random.default_rng(0),
    )
    image = np.arange(12, dtype=np.uint8).reshape(1, 3, 2, 2)
    action = np.array([[0.5, -0.5]], np.float32)
    buffer.add(Transitions(image, action, np.ones(1, np.float32), image + 1, np.ones(1, np.float32)))
    batch = buffer.sample(2)
    assert batch.obs.dtype == torch.uint8
    assert torch.equal(batch.next_obs[0], torch.from_numpy(image[0] + 1))
    assert batch.action.tolist() == [[0.5, -0.5]] * 2


def test_refuses_a_state_of_another_shape() -> None:
    buffer = make_buffer(10)
    with pytest.raises(CheckpointError, match="capacity 11"):
        buffer.load_state_dict(make_buffer(11).state_dict())
    with pytest.raises(CheckpointError, match="bytes per transition"):
        buffer.load_state_dict(ReplayBuffer(10, (9,), rng=np.random.default_rng(0)).state_dict())


def test_an_empty_buffer_cannot_be_sampled() -> None:
    with pytest.raises(ValueError, match="empty"):
        make_buffer(3).sample(1)
