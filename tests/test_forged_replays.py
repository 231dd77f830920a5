"""Replays, open windows and rollouts that were forged with right hashes: numbers out of range are refused when they are
loaded. What a run saves itself never is: ``test_segments.py`` checks every buffer that it loads."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from batches import SPEC
from test_segments import ENVS, KINDS, STATE, Make, Stream, fill, frames, prioritized, prioritized_sequences, transitions

from rl_training.data.acting_values import HeldStep
from rl_training.data.n_step import NStepAccumulator
from rl_training.data.recurrent_recorder import RecurrentRecorder
from rl_training.data.rollout_buffer import RolloutBuffer
from rl_training.errors import CheckpointError
from rl_training.types import ActionSpec, State, Step

Change = Callable[[State], None]


def column(name: str, value: float) -> Change:
    """Forges one number in a column of the rings, of an environment that has an item there."""

    def change(state: State) -> None:
        state["columns"][name][0, 3] = value

    return change


def counter(name: str, value: Any) -> Change:
    return lambda state: state["rings"][1].update({name: value})


def entry(*path: Any, value: Any) -> Change:
    def change(state: State) -> None:
        for key in path[:-1]:
            state = state[key]
        state[path[-1]] = value

    return change


COLUMNS = {
    "a negative action": (column("action", -2), "an action of -2 is not between 0 and 2"),
    "an action too many": (column("action", 3), "an action of 3 is not between 0 and 2"),
    "an infinite reward": (column("reward", math.inf), "a reward is not finite"),
    "a reward that is no number": (column("reward", math.nan), "a reward is not finite"),
    "a discount above 1": (column("discount", 1.5), "a discount of 1.5 is not between 0 and 1"),
    "a negative discount": (column("discount", -0.5), "a discount of -0.5 is not between 0 and 1"),
    "a window that is too long": (column("length", 99), "the length of a window of 99"),
    "a window that ends before it begins": (column("length", -1), "the length of a window of -1"),
    "a frame that is too old": (column("age", 9), "the age of a frame of 9"),
    "a frame of the future": (column("age", -1), "the age of a frame of -1"),
    "another quota": (counter("quota", 10**9), "it has other rings"),
    "a ring that is missing": (lambda state: state["rings"].pop(), "it has other rings"),
    "a counter that is text": (counter("waiting", "3"), "its counters are not numbers"),
    "a flag that is a number": (counter("running", 1), "its counters are not numbers"),
    "windows beyond the end": (counter("waiting", 10**6), "its counters contradict each other"),
    "more items retired than there were": (counter("retired", 10**6), "its counters contradict each other"),
    "more items than there can be": (counter("queued", 10**6), "its counters contradict each other"),
    "an item of the future": (entry("queue", slice(None), value=10**6), "has no place in it"),
    "the same item twice": (entry("queue", slice(None), value=3), "has no place in it"),
}
SEQUENCES = {
    "a sequence that is too long": (column("sequence", 99), "the length of a sequence of 99"),
    "sequences of no length": (entry("columns", "sequence", slice(None), value=0), "the length of a sequence of 0"),
    "a state that is no number": (entry("states", 0, slice(None), value=math.nan), "a recurrent state is not finite"),
    "an episode of the future": (entry("episode", 0, value=10**6), "a sequence does not begin within its episode"),
    "a sequence that begins nowhere": (entry("next", 1, value="x"), "a sequence does not begin within its episode"),
}
PRIORITIES = {
    "no priorities": (entry("priorities", slice(None), value=0.0), "the items with a priority are not those that it holds"),
    "an infinite largest": (entry("largest", value=math.inf), "its priorities are not finite"),
}
#: of a replay in which every place has an item
SUMS = {"a sum that overflows": (entry("priorities", slice(0, 3), value=1.7e308), "its priorities are not finite")}


def record(name: str, value: Any) -> Change:
    """Forges a field of all transitions."""

    def change(state: State) -> None:
        memory = state["records"].numpy()
        rows = memory.view(transitions(1, 0)._record).reshape(len(memory))
        rows[name] = value

    return change


RECORDS = {
    "a negative action": (record("action", -2), "an action of -2 is not between 0 and 2"),
    "an action too many": (record("action", 3), "an action of 3 is not between 0 and 2"),
    "a reward that is no number": (record("reward", math.nan), "a reward is not finite"),
    "a discount above 1": (record("discount", 2.0), "a discount of 2.0 is not between 0 and 1"),
    "a next transition that is beyond": (entry("next", value=10**6), "its next transition is not at the end of the others"),
    "a next transition that is amidst": (entry("next", value=3), "its next transition is not at the end of the others"),
}


def inside(changes: dict[str, tuple[Change, str]], key: str) -> dict[str, tuple[Change, str]]:
    def at(change: Change) -> Change:
        return lambda state: change(state[key])

    return {name: (at(change), message) for name, (change, message) in changes.items()}


CASES = [
    pytest.param(make, change, message, id=f"{make.__name__}: {name}")
    for make, forgeries in (
        (transitions, RECORDS),
        (prioritized, {**PRIORITIES, **SUMS}),
        (frames, COLUMNS),
        (prioritized_sequences, {**COLUMNS, **SEQUENCES, **inside(PRIORITIES, "priorities")}),
    )
    for name, (change, message) in forgeries.items()
]


@pytest.mark.parametrize(("make", "change", "message"), CASES)
def test_a_forged_replay_is_refused(make: Make, change: Change, message: str) -> None:
    buffer: Any = make(60, 0)
    fill(buffer, Stream(1), 24)  # the records have not wrapped around yet
    state = buffer.state_dict()
    change(state)
    forged: Any = make(60, 0)
    with pytest.raises(CheckpointError, match=message):
        forged.load_state_dict(state)
        forged.check(SPEC)


@pytest.mark.parametrize("make", KINDS)
@pytest.mark.parametrize("steps", [0, 1, 300])
def test_a_replay_that_was_saved_is_not_refused(make: Make, steps: int) -> None:
    buffer: Any = make(60, 0)
    fill(buffer, Stream(1), steps)
    loaded: Any = make(60, 0)
    loaded.load_state_dict(buffer.state_dict())
    loaded.check(SPEC)


@pytest.mark.parametrize("make", [transitions, frames])
def test_a_forged_mask_is_refused(make: Any) -> None:
    stream, rng = Stream(1), np.random.default_rng(0)
    buffer = make(60, 0, masked_actions=3)
    for _ in range(30):
        mask = rng.random((ENVS, 3)) < 0.5
        mask[:, 1] = True
        stream.add_to([buffer], mask)
    state = buffer.state_dict()
    for value, message in ((None, None), (3, "a byte of an action mask of 3"), (0, "an action mask allows no action")):
        if value is not None:
            masks = state["columns"]["action_mask"] if "columns" in state else buffer._columns[-1][: len(buffer)]
            masks.view(np.uint8)[:] = value
            state = buffer.state_dict() if "columns" not in state else state
        loaded = make(60, 0, masked_actions=3)
        loaded.load_state_dict(state)
        if message is None:
            loaded.check(SPEC)
        else:
            with pytest.raises(CheckpointError, match=message):
                loaded.check(SPEC)


def opened(n: int = 3) -> NStepAccumulator:
    """Two environments with an open window of two steps each."""
    recorder = NStepAccumulator(ENVS, 0.9, n)
    for _ in range(2):
        obs, no = np.zeros((ENVS, 4), np.float32), np.zeros(ENVS, np.bool_)
        recorder.record(Step(obs, np.ones(ENVS, np.int64), np.ones(ENVS, np.float32), obs, no, no))
    return recorder


WINDOWS = {
    "a window that is missing": (lambda windows: windows.pop(), "it has 1 open windows of 2"),
    "a window that is complete": (entry(0, value={"obs": [0] * 3, "action": [0] * 3, "reward": [0.0] * 3}), "3 steps of 3"),
    "observations of another shape": (
        entry(0, "obs", value=np.zeros((2, 5), np.float32)),
        "but is float32 of shape \\(5,\\)",
    ),
    "observations of another type": (entry(0, "obs", value=np.zeros((2, 4))), "but is float64"),
    "actions of another type": (entry(1, "action", value=np.zeros(2)), "an action should be int64"),
    "an action that there is not": (entry(1, "action", value=np.array([0, 3])), "an action of 3 is not between 0 and 2"),
    "a reward that is text": (entry(1, "reward", value=["1", 1.0]), "a reward is not finite"),
    "a reward that is no number": (entry(1, "reward", value=[1.0, math.nan]), "a reward is not finite"),
}


@pytest.mark.parametrize(("change", "message"), WINDOWS.values(), ids=WINDOWS.keys())
def test_a_forged_window_is_refused(change: Change, message: str) -> None:
    state = opened().state_dict()
    loaded = NStepAccumulator(ENVS, 0.9, 3)
    loaded.load_state_dict(state)
    loaded.check(SPEC)
    change(state["windows"])
    with pytest.raises(CheckpointError, match=message):
        loaded.load_state_dict(state)
        loaded.check(SPEC)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (entry("action", value=np.full(ENVS, -1)), "an action of -1 is not between 0 and 2"),
        (entry("action", value=np.zeros((ENVS, 1), np.int64)), "an action should be int64 of shape"),
        (entry("reward", value=np.full(ENVS, np.nan, np.float32)), "a reward is not finite"),
    ],
)
def test_a_forged_step_that_is_held_back_is_refused(change: Change, message: str) -> None:
    held, obs, no = HeldStep(), np.zeros((ENVS, 4), np.float32), np.zeros(ENVS, np.bool_)
    held.exchange(Step(obs, np.ones(ENVS, np.int64), np.ones(ENVS, np.float32), obs, no, no), (), np.zeros((ENVS, 3)))
    state = held.state_dict()
    held.load_state_dict(state)
    held.check(SPEC)
    change(state["step"])
    held.load_state_dict(state)
    with pytest.raises(CheckpointError, match=message):
        held.check(SPEC)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (entry("start", value=np.zeros(1, np.bool_)), "should be bool of shape"),
        (entry("start", value=3), "is no array"),
        (entry("state", 0, value=np.zeros((ENVS, 9), np.float32)), "a recurrent state should be"),
        (entry("number", value=np.zeros(ENVS)), "should be int64"),
        (entry("number", value=np.full(ENVS, -1)), "the number of a step of -1"),
    ],
)
def test_a_forged_recurrent_recorder_is_refused(change: Change, message: str) -> None:
    recorder = RecurrentRecorder((np.zeros((ENVS, *STATE), np.float32),))
    state = recorder.state_dict()
    recorder.load_state_dict(state)
    recorder.check(SPEC)
    change(state)
    with pytest.raises(CheckpointError, match=message):
        recorder.load_state_dict(state)
        recorder.check(SPEC)


CHOICES = ActionSpec("multi_discrete", count=5, sizes=(2, 3), starts=(0, 0), raw_shape=(2,))


def rollout() -> RolloutBuffer:
    return RolloutBuffer(8, ENVS, (4,), CHOICES.shape, masked_actions=5, carry=(np.zeros((ENVS, *STATE), np.float32),))


ROLLOUTS = {
    "more steps than there can be": (entry("length", value=9), "it has 9 steps of 8"),
    "as many steps as there can be": (entry("length", value=8), "it has 8 steps of 8"),
    "less than no step": (entry("length", value=-1), "it has -1 steps of 8"),
    "one reward for all": (entry("steps", 3, value=np.zeros((1, ENVS), np.float32)), "a column of the rollout should be"),
    "a carry of another shape": (entry("carry", 0, value=np.zeros((1, *STATE), np.float32)), "a recurrent state should be"),
    "an action that there is not": (
        entry("steps", 2, value=np.full((3, ENVS, 2), 2)),
        "an action of 2 is not between 0 and 1",
    ),
    "an infinite reward": (entry("steps", 3, value=np.full((3, ENVS), np.inf, np.float32)), "a reward is not finite"),
    "masks that allow nothing": (entry("steps", 6, value=np.zeros((3, ENVS, 5), np.bool_)), "allows no action"),
}


@pytest.mark.parametrize(("change", "message"), ROLLOUTS.values(), ids=ROLLOUTS.keys())
def test_a_forged_rollout_is_refused(change: Change, message: str) -> None:
    played, carry = rollout(), (np.zeros((ENVS, *STATE), np.float32),)
    for _ in range(3):
        obs, no = np.zeros((ENVS, 4), np.float32), np.zeros(ENVS, np.bool_)
        step = Step(obs, np.ones((ENVS, 2), np.int64), np.ones(ENVS, np.float32), obs, no, no)
        played.add(step, carry, carry, np.ones((ENVS, 5), np.bool_))
    state = played.state_dict()
    loaded = rollout()
    loaded.load_state_dict(state)
    loaded.check(CHOICES)
    change(state)
    with pytest.raises(CheckpointError, match=message):
        loaded.load_state_dict(state)
        loaded.check(CHOICES)
