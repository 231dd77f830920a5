"""What is kept of an unfinished episode: few bytes, the right ones, and enough to find the first step that differs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from rl_training.envs.episode_log import EpisodeLog, EpisodeRecord, digests, first_difference
from rl_training.types import ActionSpec, ObservationSpec, SpaceSpec


def digest_by_hand(row: NDArray[Any]) -> int:
    """Multilinear hashing with the outputs of SplitMix64, by Python's whole numbers."""
    content = row.tobytes()
    content += b"\0" * (-len(content) % 4)
    total = 0
    for i in range(0, len(content), 4):
        x = (i // 4 + 1) * 0x9E3779B97F4A7C15 % 2**64
        x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
        x = (x ^ (x >> 27)) * 0x94D049BB133111EB % 2**64
        total += ((x ^ (x >> 31)) | 1) * int.from_bytes(content[i : i + 4], "little")
    return total % 2**64 >> 32


def test_digests_are_those_that_checkpoints_contain() -> None:
    assert digests(np.array([[0.0, 0.0], [1.0, -2.5]], np.float32)).tolist() == [0, 145303593]
    for rows in (
        np.random.default_rng(0).standard_normal((5, 7)).astype(np.float32),
        np.random.default_rng(1).integers(0, 256, (4, 3, 5, 5), np.uint8),
        np.array([[True, False, True], [False, False, True]]),
    ):
        assert digests(rows).tolist() == [digest_by_hand(row) for row in rows]


def test_every_bit_of_an_observation_counts() -> None:
    rows = np.random.default_rng(0).integers(0, 256, (1, 24), np.uint8)
    changed = np.repeat(rows, 24 * 8, axis=0)
    for bit in range(24 * 8):
        changed[bit, bit // 8] ^= np.uint8(1 << (bit % 8))
    assert len({*digests(changed).tolist(), *digests(rows).tolist()}) == 24 * 8 + 1


def make_spec(masked: bool, continuous: bool) -> SpaceSpec:
    action = ActionSpec("discrete", count=3, start=5, masked=masked)
    if continuous:
        action = ActionSpec("continuous", low=(-1.0, -2.0), high=(1.0, 2.0), raw_shape=(2,))
    return SpaceSpec(ObservationSpec.vector(3), action)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32 - 1), st.booleans(), st.booleans(), st.sampled_from([None, 9, 70]))
def test_the_log_is_that_of_a_plain_list(seed: int, masked: bool, continuous: bool, most: int | None) -> None:
    """With episodes that end anywhere, steps that only some environments make, and records that are read in between."""
    masked = masked and not continuous
    rng, num_envs = np.random.default_rng(seed), 3
    spec = make_spec(masked, continuous)
    log = EpisodeLog(num_envs, spec, most)
    twins: list[dict[str, list[Any]]] = [{} for _ in range(num_envs)]

    def observation() -> Any:
        return rng.standard_normal((num_envs, 3)).astype(np.float32), rng.random((num_envs, 3)) < 0.5 if masked else None

    def begin(i: int, obs: Any, mask: Any) -> None:
        log.begin(i, obs[i], None if mask is None else mask[i])
        twins[i] = {"actions": [], "obs": [obs[i]], "reward": [], "mask": [] if mask is None else [mask[i]]}

    first = observation()
    for i in range(num_envs):
        begin(i, *first)
    for _ in range(int(rng.integers(1, 200))):
        obs, mask = observation()
        reward = rng.standard_normal(num_envs).astype(np.float32)
        actions = rng.uniform(-1, 1, (num_envs, 2)).astype(np.float32) if continuous else rng.integers(5, 8, num_envs)
        active = None if rng.random() < 0.8 else [i for i in range(num_envs) if rng.random() < 0.5]
        given_actions = actions.copy()
        log.add(given_actions, obs, reward, mask, active)
        given_actions[:] = 0  # the caller may use its array again
        for i in range(num_envs) if active is None else active:
            twins[i]["actions"].append(actions[i])
            twins[i]["obs"].append(obs[i])
            twins[i]["reward"].append(reward[i])
            twins[i]["mask"] += [] if mask is None else [mask[i]]
        if rng.random() < 0.05:
            begin(int(rng.integers(num_envs)), *observation())
        if rng.random() < 0.02:
            log.record(0)
    for i, twin in enumerate(twins):
        record, length = log.record(i), len(twin["reward"])
        assert log.lengths[i] == length
        if most is not None and length > most:
            assert log.actions(i) is None
            assert len(record.actions) == 0
            continue
        kept = log.actions(i)
        assert kept is not None
        assert kept.dtype == (np.float32 if continuous else np.int64)
        np.testing.assert_array_equal(kept, np.array(twin["actions"]).reshape(kept.shape))
        assert record.obs.tolist() == [digest_by_hand(row) for row in twin["obs"]]
        assert record.reward.tolist() == twin["reward"]
        assert record.mask.tolist() == [digest_by_hand(row) for row in twin["mask"]]
        copy = EpisodeLog(num_envs, spec, most)
        copy.restore(2, record, length)
        for a, b in zip(copy.record(2), record, strict=True):
            np.testing.assert_array_equal(a, b)


