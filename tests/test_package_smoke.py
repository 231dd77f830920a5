"""What users install: a wheel, built here, put elsewhere, and used from a neutral place."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from moments import PATIENCE

import rl_training
from rl_training.experiment.packaged import packaged_configs

PROJECT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy of the sources, so that nothing is left in the project's own directory."""
    source, output = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    for name in ("pyproject.toml", "README.md", "LICENSE", "src"):
        subprocess.run(["cp", "-r", PROJECT / name, source], check=True)
    for left_over in source.glob("src/*.egg-info"):
        subprocess.run(["rm", "-r", left_over], check=True)
    options = ("--no-deps", "--no-build-isolation", "--quiet", "--wheel-dir", output)
    subprocess.run([sys.executable, "-m", "pip", "wheel", *options, source], check=True, timeout=PATIENCE)
    (built,) = output.glob("*.whl")
    return built


def test_the_wheel_holds_what_it_must_and_no_more(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        metadata = archive.read(next(name for name in names if name.endswith("METADATA"))).decode()
        entry_points = archive.read(next(name for name in names if name.endswith("entry_points.txt"))).decode()
    assert "rl_training/py.typed" in names
    assert {f"rl_training/assets/configs/{name}.yaml" for name in packaged_configs()} <= names
    assert "rl-training = rl_training.cli:main" in entry_points
    assert f"Version: {rl_training.__version__}\n" in metadata
    assert "License-Expression: MIT" in metadata
    assert any(name.endswith("LICENSE") for name in names)
    modules = {str(path.relative_to(PROJECT / "src")) for path in (PROJECT / "src" / "rl_training").rglob("*.py")}
    assert {name for name in names if name.endswith(".py")} == modules


def test_an_installed_wheel_trains_elsewhere(wheel: Path, tmp_path: Path) -> None:
    target, neutral = tmp_path / "installed", tmp_path / "neutral"
    neutral.mkdir()
    options = ("--no-deps", "--no-index", "--quiet", "--disable-pip-version-check", "--target", target)
    subprocess.run([sys.executable, "-m", "pip", "install", *options, wheel], check=True, timeout=PATIENCE)
    environment = {**os.environ, "PYTHONPATH": str(target)}
    code = (
        "import rl_training, sys; print(rl_training.__file__); from rl_training.cli import main; sys.exit(main(sys.argv[1:]))"
    )
    settings = (
        "--total-timesteps=200",
        "--set=algo_kwargs.learning_starts=50",
        "--set=algo_kwargs.train_freq=4",
        "--set=eval.final_episodes=2",
    )
    command = [sys.executable, "-c", code, "train", "--config", "dqn/cartpole", *settings, "--output-dir", "run"]
    done = subprocess.run(command, cwd=neutral, env=environment, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    assert Path(done.stdout.splitlines()[0]).is_relative_to(target)
    assert (neutral / "run" / "checkpoints" / "latest" / "manifest.json").is_file()
