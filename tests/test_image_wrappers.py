"""Wrappers that turn what an environment shows into images."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from rl_training.envs.spaces import describe_spaces
from rl_training.envs.wrappers import ChannelsFirst, OneHotPlanes, SelectObservation
from rl_training.errors import ConfigError


class LastChannel(gym.Env[Any, Any]):
    """Shows one fixed image of the given kind."""

    def __init__(self, image: Any) -> None:
        self.image = image
        self.observation_space = gym.spaces.Box(0, 1, image.shape, image.dtype)
        self.action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        return self.image, {}


@pytest.mark.parametrize(("dtype", "scale"), [(np.uint8, 1), (np.bool_, 255)])
def test_channels_come_first(dtype: Any, scale: int) -> None:
    image = np.random.default_rng(0).integers(0, 2, (4, 5, 3)).astype(dtype)
    env = ChannelsFirst(LastChannel(image))
    obs, _ = env.reset()
    assert obs.shape == env.observation_space.shape == (3, 4, 5)
    assert obs.dtype == np.uint8
    for channel in range(3):
        np.testing.assert_array_equal(obs[channel], image[:, :, channel] * scale)


def test_channels_first_refuses_what_is_no_image() -> None:
    with pytest.raises(ConfigError, match="channels_first works on images"):
        ChannelsFirst(gym.make("CartPole-v1"))


def test_every_code_gets_a_plane() -> None:
    image = np.array([[[0, 1], [2, 0], [1, 1]]], np.uint8)  # one row of three cells: three codes, and two
    env = OneHotPlanes(LastChannel(image), codes=[3, 2])
    obs, _ = env.reset()
    assert obs.dtype == np.uint8
    assert env.observation_space == gym.spaces.Box(0, 255, (5, 1, 3), np.uint8)
    expected = [[1, 0, 0], [0, 0, 1], [0, 1, 0], [0, 1, 0], [1, 0, 1]]
    np.testing.assert_array_equal(obs[:, 0], np.array(expected) * 255)


def test_planes_are_those_of_minigrid_itself() -> None:
    pytest.importorskip("minigrid")
    from minigrid.wrappers import OneHotPartialObsWrapper

    theirs = OneHotPartialObsWrapper(gym.make("MiniGrid-DoorKey-5x5-v0"))
    ours = OneHotPlanes(SelectObservation(gym.make("MiniGrid-DoorKey-5x5-v0"), ["image"]), codes=[11, 6, 3])
    (expected, _), (got, _) = theirs.reset(seed=3), ours.reset(seed=3)
    for step in range(200):
        np.testing.assert_array_equal(got, expected["image"].transpose(2, 0, 1) * 255)
        action = step * 7 % 5  # turns, walks, picks up and drops
        (expected, *_), (got, *_) = theirs.step(action), ours.step(action)


@pytest.mark.parametrize("codes", [[3], [3, 0], [3, 2.0], [3, True], [3, 257], "32", 3])
def test_numbers_of_codes_that_do_not_fit_are_refused(codes: Any) -> None:
    with pytest.raises(ConfigError, match="one_hot_planes: codes must be 2 whole numbers from 1 to 256"):
        OneHotPlanes(LastChannel(np.zeros((4, 4, 2), np.uint8)), codes=codes)


@pytest.mark.parametrize("image", [np.zeros((4, 4), np.uint8), np.zeros((4, 4, 1), np.float32)])
def test_planes_are_made_of_images_of_codes_only(image: Any) -> None:
    with pytest.raises(ConfigError, match="one_hot_planes works on images"):
        OneHotPlanes(LastChannel(image), codes=[3])


def test_a_code_without_a_plane_is_an_error_and_not_an_empty_cell() -> None:
    image = np.zeros((2, 2, 2), np.uint8)
    image[1, 0, 1] = 2
    with pytest.raises(ConfigError, match=r"largest codes of the channels are \[0, 2\], too large for codes: \[3, 2\]"):
        OneHotPlanes(LastChannel(image), codes=[3, 2]).reset()


def test_planes_of_a_narrow_image_keep_their_place() -> None:
    """A last axis shorter than both others is otherwise taken for channels."""
    image = np.zeros((11, 6, 3), np.uint8)
    planes = OneHotPlanes(LastChannel(image), codes=[11, 6, 4])
    assert describe_spaces(planes, "planes").observation.shape == (21, 11, 6)
    channels = ChannelsFirst(LastChannel(np.zeros((4, 2, 3), np.uint8)))
    assert describe_spaces(channels, "channels").observation.shape == (3, 4, 2)
    assert describe_spaces(LastChannel(image), "image").observation.shape == (3, 11, 6)
