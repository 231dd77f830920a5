"""States of the frame replay, and what it refuses."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pytest
from replays import held_slots
from test_frame_replay_buffer import ACTIONS, GAMMA, LONG, contents, make_buffer, make_world

from rl_training.data.frame_replay_buffer import FrameReplayBuffer
from rl_training.errors import CheckpointError, ConfigError
from rl_training.experiment.checkpoint import read_checkpoint, write_checkpoint
from rl_training.types import Step


@pytest.mark.parametrize("alpha", [None, 0.6])
@pytest.mark.parametrize("split", [1, 3, 9, 44])
def test_a_saved_replay_continues_bit_for_bit(split: int, alpha: float | None, tmp_path: Path) -> None:
    plans = [[(7, "truncated", "different"), (3, "terminated", "repeated")], LONG]
    rng, restored_rng = np.random.default_rng(0), np.random.default_rng(1)
    world = make_world(25, plans, stack=3, n_step=3, alpha=alpha, rng=rng)
    for _ in range(split):
        world.advance()
        if len(world.buffer):
            sampled = held_slots(world.buffer)
            world.buffer.update_priorities(sampled, sampled % 5 + 0.5)
    state = world.buffer.state_dict()
    other = make_world(25, plans, stack=3, n_step=3, alpha=alpha, rng=restored_rng)
    restored = other.buffer  # which is not empty
    for _ in range(31):
        other.advance()
    world.advance()  # the saved state must not follow the rings
    write_checkpoint(tmp_path / "checkpoint", {"replay": state}, {})
    restored.load_state_dict(read_checkpoint(tmp_path / "checkpoint", ["replay"])["replay"])
    twin = make_world(25, plans, stack=3, n_step=3, alpha=alpha)
    for _ in range(split):
        twin.advance([])
    for t in range(40):
        twin.advance([restored])
        if t:
            world.advance()
        assert contents(restored) == contents(world.buffer) == world.expected()
        if len(restored) == 0:
            continue
        restored_rng.bit_generator.state = rng.bit_generator.state
        for found, expected in zip(restored.sample(9), world.buffer.sample(9), strict=True):
            np.testing.assert_array_equal(np.asarray(found), np.asarray(expected))


def test_refuses_a_state_that_does_not_fit() -> None:
    state = make_buffer(10).state_dict()
    for other in (make_buffer(11), make_buffer(10, n_step=2), make_buffer(10, channels=2), make_buffer(10, alpha=0.5)):
        with pytest.raises(CheckpointError, match="does not fit"):
            other.load_state_dict(state)


def test_refuses_what_is_no_stack() -> None:
    world = make_world(10, [LONG, LONG], stack=2)
    world.advance()
    held = contents(world.buffer)
    obs = np.stack([world.stack_of(env.history) for env in world.envs])
    flags, masks = np.zeros(2, np.bool_), np.ones((2, ACTIONS), np.bool_)
    moved = np.concatenate([obs[:, 1:], obs[:, :1]], axis=1)
    wrong = moved.copy()
    wrong[1, 0] += 1
    with pytest.raises(ConfigError, match=r"environment 1 .* frame_stack"):
        world.buffer.add(Step(obs, flags, np.zeros(2, np.float32), wrong, flags, flags, masks))
    with pytest.raises(ValueError, match="environment 0 does not continue"):
        world.buffer.add(Step(obs + 1, flags, np.zeros(2, np.float32), moved + 1, flags, flags, masks))
    assert contents(world.buffer) == held
    with pytest.raises(ConfigError, match="frame_stack"):
        FrameReplayBuffer(9, (3, 3, 3), stack=2, num_envs=1, n_step=1, gamma=GAMMA, rng=np.random.default_rng(0))
    with pytest.raises(ConfigError, match=r"algo_kwargs\.buffer_size"):
        make_buffer(2, num_envs=3)


def test_an_empty_buffer_cannot_be_sampled() -> None:
    world = make_world(10, [LONG], n_step=3)
    for _ in range(2):
        world.advance()  # windows, but none complete
    assert len(world.buffer) == 0
    with pytest.raises(ValueError, match="empty"):
        world.buffer.sample(1)


@pytest.mark.parametrize(("frames", "colours"), [(4, 1), (2, 3), (1, 4)])
def test_an_undeclared_frame_stack_is_named_once(frames: int, colours: int) -> None:
    rng, channels = np.random.default_rng(0), frames * colours
    buffer = FrameReplayBuffer(50, (channels, 3, 3), stack=1, num_envs=1, n_step=1, gamma=GAMMA, rng=rng)
    seen = [np.zeros((colours, 3, 3), np.uint8)] * frames  # at first nothing moves, and colours that are alike are no stack
    nothing, one = np.zeros(1, np.bool_), np.ones(1, np.float32)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for number in range(8):
            obs = np.concatenate(seen)[None]
            brightness = max(number - 3, 0)
            seen = [*seen[1:], np.full((colours, 3, 3), brightness, np.uint8)]
            buffer.add(Step(obs, np.zeros(1, np.int64), one, np.concatenate(seen)[None], nothing, nothing))
    expected = [f"algo_kwargs.frame_stack: {frames}"] if frames > 1 else []
    assert len(caught) == len(expected)
    assert all(text in str(warning.message) for text, warning in zip(expected, caught, strict=True))
