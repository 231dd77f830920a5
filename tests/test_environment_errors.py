"""What the user sees of an environment's own mistakes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from conftest import tiny_values

from rl_training.cli import main

MY_ENV = """
import multiprocessing

import gymnasium as gym
import numpy as np


def divide(steps):
    return 1 / (steps - 30)


class Broken(gym.Env):
    observation_space = gym.spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        self.steps = 0
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.steps += 1
        return np.zeros(2, np.float32), divide(self.steps), False, False, {}


class OldStep(Broken):
    def step(self, action):
        return np.zeros(2, np.float32), 0.0, False, {}


class OldReset(Broken):
    def reset(self, *, seed=None, options=None):
        return np.zeros(2, np.float32)


class NoSeed(Broken):
    def reset(self):
        return np.zeros(2, np.float32)


class Unborn(Broken):
    def __init__(self, size=-1):
        self.grid = make_grid(size)


class UnbornElsewhere(Broken):
    def __init__(self):
        self.grid = make_grid(4 if multiprocessing.parent_process() is None else -1)


def make_grid(size):
    return np.zeros(size)


class NoInfo(Broken):
    def reset(self, *, seed=None, options=None):
        return np.zeros(2, np.float32), None
"""


def train(folder: Path, name: str, *options: str, workers: str = "inline") -> int:
    (folder / "faulty_env.py").write_text(MY_ENV)
    values = tiny_values("dqn", env_id=f"{folder}/faulty_env.py:{name}", env_workers=workers)
    (folder / "c.yaml").write_text(yaml.safe_dump(values))
    return main(["train", f"--config={folder}/c.yaml", f"--output-dir={folder}/run", "--quiet", *options])


@pytest.mark.parametrize("workers", ["inline", "subprocess"])
def test_the_frames_of_the_environment_are_shown_and_stored(
    tmp_path: Path, workers: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train(tmp_path, "Broken", workers=workers) == 2
    error, note, *frames = capsys.readouterr().err.splitlines()
    assert "ZeroDivisionError: division by zero" in error
    assert "--debug" in note
    assert [frame.strip().partition(", in ")[2] for frame in frames] == [
        "step: return np.zeros(2, np.float32), divide(self.steps), False, False, {}",
        "divide: return 1 / (steps - 30)",
    ]
    (report,) = (tmp_path / "run").glob("fault-step-*.json")
    assert json.loads(report.read_text())["traceback"] == [frame.strip() for frame in frames]


def test_debug_shows_the_whole_traceback(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert train(tmp_path, "Broken", "--debug") == 2
    shown = capsys.readouterr().err
    assert "Traceback (most recent call last)" in shown
    assert "pool.py" in shown
    assert "return 1 / (steps - 30)" in shown


@pytest.mark.parametrize("workers", ["inline", "subprocess"])
def test_a_constructor_that_fails_shows_its_frames(tmp_path: Path, workers: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert train(tmp_path, "Unborn", workers=workers) == 2
    error, note, *frames = capsys.readouterr().err.splitlines()
    assert "cannot be created (ValueError: negative dimensions are not allowed)" in error
    assert "--debug" in note
    assert [frame.strip().partition(", in ")[2] for frame in frames] == [
        "__init__: self.grid = make_grid(size)",
        "make_grid: return np.zeros(size)",
    ]
    assert not (tmp_path / "run").exists()


def test_a_constructor_that_fails_in_a_worker_process_shows_its_frames(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train(tmp_path, "UnbornElsewhere", workers="subprocess") == 2
    error, _, *frames = capsys.readouterr().err.splitlines()
    assert "ValueError: negative dimensions are not allowed" in error
    assert [frame.partition(", in ")[2].partition(":")[0] for frame in frames] == ["__init__", "make_grid"]


def test_a_registered_id_whose_constructor_fails_shows_its_frames(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "unborn_env.py").write_text(MY_ENV + "\n\ngym.register('Unborn-v0', Unborn)\n")
    arguments = ["train", "--algo=dqn", f"--env={tmp_path}/unborn_env.py:Unborn-v0", "--quiet"]
    assert main([*arguments, f"--output-dir={tmp_path}/run"]) == 2
    frames = capsys.readouterr().err.splitlines()[2:]
    assert [frame.partition(", in ")[2].partition(":")[0] for frame in frames] == ["__init__", "make_grid"]
    assert main([*arguments, f"--output-dir={tmp_path}/run", "--debug"]) == 2
    shown = capsys.readouterr().err
    assert "registration.py" in shown
    assert "factory.py" in shown


def test_arguments_that_a_constructor_does_not_take_have_no_frames(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train(tmp_path, "Unborn", "--set=env_kwargs.sizes=3") == 2
    shown = capsys.readouterr().err
    assert "does not take env_kwargs {'sizes': 3}" in shown
    assert len(shown.splitlines()) == 1


def test_a_type_error_inside_a_constructor_is_its_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "odd_env.py").write_text("class Odd:\n    def __init__(self):\n        self.size = len(3)\n")
    assert main(["train", "--algo=dqn", f"--env={tmp_path}/odd_env.py:Odd", f"--output-dir={tmp_path}/run"]) == 2
    error, _, frame = capsys.readouterr().err.splitlines()
    assert "Odd cannot be created (TypeError: object of type 'int' has no len())" in error
    assert "line 3, in __init__" in frame


def test_a_module_that_cannot_be_imported_shows_its_frames(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "half_env.py").write_text("import math\n\nmath.roots\n")
    assert main(["train", "--algo=dqn", f"--env={tmp_path}/half_env.py:Half", f"--output-dir={tmp_path}/run"]) == 2
    error, _, frame = capsys.readouterr().err.splitlines()
    assert "AttributeError" in error
    assert frame.endswith("line 3, in <module>: math.roots")


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        (
            "OldStep",
            "4 values, but Gymnasium's interface is (observation, reward, terminated, truncated, info)",
        ),
        ("OldReset", "but Gymnasium's interface is (observation, info)"),
        ("NoSeed", "reset takes no seed, but Gymnasium's interface is reset(self, *, seed=None, options=None)"),
        ("NoInfo", "info must be a dictionary, not None"),
    ],
)
def test_the_old_interface_is_told_what_is_expected(
    tmp_path: Path, name: str, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train(tmp_path, name) == 2
    assert sentence in capsys.readouterr().err.splitlines()[0]
