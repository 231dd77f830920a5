"""Blocks of steps: their compact form loses nothing, and a buffer that takes blocks holds what it would hold step by step."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from conftest import OFF_POLICY, settings_of, tiny_config
from hypothesis import given, settings
from hypothesis import strategies as st

from rl_training.algorithms.config import OffPolicyConfig
from rl_training.data import FrameReplayBuffer, RecurrentRecorder, RecurrentReplayBuffer
from rl_training.data.blocks import compact, expanded, stacked
from rl_training.data.n_step import NStepAccumulator, StepRecorder
from rl_training.runtime.collector import Collector
from rl_training.runtime.learner import OffPolicyLearner
from rl_training.runtime.trainer import Trainer
from rl_training.types import Array, Step

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


def channels_of(trainer: Trainer) -> int | None:
    chosen = trainer.config.algo_kwargs
    assert isinstance(chosen, OffPolicyConfig)
    return trainer.policy.spec.observation.frame_channels(chosen.frame_stack)


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


def rows_of(item: Any, envs: slice) -> Any:
    """Some environments of a step."""
    if isinstance(item, tuple):
        parts = [rows_of(part, envs) for part in item]
        return type(item)(*parts) if hasattr(item, "_fields") else tuple(parts)
    return None if item is None else item[envs]


@pytest.mark.parametrize("algo", OFF_POLICY)
def test_a_collector_elsewhere_records_as_the_replay_does(algo: str) -> None:
    trainer = Trainer(tiny_config(algo, num_envs=2, algo_kwargs=settings_of(algo, {"n_step": 3, "gamma": 0.9})))
    learner = trainer.learner
    assert isinstance(learner, OffPolicyLearner)
    own = learner.replay.recorder
    elsewhere = type(learner.algorithm).make_recorder(trainer.config.algo_kwargs, trainer.policy, 2)
    trainer.close()
    assert type(elsewhere) is type(own)
    assert same(elsewhere.state_dict(), own.state_dict())
    if isinstance(own, NStepAccumulator):
        assert isinstance(elsewhere, NStepAccumulator)
        assert (elsewhere.n, elsewhere.gamma) == (own.n, own.gamma) == (3, 0.9)


@pytest.mark.parametrize("case", CASES)
def test_blocks_leave_in_a_buffer_what_single_steps_leave(case: str) -> None:
    singly, items, _ = recorded(case)
    for item in items:
        buffer_of(singly).add(item)
    rng = np.random.default_rng(0)
    together = trainer_of(case)
    assert isinstance(together.learner, OffPolicyLearner)
    make_recorder = type(together.learner.algorithm).make_recorder
    recorder = make_recorder(together.config.algo_kwargs, together.policy, ENVS)
    channels = channels_of(together)
    begin = 0
    while begin < len(items):
        end = begin + int(rng.integers(1, 12))
        some = items[begin:end]
        if "transitions" in case or case == "prioritised":
            buffer_of(together).add_block(recorder.block(some, channels), 0)
        else:
            for first, envs in ((0, slice(0, 1)), (1, slice(1, ENVS))):
                buffer_of(together).add_block(recorder.block([rows_of(item, envs) for item in some], channels), first)
        begin = end
    together.close()
    assert len(buffer_of(singly)) > 0
    assert same(buffer_of(together).state_dict(), buffer_of(singly).state_dict())


@pytest.mark.parametrize("case", ["transitions", "frames", "sequences"])
@pytest.mark.parametrize("length", [1, 2, 40])
def test_the_compact_form_of_real_steps(case: str, length: int) -> None:
    trainer, _, steps = recorded(case)
    channels = channels_of(trainer)
    assert (channels is not None) == (case == "frames")
    for begin in range(0, len(steps) - length, length):
        block = stacked(steps[begin : begin + length])
        small = compact(steps[begin : begin + length], channels)
        assert same(expanded(small), block)
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
    columns: Any = (obs, rng.integers(0, 9, (time, envs)), rng.random((time, envs)).astype(np.float32), next_obs,
               ended & ~truncated, truncated)  # fmt: skip
    there: list[Any] = [None] * time if present is None else list(present)
    steps = [Step(*(column[t] for column in columns))._replace(present=there[t]) for t in range(time)]
    assert same(expanded(compact(steps, 1 if data.draw(st.booleans()) else None)), stacked(steps))


def test_steps_with_and_without_missing_environments_are_stacked() -> None:
    """A vector environment may spend a step on a reset."""
    zeros = np.zeros((2, 1), np.float32)
    no = np.zeros(2, np.bool_)
    whole = Step(zeros, np.zeros(2, np.int64), np.zeros(2, np.float32), zeros, no, no)
    block = stacked([whole, whole._replace(present=np.array([True, False]))])
    assert block.present is not None
    assert block.present.tolist() == [[True, True], [True, False]]


class Walkers:
    """Environments with stacked images of a few pixels, whose episodes end at random; some spend a step on their reset."""

    def __init__(self, envs: int, stack: int, rng: np.random.Generator, *, skips: bool, masks: bool) -> None:
        self._rng, self._stack, self._skips, self._masks = rng, stack, skips, masks
        self._obs = np.stack([self._first() for _ in range(envs)])
        self._over = np.zeros(envs, np.bool_)

    def _first(self) -> Array:
        frames = self._rng.integers(0, 3, (self._stack, 2, 1)).astype(np.uint8)
        return np.repeat(frames[:1], self._stack, axis=0) if self._rng.random() < 0.5 else frames

    def step(self) -> Step:
        rng, obs, envs = self._rng, self._obs, len(self._obs)
        next_obs = np.concatenate([obs[:, 1:], rng.integers(0, 3, (envs, 1, 2, 1)).astype(np.uint8)], axis=1)
        absent = self._over if self._skips else np.zeros(envs, np.bool_)
        ended = (rng.random(envs) < 0.2) | absent
        truncated = ended & ~absent & (rng.random(envs) < 0.5)
        reward = np.where(absent, 0, rng.normal(size=envs)).astype(np.float32)
        mask = rng.random((envs, 4)) < 0.7 if self._masks else None
        self._obs = next_obs.copy()
        for env in np.flatnonzero(ended):
            self._obs[env] = self._first()
        self._over = ended & ~absent
        action = rng.integers(0, 4, envs)
        present = ~absent if self._skips else None
        return Step(obs, action, reward, next_obs, ended & ~truncated, truncated, mask, present)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_rings_hold_after_blocks_what_they_hold_after_single_steps(data: st.DataObject) -> None:
    """Whatever the rings, the episodes, and the blocks in which their steps come."""

    def draw(low: int, high: int) -> int:
        return data.draw(st.integers(low, high))

    envs, stack, n_step, masks = draw(1, 3), draw(1, 3), draw(1, 4), data.draw(st.booleans())
    rng = np.random.default_rng(draw(0, 10_000))
    walkers = Walkers(envs, stack, rng, skips=data.draw(st.booleans()), masks=masks)
    options: dict[str, Any] = {
        "capacity": draw(envs, 60),
        "obs_shape": (stack, 2, 1),
        "stack": stack,
        "num_envs": envs,
        "n_step": n_step,
        "gamma": 0.9,
        "masked_actions": 4 if masks else 0,
        "alpha": data.draw(st.sampled_from([None, 0.6])),
    }
    kind: type[Any] = FrameReplayBuffer
    recorder: Any = StepRecorder()
    if data.draw(st.booleans()):
        kind = RecurrentReplayBuffer
        length = draw(1, 5)
        overlap = draw(0, length - 1)
        burn_in = draw(0, length - overlap)
        sequences = {"sequence_length": length, "overlap": overlap, "burn_in": burn_in, "previous_actions": draw(0, 1) * 4}
        options |= {**sequences, "state_shapes": ((2,),), "obs_dtype": np.uint8}
        recorder = RecurrentRecorder((np.zeros((envs, 2), np.float32),), length - overlap, burn_in)
    together, singly = (kind(rng=np.random.default_rng(0), **options) for _ in range(2))
    for _ in range(draw(1, 6)):
        steps = [walkers.step() for _ in range(draw(1, 40))]
        items = [recorder.record(step, (rng.random((envs, 2)).astype(np.float32),)) for step in steps]
        together.add_block(recorder.block(items, 1 if stack > 1 else None), 0)
        for item in items:
            singly.add(item)
        assert same(together.state_dict(), singly.state_dict())
        if data.draw(st.booleans()):
            env = draw(0, envs - 1)
            for one in (together, singly, recorder):
                one.discard(env)
            walkers._obs[env], walkers._over[env] = walkers._first(), False
