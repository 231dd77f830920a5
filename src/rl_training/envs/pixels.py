"""Learning from pixels: rendered frames as stacked channel-first uint8 images.

env_kwargs: {render_mode: rgb_array}
wrappers:
  - {name: pixels, height: 40, width: 60, stack: 3}

``gray: false`` keeps the colours; ``crop: 0.5`` keeps the central half of the frame's height and width.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from rl_training.envs.factory import Env, env_name
from rl_training.errors import ConfigError, MissingExtraError

Image = NDArray[np.uint8]
#: How much larger than the observation a frame is rendered. Thin lines then survive the averaging, and small angles of
#: Pendulum, which draws at whole pixels, remain distinct (64 different 32 x 32 images over 0.6 rad; 30 at twice the size).
OVERSAMPLING = 4


class PixelObservation(gym.Wrapper[Any, Any, Any, Any]):
    """Observations are images (stack * colours, height, width), oldest first; the first image of an episode is repeated.

    Rendering dominates the cost (3 ms for 500 x 500 pixels), so environments with a configurable size render no larger than
    necessary.
    """

    def __init__(
        self, env: Env, height: int = 84, width: int = 84, stack: int = 3, gray: bool = True, crop: float = 1.0
    ) -> None:
        super().__init__(env)
        if env.render_mode != "rgb_array":
            raise ConfigError(
                f"the wrapper pixels needs an environment that renders images: add env_kwargs: {{render_mode: rgb_array}} "
                f"for {env_name(env)}"
            )
        for name, value in (("height", height), ("width", width), ("stack", stack)):
            if not isinstance(value, int) or value < 1:
                raise ConfigError(f"the wrapper pixels: {name} must be a whole number of at least 1, not {value!r}")
        if not isinstance(crop, (int, float)) or not 0.0 < crop <= 1.0:
            raise ConfigError(f"the wrapper pixels: crop must be a fraction above 0 and at most 1, not {crop!r}")
        self._cv2 = _load_opencv()
        self._size, self._gray, self._crop = (width, height), gray, crop
        self._frames: deque[Image] = deque(maxlen=stack)
        colours = 1 if gray else 3
        self.observation_space = spaces.Box(0, 255, (stack * colours, height, width), np.uint8)
        _draw_at(env.unwrapped, round(height * OVERSAMPLING / crop), round(width * OVERSAMPLING / crop))

    def _picture(self) -> Image:
        picture = _middle(np.asarray(self.env.render()), self._crop)
        if self._gray:
            picture = self._cv2.cvtColor(picture, self._cv2.COLOR_RGB2GRAY)
        picture = self._cv2.resize(picture, self._size, interpolation=self._cv2.INTER_AREA)  # averages source pixels
        image: Image = picture[None] if self._gray else picture.transpose(2, 0, 1)
        return image

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Image, dict[str, Any]]:
        _, info = self.env.reset(seed=seed, options=options)
        picture = self._picture()
        self._frames.extend([picture] * (self._frames.maxlen or 1))
        return np.concatenate(self._frames), info

    def step(self, action: Any) -> tuple[Image, Any, bool, bool, dict[str, Any]]:
        _, reward, terminated, truncated, info = self.env.step(action)
        self._frames.append(self._picture())
        return np.concatenate(self._frames), reward, terminated, truncated, info


class ActionRepeat(gym.Wrapper[Any, Any, Any, Any]):
    """Repeats each action ``times`` times and sums the rewards; stops early at the end of an episode."""

    def __init__(self, env: Env, times: int) -> None:
        super().__init__(env)
        if not isinstance(times, int) or times < 1:
            raise ConfigError(f"the wrapper action_repeat: times must be a whole number of at least 1, not {times!r}")
        self._times = times

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        total = 0.0
        for _ in range(self._times):
            obs, reward, terminated, truncated, info = self.env.step(action)
            total += float(reward)
            if terminated or truncated:
                break
        return obs, total, terminated, truncated, info


def _middle(picture: Image, share: float) -> Image:
    height, width = (max(1, round(size * share)) for size in picture.shape[:2])
    top, left = (picture.shape[0] - height) // 2, (picture.shape[1] - width) // 2
    return picture[top : top + height, left : left + width]


def _draw_at(env: Any, height: int, width: int) -> None:
    """Reduces the render size of an environment whose whole drawing scales with ``screen_dim`` (Pendulum). CartPole and
    MountainCar have a size too, but draw parts of the scene at fixed positions, so a small image of theirs would be empty."""
    if hasattr(env, "screen_dim") and height == width:
        env.screen_dim = min(height, env.screen_dim)


def _load_opencv() -> Any:
    try:
        import cv2
    except ImportError as error:
        raise MissingExtraError("opencv-python-headless", "pixels") from error
    return cv2
