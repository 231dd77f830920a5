"""Pictures as observations: shape, stacking, drawing small, exact restoring; and repeated actions."""

from __future__ import annotations

from typing import Any

import cv2
import gymnasium as gym
import numpy as np
import pytest
import rl_training_test_envs as test_envs

from rl_training.envs.factory import RegisteredEnv
from rl_training.envs.pixels import ActionRepeat, PixelObservation
from rl_training.envs.pool import SeededEnvPool
from rl_training.envs.wrappers import WrappedEnv
from rl_training.errors import ConfigError


def cartpole(**options: Any) -> PixelObservation:
    return PixelObservation(gym.make("CartPole-v1", render_mode="rgb_array"), height=20, width=30, **options)


@pytest.mark.parametrize(("gray", "channels"), [(True, 3), (False, 9)])
def test_observations_are_stacked_channel_first_bytes(gray: bool, channels: int) -> None:
    env = cartpole(gray=gray)
    obs, _ = env.reset(seed=0)
    assert obs.shape == env.observation_space.shape == (channels, 20, 30)
    assert obs.dtype == np.uint8
    assert obs.min() < 100  # the cart
    assert obs.max() > 200  # the background


def test_a_stack_begins_with_its_first_picture_repeated_and_then_moves_on() -> None:
    env = cartpole(stack=3)
    first, _ = env.reset(seed=0)
    assert (first[0] == first[1]).all()
    assert (first[1] == first[2]).all()
    before = first
    for _ in range(8):
        after = env.step(1)[0]
        np.testing.assert_array_equal(after[:2], before[1:])
        before = after
    assert not (before == first).all()


def test_pendulum_is_drawn_small_and_shows_the_rod() -> None:
    env = PixelObservation(gym.make("Pendulum-v1", render_mode="rgb_array"), height=32, width=32)
    first, _ = env.reset(seed=0)
    assert np.asarray(env.env.render()).shape == (128, 128, 3)
    assert first.min() < 200
    assert not (first == env.step(np.array([2.0], np.float32))[0]).all()


def test_nothing_is_drawn_larger_than_the_environment_draws_by_itself() -> None:
    pendulum = gym.make("Pendulum-v1", render_mode="rgb_array")
    env = PixelObservation(pendulum, height=84, width=84, crop=0.5)
    env.reset(seed=0)
    assert np.asarray(pendulum.render()).shape == (500, 500, 3)


def test_a_crop_keeps_the_centre_of_the_drawing() -> None:
    whole, middle = cartpole(stack=1, gray=False), cartpole(stack=1, gray=False, crop=0.5)
    whole.reset(seed=0)
    drawing = np.asarray(whole.env.render())
    height, width = drawing.shape[:2]
    kept = drawing[height // 4 : height // 4 + height // 2, width // 4 : width // 4 + width // 2]
    expected = cv2.resize(kept, (30, 20), interpolation=cv2.INTER_AREA).transpose(2, 0, 1)
    obs, _ = middle.reset(seed=0)
    assert obs.shape == middle.observation_space.shape == (3, 20, 30)
    assert obs.dtype == np.uint8
    np.testing.assert_array_equal(obs, expected)


def angles_apart(size: int, **options: Any) -> int:
    """Different pictures of Pendulum among those of 200 angles within 0.3 rad of upright."""
    env = PixelObservation(gym.make("Pendulum-v1", render_mode="rgb_array"), height=size, width=size, stack=1, **options)
    env.reset(seed=0)
    pictures = set()
    for angle in np.linspace(-0.3, 0.3, 200):
        env.unwrapped.state = np.array([angle, 0.0])  # type: ignore[attr-defined]
        pictures.add(env._picture().tobytes())
    return len(pictures)


def test_small_pictures_of_pendulum_tell_small_angles_apart() -> None:
    assert angles_apart(32) > 50
    assert angles_apart(24, crop=0.5) > 50


def test_gray_is_the_luma_of_the_colours() -> None:
    gray, colour = cartpole(stack=1), cartpole(stack=1, gray=False)
    drawn = gray.reset(seed=0)[0], colour.reset(seed=0)[0]
    luma = np.tensordot([0.299, 0.587, 0.114], drawn[1].astype(np.float64), axes=1)
    np.testing.assert_allclose(drawn[0][0], luma, atol=1.0)


def test_an_episode_of_pictures_is_restored_exactly() -> None:
    factory = WrappedEnv(
        RegisteredEnv("CartPole-v1", {"render_mode": "rgb_array"}), ({"name": "pixels", "height": 20, "width": 30},)
    )
    original, restored = SeededEnvPool(factory, seed=1), SeededEnvPool(factory, seed=1)
    original.reset()
    for _ in range(7):
        original.step(np.array([1]))
    assert restored.load_state_dict(original.state_dict()) == []
    np.testing.assert_array_equal(original.step(np.array([0]))[0].next_obs, restored.step(np.array([0]))[0].next_obs)


def test_an_environment_that_does_not_draw_is_refused_with_the_fix() -> None:
    with pytest.raises(ConfigError, match="render_mode: rgb_array"):
        PixelObservation(gym.make("CartPole-v1"))
    with pytest.raises(ConfigError, match="height"):
        PixelObservation(gym.make("CartPole-v1", render_mode="rgb_array"), height=0)
    for crop in (0.0, -0.5, 1.01, float("nan"), "half"):
        with pytest.raises(ConfigError, match=r"crop must be a fraction.*not"):
            PixelObservation(gym.make("CartPole-v1", render_mode="rgb_array"), crop=crop)  # type: ignore[arg-type]


def test_a_repeated_action_sums_its_rewards_and_stops_at_the_end() -> None:
    env = ActionRepeat(test_envs.CountingEnv(length=5), times=3)
    env.reset(seed=0)
    assert env.step(0)[1:4] == (1.0 + 2.0 + 3.0, False, False)
    assert env.step(0)[1:4] == (4.0 + 5.0, True, False)
