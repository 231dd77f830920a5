"""A video of one episode: what the environment renders while the deterministic policy acts."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from rl_training.algorithms.policy import Policy
from rl_training.envs.factory import Env, EnvFactory, RegisteredEnv, env_name
from rl_training.envs.limit import EpisodeLimit
from rl_training.errors import ConfigError, MissingExtraError
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.files import remove
from rl_training.rng import FINAL_EPISODES
from rl_training.runtime.evaluation import evaluate_policy
from rl_training.runtime.setup import make_pool

Frame = NDArray[np.uint8]
FORMATS = (".gif", ".mp4")
#: A longer film is cut off here; in most environments this is two minutes.
MOST_FRAMES = 3_600
FALLBACK_FPS = 30
#: Frames smaller than this (MinAtar's are 10 x 10) are enlarged by repeating each pixel.
LEAST_SIZE = 200


@dataclass
class Film:
    """Frames (height, width, colour) in chronological order."""

    frames: list[Frame] = field(default_factory=list)
    fps: float = FALLBACK_FPS
    episode: int = -1  # -1: not started, 0: being filmed, from 1: finished
    cut: bool = False  # the episode was longer than the film

    @property
    def seconds(self) -> float:
        return len(self.frames) / self.fps

    def enlarged(self) -> Iterator[Frame]:
        """The frames, enlarged to a viewable size."""
        times = math.ceil(LEAST_SIZE / max(self.frames[0].shape[:2]))
        return (frame.repeat(times, axis=0).repeat(times, axis=1) for frame in self.frames)


def as_frame(picture: NDArray[Any]) -> NDArray[Any]:
    """A copy of a rendered image, converted to bytes if it holds floats from 0 to 1, as MinAtar's images do."""
    if np.issubdtype(picture.dtype, np.floating):
        picture = (np.clip(picture, 0.0, 1.0) * 255.0).round().astype(np.uint8)
    return np.array(picture)


class Camera(gym.Wrapper[Any, Any, Any, Any]):
    """Films every step of the base environment, including those that outer wrappers skip, until the next episode."""

    def __init__(self, env: Env, film: Film) -> None:
        super().__init__(env)
        self._film = film
        film.fps = float(env.metadata.get("render_fps") or FALLBACK_FPS)

    def _shoot(self) -> None:
        if self._film.episode == 0:
            self._film.cut = len(self._film.frames) == MOST_FRAMES
            if not self._film.cut:
                self._film.frames.append(as_frame(np.asarray(self.env.render())))

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        result = self.env.reset(seed=seed, options=options)
        self._film.episode += 1
        self._shoot()
        return result

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        result = self.env.step(action)
        self._shoot()
        return result


@dataclass(frozen=True)
class FilmedEnv:
    """Creates an environment with a camera on it."""

    factory: EnvFactory
    film: Film

    def __call__(self) -> Env:
        env = self.factory()
        if env.render_mode != "rgb_array":
            raise ConfigError(
                f"{env_name(env)} was created with render_mode {env.render_mode!r}; a video needs render_mode='rgb_array'"
            )
        return Camera(env, self.film)


def film_episode(policy: Policy, config: TrainConfig, factory: EnvFactory | None, path: Path) -> Film:
    """Films the first episode of an evaluation and writes it as a GIF or an MP4, depending on the file name."""
    if path.suffix.lower() not in FORMATS:
        raise ConfigError(f"cannot write a video to {path}: its name must end in {' or '.join(FORMATS)}")
    if not path.parent.is_dir():
        raise ConfigError(f"cannot write a video to {path}: there is no directory {path.parent}")
    if path.suffix.lower() == ".mp4":
        _load_ffmpeg()
    film = Film()
    if factory is None and not config.env_from_python:
        factory = RegisteredEnv(config.env_id, config.env_kwargs)
    if isinstance(factory, RegisteredEnv):
        factory = _drawing(factory)
    with contextlib.closing(make_pool(config, factory and FilmedEnv(factory, film), FINAL_EPISODES, 1)) as pool:
        film.frames.clear()  # the pool has already reset its environment once, to check its output
        film.episode = -1
        evaluate_policy(policy, pool, 1, limit=EpisodeLimit(config.eval.max_episode_steps, config.env_id))
    if (dtype := film.frames[0].dtype) != np.uint8:
        raise ConfigError(f"{config.env_id} renders images of {dtype}; a video needs uint8, or floats from 0 to 1")
    partial = path.with_name(f"{path.stem}.partial{path.suffix}")
    write = _write_mp4 if path.suffix.lower() == ".mp4" else _write_gif
    remove(partial)  # if a link has its name, writing would follow it
    write(film, partial)
    partial.replace(path)
    return film


def _drawing(factory: RegisteredEnv) -> RegisteredEnv:
    """The same environment, with rendering switched on."""
    with contextlib.closing(factory()) as env:
        modes = list(env.metadata.get("render_modes", ()))
    if "rgb_array" not in modes:
        raise ConfigError(f"{factory.env_id} cannot render images: its render modes {modes} do not include rgb_array")
    return RegisteredEnv(factory.env_id, {**factory.kwargs, "render_mode": "rgb_array"})


def _write_gif(film: Film, path: Path) -> None:
    from PIL import Image

    first, *others = (Image.fromarray(frame) for frame in film.enlarged())
    # GIF counts in hundredths of a second, and viewers slow down anything faster than 50 frames per second.
    duration = max(20, round(100 / film.fps) * 10)
    first.save(path, save_all=True, append_images=others, duration=duration, loop=0)


def _load_ffmpeg() -> Any:
    try:
        import imageio_ffmpeg
    except ImportError as error:
        raise MissingExtraError("imageio-ffmpeg", "video") from error
    return imageio_ffmpeg


def _write_mp4(film: Film, path: Path) -> None:
    height, width = next(film.enlarged()).shape[:2]
    writer = _load_ffmpeg().write_frames(str(path), (width, height), fps=film.fps, macro_block_size=2)
    writer.send(None)
    for frame in film.enlarged():
        writer.send(np.ascontiguousarray(frame))
    writer.close()
