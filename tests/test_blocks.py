"""Blocks of steps: their compact form loses nothing, and a buffer that takes blocks holds what it would hold step by step."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from conftest import tiny_config
from hypothesis import given, settings
from hypothesis import strategies as st

from rl_training.data.blocks import compact, expanded, item_at, joined, stacked
from rl_training.runtime.collector import Collector
from rl_training.runtime.learner import OffPolicyLearner
from rl_training.runtime.stretch_collector import frame_channels
from rl_training.runtime.trainer import Trainer
from rl_training.types import Array, Step, Transitions

STEPS, ENVS = 70, 3
CASES: dict[str, dict[str, Any]] = {
    "transitions": {"algo": "dqn", "algo_kwargs": {"n_step": 3}},
    "prioritised": {"algo": "dqn", "algo_kwargs": {"prioritized": True}},
    "frames": {"algo": "drqv2"},
    "prioritised frames": {
        "algo": "dqn",
        "env_id": "rl_training_test_envs:Spaces-v0",
        "env_kwargs": {"observation": "image", "length": 9, "masked": True},
        "algo_kwargs": {"prioritized": True, "frame_stack": 3, "n_step": 2},
    },
    "sequences": {"algo": "drqn"},
    "prioritised sequences": {
        "algo": "r2d2",
        "algo_kwargs": {"burn_in": 2, "overlap": 2, "n_step": 2, "previous_inputs": True},
    },
}


def trainer_of(case: str) -> Trainer:
    values = {**CASES[case]}
    return Trainer(tiny_config(values.pop("algo"), num_envs=ENVS, **values))


def recorded(case: str) -> tuple[Trainer, list[Any], list[Step]]:
    """The items that a recorder makes of real steps, and the steps."""
    trainer = trainer_of(case)
    collector = trainer.collector
    assert isinstance(collector, Collector)
    assert isinstance(trainer.learner, OffPolicyLearner)
    collector.start()
    items, steps = [], []
    for t in range(STEPS):
        collected = collector.collect(t)
        steps.append(collected.step)
        items.append(trainer.learner.replay.recorder.record(collected.step, collected.carry))
    trainer.close()
    return trainer, [item for item in items if item is not None], steps


def buffer_of(trainer: Trainer) -> Any:
    assert isinstance(trainer.learner, OffPolicyLearner)
    return trainer.learner.replay.buffer


def same(left: Any, right: Any) -> bool:
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(same(left[key], right[key]) for key in left)
    if isinstance(left, list | tuple):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, np.ndarray | torch.Tensor):
        return np.array_equal(np.asarray(left), np.asarray(right))
    return bool(left == right)


def columns_of(item: Any, envs: slice) -> Any:
    """Some environments of a block."""
    if isinstance(item, tuple):
        parts = [columns_of(part, envs) for part in item]
        return type(item)(*parts) if hasattr(item, "_fields") else tuple(parts)
    return None if item is None else item[:, envs]


@pytest.mark.parametrize("case", CASES)
def test_blocks_leave_in_a_buffer_what_single_steps_leave(case: str) -> None:
    singly, items, _ = recorded(case)
    for item in items:
        buffer_of(singly).add(item)
    rng = np.random.default_rng(0)
    together = trainer_of(case)
    begin = 0
    while begin < len(items):
        end = begin + int(rng.integers(1, 12))
        some = items[begin:end]
        if isinstance(some[0], Transitions):
            buffer_of(together).add_block(joined(some), 0)
        else:
            for first, envs in ((0, slice(0, 1)), (1, slice(1, ENVS))):
                buffer_of(together).add_block(columns_of(stacked(some), envs), first)
        begin = end
    together.close()
    assert len(buffer_of(singly)) > 0
    assert same(buffer_of(together).state_dict(), buffer_of(singly).state_dict())


@pytest.mark.parametrize("case", ["transitions", "frames", "sequences"])
@pytest.mark.parametrize("length", [1, 2, 40])
def test_the_compact_form_of_real_steps(case: str, length: int) -> None:
    trainer, _, steps = recorded(case)
    channels = frame_channels(trainer.config, trainer.policy.spec)
    assert (channels is not None) == (case == "frames")
    for begin in range(0, len(steps) - length, length):
        block = stacked(steps[begin : begin + length])
        small = compact(block, channels)
        assert same(expanded(small), block)
        assert same(item_at(block, length - 1), steps[begin + length - 1])
        if channels is not None:
            assert small.next_obs.nbytes * 3 == block.next_obs.nbytes, "only the newest of three frames"
    assert any(step.ended.any() for step in steps)


@settings(max_examples=50, deadline=None)
@given(st.data())
def test_the_compact_form_of_any_steps(data: st.DataObject) -> None:
    """Also of observations that are not stacked as they should be."""
    time, envs, stack = (data.draw(st.integers(1, 4)) for _ in range(3))
    rng = np.random.default_rng(data.draw(st.integers(0, 1000)))

    def images(*shape: int) -> Array:
        return rng.integers(0, 3, (*shape, stack, 1, 2)).astype(np.uint8)

    next_obs, first_after = images(time, envs), images(time, envs)
    ended = rng.random((time, envs)) < 0.4
    obs = np.concatenate([images(1, envs), np.where(ended[..., None, None, None], first_after, next_obs)[:-1]])
    present = rng.random((time, envs)) < 0.9 if data.draw(st.booleans()) else None
    truncated = ended & (rng.random((time, envs)) < 0.5)
    block = Step(obs, rng.integers(0, 9, (time, envs)), rng.random((time, envs)).astype(np.float32), next_obs,
                 ended & ~truncated, truncated, None, present)  # fmt: skip
    assert same(expanded(compact(block, 1 if data.draw(st.booleans()) else None)), block)


def test_steps_with_and_without_missing_environments_are_stacked() -> None:
    """A vector environment may spend a step on a reset."""
    zeros = np.zeros((2, 1), np.float32)
    no = np.zeros(2, np.bool_)
    whole = Step(zeros, np.zeros(2, np.int64), np.zeros(2, np.float32), zeros, no, no)
    block = stacked([whole, whole._replace(present=np.array([True, False]))])
    assert block.present is not None
    assert block.present.tolist() == [[True, True], [True, False]]
