"""A video of one episode: what the environment renders while the deterministic policy acts."""

from __future__ import annotations

import contextlib
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from rl_training.algorithms.policy import Policy
from rl_training.envs.factory import Env, EnvFactory, RegisteredEnv, env_name
from rl_training.envs.limit import EpisodeLimit
from rl_training.errors import ConfigError
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.files import remove
from rl_training.rng import FINAL_EPISODES
from rl_training.runtime.evaluation import evaluate_policy
from rl_training.runtime.film_files import FORMATS, FilmFile, Frame, load_ffmpeg, open_film
from rl_training.runtime.setup import make_pool

#: A longer film is cut off here; in most environments this is two minutes.
MOST_FRAMES = 3_600
#: If an environment draws more frames per second (CartPole has 50, Hopper 125), only every second, third ... step is filmed.
MOST_FPS = 30
FALLBACK_FPS = 30
#: Frames smaller than this (MinAtar's are 10 x 10) are enlarged by repeating each pixel.
LEAST_SIZE = 200


class Film:
    """A video of one episode, written while the episode is played."""

    def __init__(self, path: Path) -> None:
        self.frames = 0
        self.fps = float(FALLBACK_FPS)
        self.cut = False  # the episode was longer than the film
        self.running = False
        self._path = path
        self._file: FilmFile | None = None
        self._failure: Exception | None = None

    @property
    def seconds(self) -> float:
        return self.frames / self.fps

    def add(self, picture: Any) -> None:
        """Adds what an environment has rendered. A failure is raised by ``close``: it is not the environment's."""
        self.cut = self.frames == MOST_FRAMES
        if self.cut:
            self.running = False
            return
        try:
            frame = as_frame(np.asarray(picture))
            if self._file is None:
                self._file = open_film(self._path, (frame.shape[1], frame.shape[0]), self.fps)
            self._file.add(frame)
            self.frames += 1
        except (OSError, ConfigError) as error:
            self._failure, self.running = error, False

    def close(self) -> None:
        try:
            if self._file is not None:
                self._file.close()
            if self._failure is not None:
                raise self._failure
        except OSError as error:
            raise ConfigError(f"cannot write the video {self._path}: {error.strerror or error}") from error


def as_frame(picture: NDArray[Any]) -> Frame:
    """A copy of a rendered image as bytes, which may hold floats from 0 to 1 as MinAtar's do, enlarged to a viewable size."""
    if np.issubdtype(picture.dtype, np.floating):
        picture = (np.clip(picture, 0.0, 1.0) * 255.0).round().astype(np.uint8)
    if picture.dtype != np.uint8:
        raise ConfigError(f"the environment renders images of {picture.dtype}; a video needs uint8, or floats from 0 to 1")
    times = math.ceil(LEAST_SIZE / max(picture.shape[:2]))
    return np.array(picture if times == 1 else picture.repeat(times, axis=0).repeat(times, axis=1))


class Camera(gym.Wrapper[Any, Any, Any, Any]):
    """Films the base environment, including steps that outer wrappers skip, until the episode ends. Its last step is always
    filmed."""

    def __init__(self, env: Env, film: Film) -> None:
        super().__init__(env)
        self._film = film
        self._steps = 0
        drawn = float(env.metadata.get("render_fps") or FALLBACK_FPS)
        self._every = math.ceil(drawn / MOST_FPS)
        film.fps = drawn / self._every

    def _shoot(self, ended: bool = False) -> None:
        if self._film.running and (ended or self._steps % self._every == 0):
            self._film.add(self.env.render())

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        if self._film.frames:
            self._film.running = False  # the next episode
        result = self.env.reset(seed=seed, options=options)
        self._steps = 0
        self._shoot()
        return result

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        result = self.env.step(action)
        self._steps += 1
        self._shoot(ended=result[2] or result[3])
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
        load_ffmpeg()
    partial = path.with_name(f"{path.stem}.partial{path.suffix}")
    remove(partial)  # if a link has its name, writing would follow it
    film = Film(partial)
    factory = _drawing(config, factory, "rgb_array")
    drawn = factory and FilmedEnv(factory, film)
    try:
        with (
            contextlib.closing(film),
            contextlib.closing(make_pool(config, drawn, FINAL_EPISODES, 1, recorded=policy.spec.observation)) as pool,
        ):
            film.running = True  # not before: to check its output, the pool has reset its environment once
            limit = EpisodeLimit(config.eval.max_episode_steps, config.env_id)
            evaluate_policy(policy, pool, 1, lambda: not film.running, limit=limit)
        partial.replace(path)
    finally:
        remove(partial)
    return film


def on_screen(config: TrainConfig, factory: EnvFactory | None) -> EnvFactory | None:
    """A factory of environments that show themselves on the screen."""
    return _drawing(config, factory, "human")


def _drawing(config: TrainConfig, factory: EnvFactory | None, mode: str) -> EnvFactory | None:
    """The same environment, with rendering switched on if it is created by its name."""
    if factory is None and not config.env_from_python:
        factory = RegisteredEnv(config.env_id, config.env_kwargs)
    if not isinstance(factory, RegisteredEnv):
        return factory
    with contextlib.closing(factory()) as env:
        modes = list(env.metadata.get("render_modes", ()))
    if mode not in modes:
        what = "render images" if mode == "rgb_array" else "show itself on the screen"
        raise ConfigError(f"{factory.env_id} cannot {what}: its render modes {modes} do not include {mode}")
    return RegisteredEnv(factory.env_id, {**factory.kwargs, "render_mode": mode})
