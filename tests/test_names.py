"""The user's own code, named on the command line and in configs: where it is found, and where it is not."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import gymnasium as gym
import pytest
import yaml
from conftest import tiny_values
from forgery import assert_refused
from moments import finish_python

from rl_training.cli import main
from rl_training.envs.factory import RegisteredEnv
from rl_training.envs.known import PACKAGES
from rl_training.errors import MissingExtraError

MY_ENV = """
import gymnasium as gym
import numpy as np


class MyPoint(gym.Env):
    observation_space = gym.spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, length=5):
        self.length = length

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return self.observation_space.low * 0, {}

    def step(self, action):
        self.steps += 1
        return self.observation_space.low * 0, float(action), self.steps == self.length, False, {}


class Half(gym.RewardWrapper):
    def __init__(self, env, factor=0.5):
        super().__init__(env)
        self.factor = factor

    def reward(self, reward):
        return reward * self.factor


def make_point(length=3):
    return MyPoint(length)


if "MyPoint-v0" not in gym.registry:
    gym.register("MyPoint-v0", MyPoint)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "my_env.py").write_text(MY_ENV)
    values = tiny_values("dqn", total_timesteps=60)
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump({key: values[key] for key in values if key != "env_id"}))
    return tmp_path


class Console:
    """The command in this process, as a console script starts it: without the current directory on the search path, and
    without the user's modules that an earlier command has imported."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self._monkeypatch, self._capsys = monkeypatch, capsys

    def __call__(self, folder: Path, *arguments: str) -> tuple[int, str, str]:
        with self._monkeypatch.context() as patch:
            patch.chdir(folder)
            patch.setattr(sys, "path", [entry for entry in sys.path if entry])
            code = main(arguments)
        for name in [*sys.modules]:
            if name.startswith(("my_env", "my_algos")):
                del sys.modules[name]
        gym.registry.pop("MyPoint-v0", None)
        return (code, *self._capsys.readouterr())


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Console:
    return Console(monkeypatch, capsys)


@pytest.mark.parametrize(
    "name", ["my_env:MyPoint-v0", "my_env:MyPoint", "my_env:make_point", "my_env.py:MyPoint", "./my_env.py:MyPoint-v0"]
)
def test_an_environment_of_the_current_directory_trains(folder: Path, cli: Console, name: str) -> None:
    workers = "subprocess" if name == "my_env.py:MyPoint" else "inline"
    done = cli(
        folder, "train", "--config=tiny.yaml", f"--env={name}", "--output-dir=run", "--quiet", f"--set=env_workers={workers}"
    )
    assert done[0] == 0, done[2]
    lengths = json.loads((folder / "run/evaluation.json").read_text())["lengths"]
    assert lengths == [3, 3] if name.endswith("make_point") else [5, 5]
    assert "rl-training eval run --episodes 100 --trust-env-module" in done[1]
    assert "rl-training export run --format onnx\n" in done[1], "which needs no environment"
    evaluated = cli(folder, "eval", "run", "--episodes", "1")  # now the name comes out of a run directory
    assert evaluated[0] == 2
    assert "my_env.py" in evaluated[2]
    assert "--trust-env-module" in evaluated[2]
    assert cli(folder, "eval", "run", "--episodes", "1", "--trust-env-module")[0] == 0


def test_a_file_of_the_current_directory_hides_no_installed_module(folder: Path, cli: Console) -> None:
    for name in ("gymnasium", "tensorboard"):
        (folder / f"{name}.py").write_text("raise SystemExit('hidden')\n")
    done = cli(folder, "train", "--config=tiny.yaml", "--env=my_env:MyPoint", "--output-dir=run", "--quiet")
    assert done[0] == 0, done[2]


def test_a_wrapper_is_an_import_path_with_arguments(folder: Path, cli: Console) -> None:
    values = {**tiny_values("dqn", total_timesteps=60), "env_id": "my_env:MyPoint"}
    values["wrappers"] = [{"name": "my_env:Half", "factor": 0.25}]
    (folder / "wrapped.yaml").write_text(yaml.safe_dump(values))
    done = cli(folder, "train", "--config=wrapped.yaml", "--output-dir=run", "--quiet")
    assert done[0] == 0, done[2]
    assert set(json.loads((folder / "run/evaluation.json").read_text())["returns"]) <= {0.25 * n for n in range(6)}
    for wrapper, expected in (
        ({"name": "my_env:Half", "weight": 1}, "the wrapper my_env:Half does not take {'weight': 1}"),
        ({"name": "my_env:Halve"}, "the module 'my_env' has no 'Halve'"),
        ({"name": "my_enw:Half"}, "the wrapper my_enw:Half: cannot import the module 'my_enw'"),
        ({"name": "my_env:gym"}, "TypeError"),
    ):
        (folder / "bad.yaml").write_text(yaml.safe_dump({**values, "wrappers": [wrapper]}))
        refused = cli(folder, "train", "--config=bad.yaml", "--output-dir=bad")
        assert refused[0] == 2
        assert expected in refused[2]


def test_a_wrapper_that_only_a_run_names_is_not_imported(folder: Path, cli: Console) -> None:
    values = tiny_values("dqn", total_timesteps=60, wrappers=[{"name": "my_env:Half"}])
    (folder / "wrapped.yaml").write_text(yaml.safe_dump(values))
    assert cli(folder, "train", "--config=wrapped.yaml", "--output-dir=run", "--quiet")[0] == 0
    for command in (["eval", "run", "--episodes=1"], ["resume", "run", "--quiet"]):
        refused = cli(folder, *command)
        assert refused[0] == 2
        assert "wrappers: my_env:Half" in refused[2]
        assert cli(folder, *command, "--trust-env-module")[0] == 0
    assert cli(folder, "predict", "run", "--obs", "[0, 0, 0, 0]")[0] == 0  # creates no environment


def test_an_algorithm_comes_from_a_file(folder: Path, cli: Console) -> None:
    (folder / "my_algos.py").write_text(
        "from rl_training.algorithms import DQN\n\nclass MyDQN(DQN):\n    name = 'mine'\n    summary = 'a DQN of my own'\n"
    )
    values = {**tiny_values("dqn", total_timesteps=60), "algo": "my_algos.py:MyDQN"}
    (folder / "mine.yaml").write_text(yaml.safe_dump(values))
    done = cli(folder, "train", "--config=mine.yaml", "--output-dir=run", "--quiet")
    assert done[0] == 0, done[2]
    assert "rl-training export run --format onnx --trust-env-module\n" in done[1]
    refused = cli(folder, "predict", "run", "--obs", "[0, 0, 0, 0]")
    assert (refused[0], "my_algos.py" in refused[2]) == (2, True)
    assert cli(folder, "predict", "run", "--obs", "[0, 0, 0, 0]", "--trust-env-module")[0] == 0


def test_the_commands_that_are_proposed_for_a_network_of_ones_own_work(folder: Path, cli: Console) -> None:
    (folder / "my_nets.py").write_text("import torch\n\ndef trunk(spec):\n    return torch.nn.Linear(4, 8)\n")
    values = tiny_values("dqn", total_timesteps=60)
    values["algo_kwargs"]["network"] = "my_nets:trunk"
    (folder / "mine.yaml").write_text(yaml.safe_dump(values))
    done = cli(folder, "train", "--config=mine.yaml", "--output-dir=run", "--quiet")
    assert done[0] == 0, done[2]
    assert "rl-training export run --format onnx --trust-env-module\n" in done[1]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("my_env:MyPoin", "the module 'my_env' has no class or function 'MyPoin'"),
        ("my_env:Hal", "the module 'my_env' has no class or function 'Hal'"),
        (
            "no_env:MyPoint",
            "(No module named 'no_env'); install its package, run in the folder that has it",
        ),
        ("no_env.py:MyPoint", "there is no file no_env.py"),
        ("my_env:make_point", "does not take env_kwargs {'size': 3}"),
    ],
)
def test_a_name_that_leads_nowhere(folder: Path, cli: Console, name: str, expected: str) -> None:
    done = cli(folder, "train", "--config=tiny.yaml", f"--env={name}", "--output-dir=run", "--set=env_kwargs={size: 3}")
    assert done[0] == 2
    assert expected in done[2]
    assert done[2].count("\n") == 1
    assert ("did you mean 'MyPoint'?" in done[2]) == name.endswith("MyPoin")
    assert "'Half'" not in done[2]  # which is a wrapper


def test_two_files_of_one_name_are_two_modules(tmp_path: Path) -> None:
    for name, length in (("a", 2), ("b", 4)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "twins.py").write_text(
            MY_ENV.replace("length=5", f"length={length}").replace("MyPoint-v0", f"Twin-v{length}")
        )
    made = [RegisteredEnv(f"{tmp_path / name}/twins.py:MyPoint")().unwrapped for name in ("a", "b", "a")]
    assert [env.length for env in made] == [2, 4, 2]  # type: ignore[attr-defined]
    assert type(made[0]) is type(made[2])


# -------------------------------------------------------------------------------------------------- canonical ids


def test_a_canonical_id_without_its_package_names_the_extra(capsys: pytest.CaptureFixture[str]) -> None:
    missing = [package for package in PACKAGES if not _installed(package.module)]
    for package in missing:
        for env_id in (f"{package.prefix}Something-v0", f"{package.module}:{package.prefix}Something-v0"):
            arguments = ["train", "--algo=dqn", f"--env={env_id}", "--quiet"]
            assert_refused(capsys, arguments, f"environment {env_id} needs the package", f"rl-training[{package.extra}]")


def _installed(module: str) -> bool:
    try:
        __import__(module)
    except (ImportError, MissingExtraError):
        return False
    return True


def test_a_canonical_id_imports_its_package(folder: Path) -> None:
    (folder / "minigrid.py").write_text(MY_ENV.replace("MyPoint-v0", "MiniGrid-Point-v0"))
    code = (
        "import sys; sys.path.insert(0, '.')\nfrom rl_training.envs.factory import RegisteredEnv\n"
        "print(RegisteredEnv('MiniGrid-Point-v0')().spec.id)"
    )
    done = finish_python("-c", code, cwd=folder)
    assert done.stdout == "MiniGrid-Point-v0\n", done.stderr


def test_a_package_of_a_canonical_id_is_not_imported_from_a_run_directory(tmp_path: Path) -> None:
    """A run directory that is the current one must not provide the package that an id stands for."""
    (tmp_path / "config.yaml").touch()
    (tmp_path / "minigrid.py").write_text("raise SystemExit('executed')\n")
    code = (
        "import sys; sys.path.insert(0, '')\nfrom pathlib import Path\nfrom rl_training.experiment.trust import Trust\n"
        "Trust(Path('.')).require_env('MiniGrid-Empty-8x8-v0')"
    )
    done = finish_python("-c", code, cwd=tmp_path)
    assert "names the module 'minigrid' (env_id: MiniGrid-Empty-8x8-v0)" in done.stderr


@pytest.mark.parametrize(("env_id", "extra"), [("HalfCheetah-v5", "mujoco"), ("LunarLander-v3", "box2d")])
def test_gymnasiums_own_environments_name_their_extra(env_id: str, extra: str, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        gym.make(env_id).close()
    except gym.error.DependencyNotInstalled:
        assert_refused(capsys, ["train", "--algo=ppo", f"--env={env_id}"], env_id, f"pip install 'rl-training[{extra}]'")


def test_an_unknown_id_lists_the_three_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--algo=dqn", "--env=cartpol"]) == 2
    message = capsys.readouterr().err
    assert "did you mean 'CartPole-v" in message
    assert sum(message.count(f"'{env_id}'") for env_id in gym.registry) == 3
