"""A video of one episode: what the environment renders while the deterministic policy acts."""

from __future__ import annotations

import contextlib
import math
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from rl_training.algorithms.policy import Policy
from rl_training.envs.factory import Env, EnvFactory, RegisteredEnv, env_name
from rl_training.envs.limit import EpisodeLimit
from rl_training.errors import FOREIGN, ConfigError, RLTrainingError, UserCodeError, described
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.files import remove
from rl_training.rng import FINAL_EPISODES
from rl_training.runtime.evaluation import evaluate_policy
from rl_training.runtime.film_files import FORMATS, FilmFile, Frame, find_encoder, open_film
from rl_training.runtime.setup import make_pool

#: A longer film is cut off here; in most environments this is two minutes.
MOST_FRAMES = 3_600
#: If an environment draws more frames per second (CartPole has 50, Hopper 125), only every second, third ... step is filmed.
MOST_FPS = 30
FALLBACK_FPS = 30
#: Frames smaller than this (MinAtar's are 10 x 10) are enlarged by repeating each pixel.
LEAST_SIZE = 200


class Film:
    """A video of one episode, written while the episode is played. If ``partial`` is given, it goes to that file, which
    ``keep`` renames when it is whole. What goes wrong with it is kept as ``failure``: the episode, and an evaluation that it
    is part of, go on."""

    def __init__(self, path: Path, partial: Path | None = None) -> None:
        self.frames = 0
        self.fps = float(FALLBACK_FPS)
        self.cut = False  # the episode was longer than the film
        self.running = False
        self.camera: Camera | None = None  # the one that films: that of the first episode which begins
        self.failure: RLTrainingError | None = None
        self._path, self._partial = path, partial or path
        self._file: FilmFile | None = None
        self._shape: tuple[int, ...] = ()

    @property
    def seconds(self) -> float:
        return self.frames / self.fps

    def add(self, picture: Any) -> None:
        """Adds what an environment has rendered."""
        self.cut = self.frames == MOST_FRAMES
        if self.cut:
            self.running = False
            return
        with self._noting_failures():
            frame = as_frame(np.asarray(picture))
            if self._file is None:
                self._shape = frame.shape
                self._file = open_film(self._partial, (frame.shape[1], frame.shape[0]), self.fps)
            if frame.shape != self._shape:
                raise ConfigError(f"a rendered image has the shape {frame.shape}, and those before it {self._shape}")
            self._file.add(frame)
            self.frames += 1

    def fail(self, error: RLTrainingError) -> None:
        """Ends the film. Only the first failure counts; others follow from it."""
        self.failure, self.running = self.failure or error, False

    @contextlib.contextmanager
    def _noting_failures(self) -> Iterator[None]:
        try:
            yield
        except RLTrainingError as error:
            self.fail(error)
        except OSError as error:
            failure = ConfigError(f"cannot write the video {self._path}: {error.strerror or error}")
            failure.__cause__ = error
            self.fail(failure)

    def close(self) -> None:
        """Ends the file."""
        self.running = False
        file, self._file = self._file, None
        if file is not None:
            with self._noting_failures():
                file.close()

    def keep(self) -> None:
        """Ends the file and gives it its name if it is whole."""
        self.close()
        if self.failure is None:
            with self._noting_failures():
                self._partial.replace(self._path)


def as_frame(picture: NDArray[Any]) -> Frame:
    """A rendered image as bytes, which may hold floats from 0 to 1 as MinAtar's do, enlarged to a viewable size. It may be
    the environment's own array."""
    if np.issubdtype(picture.dtype, np.floating):
        picture = (np.clip(picture, 0.0, 1.0) * 255.0).round().astype(np.uint8)
    if picture.dtype != np.uint8:
        raise ConfigError(f"the environment renders images of {picture.dtype}; a video needs uint8, or floats from 0 to 1")
    if picture.ndim != 3 or picture.shape[2] != 3 or not picture.size:
        raise ConfigError(f"the environment renders images of shape {picture.shape}; a video needs (height, width, 3)")
    times = math.ceil(LEAST_SIZE / max(picture.shape[:2]))
    return picture if times == 1 else picture.repeat(times, axis=0).repeat(times, axis=1)