def test_a_step_takes_few_bytes_and_an_episode_that_is_not_replayed_none() -> None:
    spec = SpaceSpec(ObservationSpec.vector(4), ActionSpec("discrete", count=2))
    whole, limited = EpisodeLog(1, spec), EpisodeLog(1, spec, 1000)
    for log in (whole, limited):
        log.begin(0, np.zeros(4, np.float32), None)
        for _ in range(30_000):
            log.add(np.zeros(1, np.int64), np.zeros((1, 4), np.float32), np.zeros(1, np.float32), None)
    assert whole.nbytes <= 12 * 30_000
    assert limited.nbytes == 0
    assert limited.lengths == whole.lengths == [30_000]


def record(obs: list[int], reward: list[float], mask: list[int]) -> EpisodeRecord:
    digest_type = np.uint32
    return EpisodeRecord(
        np.zeros(len(reward)), np.array(obs, digest_type), np.array(reward, np.float32), np.array(mask, digest_type)
    )


EPISODE = record([1, 2, 3, 4], [0.5, 1.0, 0.0], [7, 7, 8, 8])


@pytest.mark.parametrize(
    ("found", "ended", "difference"),
    [
        (EPISODE, None, None),
        (record([9, 2, 3, 4], [0.5, 1.0, 0.0], [7, 7, 8, 8]), None, "its reset gave another observation"),
        (record([1, 2, 9, 9], [0.5, 1.0, 9.0], [7, 7, 8, 8]), None, "step 2 of 3 gave another observation"),
        (
            record([1, 2, 9, 9], [0.5, 1.25, 0.0], [7, 7, 9, 8]),
            None,
            "step 2 of 3 gave another observation and the reward 1.25 in place of 1.0 and another action_mask",
        ),
        (record([1, 2, 3, 4], [0.5, 1.0, -0.0], [7, 7, 8, 8]), None, "step 3 of 3 gave the reward -0.0 in place of 0.0"),
        (record([1, 2, 3, 4], [0.5, 1.0, 0.0], [6, 7, 8, 8]), None, "its reset gave another action_mask"),
        (record([1, 2, 3], [0.5, 1.0], [7, 7, 8]), "terminated", "step 2 of 3 gave terminated = true"),
        (EPISODE, "truncated", "step 3 of 3 gave truncated = true"),
        (record([1, 9, 3], [0.5, 1.0], [7, 7, 8]), "terminated", "step 1 of 3 gave another observation"),
    ],
)
def test_the_first_difference_is_named(found: EpisodeRecord, ended: str | None, difference: str | None) -> None:
    assert first_difference(EPISODE, found, ended) == difference
