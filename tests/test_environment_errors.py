"""What the user sees of an environment's own mistakes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from conftest import tiny_values

from rl_training.cli import main

MY_ENV = """
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