class Camera(gym.Wrapper[Any, Any, Any, Any]):
    """Films the base environment, including steps that outer wrappers skip, until the episode ends. Its last step is always
    filmed."""

    def __init__(self, env: Env, film: Film) -> None:
        super().__init__(env)
        self._film = film
        self._steps = 0
        self._fps = float(env.metadata.get("render_fps") or FALLBACK_FPS)
        self._every = math.ceil(self._fps / MOST_FPS)

    def _shoot(self, ended: bool = False) -> None:
        film = self._film
        if film.running and film.camera is self and (ended or self._steps % self._every == 0):
            try:
                picture = self.env.render()
            except FOREIGN as error:
                failure = UserCodeError(f"{env_name(self.env)} cannot be filmed: its render() raised {described(error)}")
                failure.__cause__ = error
                film.fail(failure)
            else:
                film.add(picture)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        film = self._film
        if film.running and film.camera is None:
            film.camera, film.fps = self, self._fps / self._every
        elif film.camera is self:
            film.running = False  # the next episode
        result = self.env.reset(seed=seed, options=options)
        self._steps = 0
        self._shoot()
        return result

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        result = self.env.step(action)
        self._steps += 1
        self._shoot(ended=result[2] or result[3])
        return result


@dataclass
class FilmedEnv:
    """Creates environments, the first with a camera on it; with ``every``, which environments that are new in each episode
    need, all of them."""

    drawing: EnvFactory
    plain: EnvFactory
    film: Film
    every: bool
    placed: bool = False

    def __call__(self) -> Env:
        if self.placed and not self.every:
            return self.plain()
        env = self.drawing()
        if env.render_mode != "rgb_array":
            raise ConfigError(
                f"{env_name(env)} was created with render_mode {env.render_mode!r}; a video needs render_mode='rgb_array'"
            )
        self.placed = True
        return Camera(env, self.film)


@contextlib.contextmanager
def filming(config: TrainConfig, factory: EnvFactory | None, path: Path) -> Iterator[tuple[Film, EnvFactory | None]]:
    """A film, as a GIF or an MP4 by the name of the file, and the environments for an evaluation whose first episode it shows
    if it is ``running`` when that begins. At the end the film is written, or has a ``failure``."""
    if path.suffix.lower() not in FORMATS:
        raise ConfigError(f"cannot write a video to {path}: its name must end in {' or '.join(FORMATS)}")
    if not path.parent.is_dir():
        raise ConfigError(f"cannot write a video to {path}: there is no directory {path.parent}")
    if path.suffix.lower() == ".mp4":
        find_encoder()
    _draw_in_memory()
    partial = path.with_name(f"{path.stem}.partial{path.suffix}")
    remove(partial)  # if a link has its name, writing would follow it
    film = Film(path, partial)
    drawing, plain = _drawing(config, factory, "rgb_array"), _by_name(config, factory)
    try:
        yield film, drawing and plain and FilmedEnv(drawing, plain, film, every=config.env_fresh)
        film.keep()
    finally:
        film.close()
        remove(partial)


def _draw_in_memory() -> None:
    """Lets pygame draw without a screen if there is none. It would find that out too, with an error of SDL's on the way."""
    if sys.platform == "linux" and not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
        os.environ.setdefault("SDL_VIDEODRIVER", "offscreen,dummy")


def film_episode(policy: Policy, config: TrainConfig, factory: EnvFactory | None, path: Path) -> Film:
    """Films the first episode of an evaluation."""
    with (
        filming(config, factory, path) as (film, filmed),
        contextlib.closing(make_pool(config, filmed, FINAL_EPISODES, 1, recorded=policy.spec.observation)) as pool,
    ):
        film.running = True  # not before: to check its output, the pool has reset its environment once
        limit = EpisodeLimit(config.eval.max_episode_steps, config.env_id)
        evaluate_policy(policy, pool, 1, lambda: not film.running, limit=limit)
    if film.failure is not None:
        raise film.failure
    return film


def on_screen(config: TrainConfig, factory: EnvFactory | None) -> EnvFactory | None:
    """A factory of environments that show themselves on the screen."""
    return _drawing(config, factory, "human")


def _by_name(config: TrainConfig, factory: EnvFactory | None) -> EnvFactory | None:
    """The factory, or one for the name in the config; none if the config's environment has to be passed from Python."""
    return RegisteredEnv(config.env_id, config.env_kwargs) if factory is None and not config.env_from_python else factory


def _drawing(config: TrainConfig, factory: EnvFactory | None, mode: str) -> EnvFactory | None:
    """The same environment, with rendering switched on if it is created by its name."""
    factory = _by_name(config, factory)
    if not isinstance(factory, RegisteredEnv):
        return factory
    with contextlib.closing(factory()) as env:
        modes = list(env.metadata.get("render_modes", ()))
    if mode not in modes:
        what = "render images" if mode == "rgb_array" else "show itself on the screen"
        raise ConfigError(f"{factory.env_id} cannot {what}: its render modes {modes} do not include {mode}")
    return RegisteredEnv(factory.env_id, {**factory.kwargs, "render_mode": mode})
