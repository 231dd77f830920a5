"""Films: every step of one whole episode, in both formats, for any algorithm whose environment draws; clear refusals."""

from __future__ import annotations

import math
import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import yaml
from conftest import tiny_values
from PIL import Image

from rl_training import DQN, PPO, ManagedAlgorithm
from rl_training.cli import main
from rl_training.errors import ConfigError
from rl_training.runtime.film_files import ENCODERS, open_film
from rl_training.runtime.video import Film, as_frame


class DrawingEnv(gym.Env[Any, Any]):
    """Renders its step number as a shade, for a known number of steps."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 20}  # noqa: RUF012

    def __init__(self, length: int = 7, render_mode: str | None = None, dtype: Any = np.uint8, fps: int = 20) -> None:
        self.metadata = {**self.metadata, "render_fps": fps}
        self.observation_space = gym.spaces.Box(0.0, 1.0, (1,), np.float32)
        self.action_space = gym.spaces.Discrete(2)
        self.render_mode, self._length, self._steps, self._dtype = render_mode, length, 0, dtype

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._steps = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._steps += 1
        return np.zeros(1, np.float32), 1.0, self._steps == self._length, False, {}

    def render(self) -> Any:
        floating = np.issubdtype(self._dtype, np.floating)
        return np.full((12, 16, 3), 10 * self._steps / 255 if floating else 10 * self._steps, self._dtype)


class CountingEnv(DrawingEnv):
    """Counts its steps and its pictures, of which there may be only so many."""

    def __init__(self, pictures: int = 1000, **options: Any) -> None:
        super().__init__(**options)
        self.stepped = self.drawn = 0
        self._pictures = pictures

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.stepped += 1
        return super().step(action)

    def render(self) -> Any:
        if self.drawn == self._pictures:
            raise OSError("out of paper")
        self.drawn += 1
        return super().render()


def shades(path: Path) -> list[int]:
    image = Image.open(path)
    found = []
    for k in range(getattr(image, "n_frames", 1)):
        image.seek(k)
        found.append(int(np.asarray(image.convert("RGB"))[0, 0, 0]))
    return found


def agent_of(env: Any, **settings: Any) -> ManagedAlgorithm:
    return DQN(env, hidden_sizes=(8,), **settings)


def test_a_gif_has_every_step_of_one_episode(tmp_path: Path) -> None:
    film = agent_of(lambda: DrawingEnv(render_mode="rgb_array")).film(tmp_path / "a.gif")
    assert film.frames == 1 + 7
    assert (film.seconds, film.cut) == (8 / 20, False)
    assert shades(tmp_path / "a.gif") == [10 * k for k in range(8)]
    assert Image.open(tmp_path / "a.gif").info["duration"] == 50  # milliseconds, as 20 a second
    assert [path.name for path in tmp_path.iterdir()] == ["a.gif"]


@pytest.mark.parametrize(
    ("length", "fps", "steps"), [(7, 30, [*range(8)]), (6, 50, [0, 2, 4, 6]), (7, 60, [0, 2, 4, 6, 7]), (7, 125, [0, 5, 7])]
)
def test_no_more_than_30_frames_a_second_are_drawn_and_the_last_step_is_one(
    length: int, fps: int, steps: list[int], tmp_path: Path
) -> None:
    film = agent_of(lambda: DrawingEnv(length, render_mode="rgb_array", fps=fps)).film(tmp_path / "a.gif")
    assert shades(tmp_path / "a.gif") == [10 * step for step in steps]
    assert film.frames == len(steps)
    assert film.fps == fps / {30: 1, 50: 2, 60: 2, 125: 5}[fps]


def test_floats_from_0_to_1_are_filmed_as_bytes_and_other_numbers_refused(tmp_path: Path) -> None:
    for dtype in (np.float32, np.float64):
        agent_of(lambda dtype=dtype: DrawingEnv(render_mode="rgb_array", dtype=dtype)).film(tmp_path / "a.gif")
        assert shades(tmp_path / "a.gif") == [10 * k for k in range(8)]
    with pytest.raises(ConfigError, match="renders images of int64; a video needs uint8, or floats from 0 to 1"):
        agent_of(lambda: DrawingEnv(render_mode="rgb_array", dtype=np.int64)).film(tmp_path / "b.gif")


@pytest.mark.parametrize("suffix", [".gif", ".mp4"] if find_spec("imageio_ffmpeg") else [".gif"])
def test_pictures_that_are_no_frames_end_the_film_and_nothing_else(tmp_path: Path, suffix: str) -> None:
    shapes = [(30, 40), (30, 40, 4), (0, 40, 3)]
    cases = [
        ([shape], rf"renders images of shape {re.escape(str(shape))}; a video needs \(height, width, 3\)") for shape in shapes
    ]
    cases.append(([(300, 400, 3), (300, 402, 3)], r"the shape \(300, 402, 3\), and those before it \(300, 400, 3\)"))
    for pictures, reason in cases:
        film = Film(tmp_path / f"a{suffix}")
        for shape in pictures:
            film.add(np.zeros(shape, np.uint8))
        film.close()
        with pytest.raises(ConfigError, match=reason):
            raise film.failure or AssertionError("no failure")


def test_small_frames_are_enlarged_pixel_by_pixel(tmp_path: Path) -> None:
    agent_of(lambda: DrawingEnv(render_mode="rgb_array")).film(tmp_path / "a.gif")
    assert Image.open(tmp_path / "a.gif").size == (13 * 16, 13 * 12)
    small = np.zeros((12, 16, 3), np.uint8)
    small[2, 5] = 200
    large = as_frame(small)
    assert (large[2 * 13 : 3 * 13, 5 * 13 : 6 * 13] == 200).all()
    assert (large == 200).sum() == 13 * 13 * 3
    assert as_frame(np.zeros((150, 200, 3), np.uint8)).shape == (150, 200, 3)


@pytest.mark.parametrize("by_column", [False, True], ids=["rows", "columns"])
def test_a_gif_shows_exactly_what_was_drawn(tmp_path: Path, by_column: bool) -> None:
    """Each frame holds only what has changed, in memory by rows or, as pygame has it, by columns."""
    rng = np.random.default_rng(0)
    frames = [np.full((30, 40, 3), 255, np.uint8)]
    for k in range(12):
        frame = frames[-1].copy()
        top, left = rng.integers(0, 25, 2)
        if k != 4:  # one frame is like the one before
            frame[top : top + rng.integers(1, 9), left : left + rng.integers(1, 9)] = rng.integers(0, 256, 3)
        frames.append(frame)
    film = open_film(tmp_path / "a.gif", (40, 30), 20.0)
    for frame in frames:
        film.add(frame.transpose(1, 0, 2).copy().transpose(1, 0, 2) if by_column else frame)
    film.close()
    shown, lasted = [], []
    image = Image.open(tmp_path / "a.gif")
    for k in range(image.n_frames):
        image.seek(k)
        shown.append(np.asarray(image.convert("RGB")))
        lasted.append(image.info["duration"])
    del frames[5]
    assert lasted == [50] * 4 + [100] + [50] * 7
    np.testing.assert_array_equal(shown, frames)


def test_a_film_takes_no_memory_for_its_frames(tmp_path: Path) -> None:
    import tracemalloc

    frame = np.zeros((400, 600, 3), np.uint8)
    for name in ("a.gif", "a.mp4") if find_spec("imageio_ffmpeg") else ("a.gif",):
        film = Film(tmp_path / name)
        film.add(frame)
        tracemalloc.start()
        for k in range(100):
            frame[200, k] = 255
            film.add(frame)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        film.close()
        assert film.frames == 101
        assert peak < 8 * frame.nbytes


def test_minatar_is_rendered(tmp_path: Path) -> None:
    pytest.importorskip("minatar")
    wrappers = [{"name": "channels_first"}]
    film = agent_of("rl_training.envs.minatar:MinAtar/Breakout-v1", wrappers=wrappers, cnn_layers=[[4, 3, 1]]).film(
        tmp_path / "a.gif"
    )
    assert film.frames > 1
    image = Image.open(tmp_path / "a.gif")
    assert image.size == (200, 200)
    assert np.asarray(image.convert("RGB")).max() > 100


def test_steps_that_a_wrapper_skips_are_filmed_too(tmp_path: Path) -> None:
    wrappers = [{"name": "action_repeat", "times": 3}]
    film = agent_of(lambda: DrawingEnv(render_mode="rgb_array"), wrappers=wrappers).film(tmp_path / "a.gif")
    assert film.frames == 1 + 7


def test_an_mp4_has_as_many_frames(tmp_path: Path) -> None:
    ffmpeg = pytest.importorskip("imageio_ffmpeg")
    film = agent_of(lambda: DrawingEnv(render_mode="rgb_array")).film(tmp_path / "a.mp4")
    frames = ffmpeg.read_frames(str(tmp_path / "a.mp4"))
    assert next(frames)["size"] == (13 * 16, 13 * 12)
    assert len(list(frames)) == film.frames


@pytest.mark.parametrize(("lacking", "codec"), [((), "h264"), (("libx264",), "h264"), (("libx264", "libopenh264"), "mpeg4")])
def test_an_mp4_is_written_by_the_best_encoder_that_ffmpeg_has(
    lacking: tuple[str, ...], codec: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ffmpeg = pytest.importorskip("imageio_ffmpeg")
    real = ffmpeg.get_ffmpeg_exe()
    monkeypatch.setenv("IMAGEIO_FFMPEG_EXE", str(ffmpeg_without(real, lacking, tmp_path)))
    film = agent_of(lambda: DrawingEnv(render_mode="rgb_array")).film(tmp_path / "a.mp4")
    monkeypatch.setenv("IMAGEIO_FFMPEG_EXE", real)
    frames = ffmpeg.read_frames(str(tmp_path / "a.mp4"))
    assert next(frames)["codec"] == codec
    seen = [np.frombuffer(frame, np.uint8).mean() for frame in frames]
    assert len(seen) == film.frames
    np.testing.assert_allclose(seen, [10 * k for k in range(8)], atol=6)


def test_an_ffmpeg_that_can_do_nothing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ffmpeg = pytest.importorskip("imageio_ffmpeg")
    agent = agent_of(lambda: DrawingEnv(render_mode="rgb_array"))
    program = ffmpeg_without(ffmpeg.get_ffmpeg_exe(), tuple(ENCODERS), tmp_path)
    monkeypatch.setenv("IMAGEIO_FFMPEG_EXE", str(program))
    with pytest.raises(ConfigError, match=r"has none of the encoders .* write a \.gif, or name another ffmpeg in"):
        agent.film(tmp_path / "a.mp4")
    monkeypatch.setenv("IMAGEIO_FFMPEG_EXE", str(tmp_path / "missing"))
    with pytest.raises(ConfigError, match=r"ffmpeg, which cannot be started \(FileNotFoundError.*write a \.gif, or install"):
        agent.film(tmp_path / "a.mp4")
    failing = "#!/bin/sh\ncase $* in *-encoders) echo V..... mpeg4;; *) echo no paper >&2; exit 1;; esac\n"
    program.write_text(failing)
    program = program.rename(tmp_path / "another")
    monkeypatch.setenv("IMAGEIO_FFMPEG_EXE", str(program))
    with pytest.raises(ConfigError, match=r"cannot write the video .*/a\.mp4: .* failed: no paper; write a \.gif instead"):
        agent.film(tmp_path / "a.mp4")
    assert not [path for path in tmp_path.iterdir() if path.suffix == ".mp4"]


def ffmpeg_without(real: str, lacking: tuple[str, ...], folder: Path) -> Path:
    """ffmpeg without some of its encoders: it does not list them, and fails as ffmpeg does if one is named."""
    program = folder / f"ffmpeg-{len(list(folder.iterdir()))}"
    refuse = "".join(f"*' {name} '*) echo \"Unknown encoder '{name}'\" >&2; exit 8;;\n" for name in lacking)
    hidden = "|".join(lacking) or "nothing"
    program.write_text(
        f"#!/bin/sh\ncase \" $* \" in\n*' -encoders '*) '{real}' \"$@\" | grep -v -w -E '{hidden}'; exit 0;;\n{refuse}esac\n"
        f"exec '{real}' \"$@\"\n"
    )
    program.chmod(0o755)
    return program


def test_a_long_episode_is_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rl_training.runtime.video.MOST_FRAMES", 5)
    film = agent_of(lambda: DrawingEnv(render_mode="rgb_array")).film(tmp_path / "a.gif")
    assert (film.frames, film.cut) == (5, True)


@pytest.mark.parametrize(("agent", "env_id"), [(DQN, "CartPole-v1"), (PPO, "Pendulum-v1")])
def test_rendering_is_switched_on_for_a_registered_environment(agent: Any, env_id: str, tmp_path: Path) -> None:
    film = agent(env_id, hidden_sizes=(8,)).film(tmp_path / "a.gif")
    assert film.frames > 5


def test_filming_leaves_the_evaluation_as_it_is(tmp_path: Path) -> None:
    agent = agent_of("CartPole-v1")
    before = agent.evaluate(3).returns
    film = agent.film(tmp_path / "a.gif")
    assert agent.evaluate(3).returns == before
    assert film.frames == 1 + math.ceil(before[0] / 2)  # 25 of 50 a second


def test_each_seed_has_its_own_episode(tmp_path: Path) -> None:
    agent = agent_of("CartPole-v1")
    contents = set()
    for seed in (7, 8):
        film = agent.film(tmp_path / "a.gif", seed=seed)
        assert film.frames == 1 + math.ceil(agent.evaluate(1, seed=seed).returns[0] / 2)
        contents.add((tmp_path / "a.gif").read_bytes())
    assert len(contents) == 2


@pytest.mark.parametrize("settings", [{}, {"env_fresh": True}, {"wrappers": [{"name": "action_repeat", "times": 2}]}])
@pytest.mark.parametrize("env_id", ["CartPole-v1", "Acrobot-v1"])
def test_an_evaluation_with_a_video_is_the_same_evaluation(env_id: str, settings: dict[str, Any], tmp_path: Path) -> None:
    agent = agent_of(env_id, **settings)
    given: list[dict[str, Any]] = [{"seed": 3}, {"seed": 3, "deterministic": False}]
    for options in given:
        plain = agent.evaluate(12, max_episode_steps=40, **options)
        filmed = agent.evaluate(12, max_episode_steps=40, video=tmp_path / "a.gif", **options)
        assert (filmed.returns, filmed.lengths, filmed.steps) == (plain.returns, plain.lengths, plain.steps)
        assert filmed.film is not None
        every, repeated = (2 if env_id == "CartPole-v1" else 1), (2 if "wrappers" in settings else 1)
        steps = plain.lengths[0] * repeated
        assert filmed.film.frames - 1 in {math.ceil(steps / every), math.ceil((steps - 1) / every)}  # it ends while repeating


def test_the_first_episode_is_filmed_while_it_is_evaluated(tmp_path: Path) -> None:
    made: list[CountingEnv] = []

    def make() -> CountingEnv:
        made.append(CountingEnv(render_mode="rgb_array"))
        return made[-1]

    result = agent_of(make, eval={"num_envs": 3}).evaluate(5, seed=1, video=tmp_path / "a.gif")
    assert result.film is not None
    assert shades(tmp_path / "a.gif") == [10 * k for k in range(8)]
    assert sum(env.stepped for env in made) == result.steps == sum(result.lengths) == 5 * 7
    assert sum(env.drawn for env in made) == result.film.frames == 8


def test_an_evaluation_outlives_its_video(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    agent = agent_of(lambda: CountingEnv(render_mode="rgb_array", pictures=3))
    result = agent.evaluate(4, seed=1, video=tmp_path / "a.gif")
    assert result.returns == [7.0] * 4
    assert result.film is not None
    assert str(result.film.failure) == "CountingEnv cannot be filmed: its render() raised OSError: out of paper"
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "b.gif").mkdir()
    result = agent_of(lambda: CountingEnv(render_mode="rgb_array")).evaluate(4, seed=1, video=tmp_path / "b.gif")
    assert result.returns == [7.0] * 4
    assert result.film is not None
    assert "b.gif: Is a directory" in str(result.film.failure)
    assert [path.name for path in tmp_path.iterdir()] == ["b.gif"]


def test_from_the_shell_a_failed_video_is_an_error_after_the_result(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with agent_of("CartPole-v1") as agent:
        agent.save(tmp_path / "policy")
    (tmp_path / "b.gif").mkdir()
    assert main(["eval", str(tmp_path / "policy"), "--episodes", "2", "--video", str(tmp_path / "b.gif")]) == 2
    shown = capsys.readouterr()
    assert "over 2 episodes" in shown.out
    assert "cannot write the video" in shown.err
    assert "recorded" not in shown.err


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no full disk at hand")
def test_a_full_disk_is_reported() -> None:
    film = Film(Path("/dev/full"))
    film.running = True
    for _ in range(10):
        film.add(np.random.default_rng(film.frames).integers(0, 256, (200, 200, 3), np.uint8))
    assert not film.running, "the episode need not be played to its end"
    film.close()
    assert str(film.failure) == "cannot write the video /dev/full: No space left on device"


@pytest.mark.parametrize(
    ("name", "env", "message"),
    [
        ("a.avi", "CartPole-v1", r"\.gif or \.mp4"),
        ("missing/a.gif", "CartPole-v1", "no directory"),
        ("a.gif", "rl_training_test_envs:Counting-v0", "cannot render images"),
        ("a.gif", DrawingEnv, "render_mode='rgb_array'"),
    ],
)
def test_what_cannot_be_filmed_is_refused(name: str, env: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        agent_of(env).film(tmp_path / name)
    assert list(tmp_path.iterdir()) == []


def test_from_the_shell(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    values = tiny_values("dqn", output_dir=str(tmp_path / "run"))
    config = tmp_path / "config.yaml"
    config.write_text(yaml.safe_dump(values))
    assert main(["train", "--config", str(config), "--quiet"]) == 0
    video = tmp_path / "a.gif"
    assert main(["eval", str(tmp_path / "run"), "--episodes", "1", "--video", str(video)]) == 0
    assert "recorded" in capsys.readouterr().err
    assert len(shades(video)) > 1
    assert main(["eval", str(tmp_path / "run"), "--video", str(tmp_path / "a.txt")]) == 2
    assert "must end in" in capsys.readouterr().err
