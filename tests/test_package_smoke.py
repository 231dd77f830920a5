"""What users install: a wheel, built here, put elsewhere, and used from a neutral place."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from moments import PATIENCE

import rl_training
from rl_training.experiment.packaged import packaged_configs

PROJECT = Path(__file__).parent.parent


def sources(folder: Path) -> Path:
    """A copy of what a wheel is built from."""
    for name in ("pyproject.toml", "README.md", "LICENSE", "src"):
        subprocess.run(["cp", "-r", PROJECT / name, folder], check=True)
    for left_over in folder.glob("src/*.egg-info"):
        subprocess.run(["rm", "-r", left_over], check=True)
    return folder


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy of the sources, so that nothing is left in the project's own directory."""
    source, output = sources(tmp_path_factory.mktemp("source")), tmp_path_factory.mktemp("wheel")
    options = ("--no-deps", "--no-build-isolation", "--quiet", "--wheel-dir", output)
    subprocess.run([sys.executable, "-m", "pip", "wheel", *options, source], check=True, timeout=PATIENCE)
    (built,) = output.glob("*.whl")
    return built


def test_the_wheel_holds_what_it_must_and_no_more(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        metadata = archive.read(next(name for name in names if name.endswith("METADATA"))).decode()
        entry_points = archive.read(next(name for name in names if name.endswith("entry_points.txt"))).decode()
    assert {"rl_training/py.typed", "rl_training/__init__.pyi"} <= set(names)
    assert {f"rl_training/assets/configs/{name}.yaml" for name in packaged_configs()} <= names
    assert "rl-training = rl_training.cli:main" in entry_points
    assert f"Version: {rl_training.__version__}\n" in metadata
    assert "License-Expression: MIT" in metadata
    assert any(name.endswith("LICENSE") for name in names)
    modules = {str(path.relative_to(PROJECT / "src")) for path in (PROJECT / "src" / "rl_training").rglob("*.py")}
    assert {name for name in names if name.endswith(".py")} == modules


@pytest.mark.slow  # installs it and starts a fresh interpreter
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


@pytest.fixture(scope="module")
def bare_venv(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A virtual environment with a wheel that ``python -m build`` has made, its dependencies, and none of the extras. It
    is on disk, because it takes gigabytes."""
    source, output = sources(tmp_path_factory.mktemp("source")), tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(output), str(source)]
    subprocess.run(build, check=True, timeout=PATIENCE, stdout=subprocess.DEVNULL)
    (built,) = output.glob("*.whl")
    with tempfile.TemporaryDirectory(prefix="bare-") as place:
        venv = Path(place) / "venv"
        subprocess.run([sys.executable, "-m", "venv", venv], check=True, timeout=PATIENCE)
        options = ("--quiet", "--disable-pip-version-check", "-c", PROJECT / "constraints.txt")
        subprocess.run([venv / "bin" / "pip", "install", *options, built], check=True, timeout=3 * PATIENCE)
        yield venv


def in_venv(venv: Path, folder: Path, *arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    command = [str(venv / "bin" / arguments[0]), *arguments[1:]]
    return subprocess.run(command, cwd=folder, env=environment, input=stdin, capture_output=True, text=True, timeout=PATIENCE)


@pytest.mark.slow
def test_a_wheel_without_extras_does_the_whole_workflow(bare_venv: Path, tmp_path: Path) -> None:
    """Trains, evaluates, predicts, exports and loads the export; what needs an extra says which."""
    for extra in ("onnx", "onnxruntime", "cv2", "ale_py", "mujoco", "minatar", "popgym", "pytest", "hypothesis"):
        missing = in_venv(bare_venv, tmp_path, "python", "-c", f"import {extra}")
        assert "ModuleNotFoundError" in missing.stderr, f"{extra} is installed"

    def succeed(*arguments: str, stdin: str = "") -> str:
        done = in_venv(bare_venv, tmp_path, *arguments, stdin=stdin)
        assert done.returncode == 0, done.stderr
        assert "Traceback" not in done.stderr
        return done.stdout

    where = succeed("python", "-c", "import rl_training; print(rl_training.__file__)")
    assert Path(where.strip()).is_relative_to(bare_venv)
    settings = ("--total-timesteps=600", "--set=algo_kwargs.learning_starts=100", "--set=eval.final_episodes=3")
    often = ("--set=log.interval=100", "--set=eval.interval=300", "--set=eval.episodes=2")
    for algo, env in (("dqn", "CartPole-v1"), ("recurrent_ppo", "CartPole-v1"), ("sac", "Pendulum-v1")):
        given = settings if algo != "recurrent_ppo" else settings[:1] + settings[2:]
        succeed("rl-training", "train", "--algo", algo, "--env", env, *given, *often, "--output-dir", algo)
        result = json.loads(succeed("rl-training", "eval", algo, "--episodes", "3", "--json"))
        assert len(result["returns"]) == 3
        obs = json.dumps([0.1] * (3 if algo == "sac" else 4))
        action = json.loads(succeed("rl-training", "predict", algo, stdin=obs))
        assert action in (0, 1) if algo != "sac" else -2 <= action[0] <= 2
        succeed("rl-training", "export", algo, "--format", "safetensors", "--output", f"{algo}.safetensors")
        load = f"import pathlib, rl_training.runtime.export as e; e.load_exported(pathlib.Path('{algo}.safetensors'))"
        succeed("python", "-c", load)
        succeed("rl-training", "resume", algo, "--total-timesteps", "700")
        succeed("rl-training", "plot", algo, "--output", f"{algo}.png")
    refused = in_venv(bare_venv, tmp_path, "rl-training", "export", "dqn", "--format", "onnx")
    assert refused.returncode == 2
    assert "rl-training[onnx]" in refused.stderr
    assert "Traceback" not in refused.stderr
