"""An algorithm with a network of its own, in a package of its own, is used like one of ours once it is installed."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from conftest import EXPORTED, TESTS, final_fingerprint
from moments import finish, finish_python, kill, start, wait_for_checkpoint, waiting_at

PATH = "munchausen.algorithm:MunchausenDQN"
TINY = {"blocks": 1, "width": 8, "batch_size": 8, "buffer_size": 150, "learning_starts": 20}


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment variables of a process in which the package is installed."""
    folder = tmp_path_factory.mktemp("out_of_tree")
    source = shutil.copytree(TESTS / "out_of_tree", folder / "source")
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-build-isolation"]
    subprocess.run([*command, "--no-deps", "--target", str(folder / "site"), str(source)], check=True)
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder / "site"), os.environ["PYTHONPATH"]])}


@pytest.fixture(autouse=True)
def place(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exports go to the current directory unless they are given a path."""
    monkeypatch.chdir(tmp_path_factory.mktemp("place"))


def run(env: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    return finish(*arguments, env=env)


def config_file(path: Path, algo: str, **values: Any) -> str:
    settings = {
        "algo": algo,
        "env_id": "rl_training_test_envs:Waiting-v0",
        "total_timesteps": 300,
        "eval": {"interval": 100, "episodes": 2, "final_episodes": 2, "num_envs": 2},
        "checkpoint": {"interval": 50},
        "log": {"interval": 25, "tensorboard": False},
        "algo_kwargs": TINY,
        **values,
    }
    path.write_text(yaml.safe_dump(settings))
    return str(path)


def test_it_is_listed_and_exported_under_its_name(installed: dict[str, str]) -> None:
    listed = run(installed, "list")
    assert "  munchausen     DQN with the log-policy as an additional reward" in listed.stdout
    code = "import rl_training; print(rl_training.MunchausenDQN.algo_name, 'MunchausenDQN' in rl_training.__all__)"
    done = finish_python("-c", code, env=installed)
    assert done.stdout.split() == ["munchausen", "True"]


def test_it_trains_resumes_after_a_kill_evaluates_predicts_and_exports(installed: dict[str, str], tmp_path: Path) -> None:
    config = config_file(tmp_path / "config.yaml", "munchausen")
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    done = run(installed, "train", "--config", config, "--output-dir", str(whole))
    assert done.returncode == 0, done.stderr
    env = {**waiting_at(200), **installed}
    process = start("train", "--config", config, "--output-dir", str(killed), env=env)
    wait_for_checkpoint(killed, process)
    kill(process)
    resumed = run(installed, "resume", str(killed))
    assert resumed.returncode == 0, resumed.stderr
    assert final_fingerprint(killed) == final_fingerprint(whole)
    use(installed, killed, tmp_path, "safetensors")


@pytest.mark.parametrize("exported", EXPORTED)
def test_it_is_used_by_its_path_alone(installed: dict[str, str], exported: str, tmp_path: Path) -> None:
    config = config_file(tmp_path / "config.yaml", PATH)
    done = run(installed, "train", "--config", config, "--output-dir", str(tmp_path / "run"))
    assert done.returncode == 0, done.stderr
    use(installed, tmp_path / "run", tmp_path, exported)


def use(env: dict[str, str], trained: Path, folder: Path, exported: str) -> None:
    """Evaluates, predicts and exports, all in one process."""
    commands = [
        ["eval", str(trained), "--episodes", "2", "--json"],
        ["predict", str(trained), "--obs", "[0.5, 0.1]"],
        ["export", str(trained), "--format", exported, "--output", str(folder / f"p.{exported}")],
    ]
    code = "import json, sys; from rl_training.cli import main; sys.exit(max(main(one) for one in json.loads(sys.argv[1])))"
    done = finish_python("-c", code, json.dumps(commands), env=env)
    assert done.returncode == 0, done.stderr
    assert len(json.loads(done.stdout.splitlines()[0])["returns"]) == 2


@pytest.mark.slow
def test_it_compiles_for_free(installed: dict[str, str], tmp_path: Path) -> None:
    """Both paths by the graph's own operations: the real compiler is tested with the algorithms of this package."""
    script = f"""
import torch
import rl_training.algorithms.compiled_graph as compiled
class Traced(compiled.CompiledGraph):
    def prepare(self, batch):
        graph = self._graphs[compiled._layout(batch)] = self.trace(batch)
        return graph
compiled.CompiledGraph = Traced
from rl_training.experiment.config import resolve_config
from rl_training.runtime.trainer import Trainer
states = []
for mode in ("off", "on"):
    values = {{"algo": "munchausen", "env_id": "CartPole-v1", "compile": mode, "algo_kwargs": {TINY}}}
    trainer = Trainer(resolve_config(values))
    trainer.train(60)
    assert trainer.compilation.in_force == (mode == "on") and trainer.learner.updates > 30
    states.append(trainer.policy.state_dict())
for name, value in states[0].items():
    torch.testing.assert_close(value, states[1][name], rtol=1e-3, atol=1e-4)
"""
    done = finish_python("-c", script, env=installed)
    assert done.returncode == 0, done.stderr


def test_its_target_by_hand() -> None:
    """Two actions, tau = 1: log pi of Q = [0, log 3] is [log 1/4, log 3/4]; a soft value is log-sum-exp."""
    sys.path.insert(0, str(TESTS / "out_of_tree"))
    from munchausen.algorithm import MunchausenConfig, munchausen_target

    config = MunchausenConfig(temperature=1.0, munchausen_alpha=0.5, lowest_log_policy=-1.0)
    q = torch.tensor([[0.0, 3.0], [0.0, 3.0]]).log1p()  # log 1 and log 4: probabilities 1/5 and 4/5
    found = munchausen_target(torch.tensor([1.0, 1.0]), torch.tensor([0.5, 0.0]), q, q, torch.tensor([1, 0]), config)
    bonus = torch.tensor([0.8, torch.e**-1.0]).log() * 0.5  # log 1/5 is clipped at -1
    torch.testing.assert_close(found, torch.tensor([1.0 + 0.5 * torch.tensor(5.0).log(), 1.0]) + bonus)


@pytest.mark.parametrize(
    ("algo", "expected"),
    [
        ("nowhere.algos:MyDQN", "cannot import the module 'nowhere.algos'"),
        ("munchausen.algorithm:MunchausenDQM", "has no 'MunchausenDQM'; did you mean 'MunchausenDQN'?"),
        ("munchausen.algorithm:MunchausenConfig", "is not an algorithm: it must be a subclass"),
        ("rl_training.algorithms.value:ValueAlgorithm", "is not a complete algorithm: it lacks name, summary"),
        ("munchhausen", "unknown algorithm 'munchhausen'; did you mean 'munchausen'?"),
        (":MyDQN", "cannot import the module ''"),
    ],
)
def test_a_wrong_path_is_one_sentence(algo: str, expected: str, installed: dict[str, str], tmp_path: Path) -> None:
    done = run(installed, "train", "--config", config_file(tmp_path / "config.yaml", algo))
    assert done.returncode == 2
    assert expected in done.stderr
    assert "Traceback" not in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["config.yaml"]


def announce(site: Path, package: str, entry: str, source: str) -> None:
    """Puts a package with an entry point where Python finds installed ones."""
    (site / f"{package}.py").write_text(source)
    info = site / f"{package}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[rl_training.algorithms]\n{entry}\n")


def test_a_broken_or_clashing_package_leaves_the_others_alone(tmp_path: Path) -> None:
    announce(tmp_path, "broken_algos", "broken = broken_algos:Broken", "raise RuntimeError('it needs a licence')")
    clash = "from rl_training.algorithms.dqn import DQN as Ours\n\nclass DQN(Ours):\n    name = 'dqn2'\n    summary = 'x'\n"
    announce(tmp_path, "clashing_algos", "dqn2 = clashing_algos:DQN", clash)
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ["PYTHONPATH"]])}
    listed = run(env, "list")
    assert listed.returncode == 0
    assert "Traceback" not in listed.stderr
    assert "RuntimeError: it needs a licence" in listed.stderr
    assert "use algo: clashing_algos:DQN" in listed.stderr
    assert "dqn2" not in listed.stdout
    ours = "import rl_training; from rl_training.algorithms.dqn import DQN; print(rl_training.DQN.algorithm_class is DQN)"
    done = subprocess.run([sys.executable, "-W", "error", "-c", ours], env=env, capture_output=True, text=True)
    assert done.stdout.split() == ["True"], done.stderr  # and without a warning: installed packages are searched last
    theirs = (
        "import clashing_algos; from rl_training import managed; "
        "print(managed('clashing_algos:DQN') is managed(clashing_algos.DQN))"
    )
    done = finish_python("-c", theirs, env=env)
    assert done.stdout.split() == ["True"], done.stderr


@pytest.mark.slow  # a fresh interpreter, as in the one before
def test_a_package_that_imports_from_ours_while_it_is_imported_is_found(tmp_path: Path) -> None:
    source = (
        "from rl_training import load_agent, DQN\nfrom rl_training.algorithms.dqn import DQN as Ours\n\n"
        "class Late(Ours):\n    name = 'late'\n    summary = 'x'\n"
    )
    announce(tmp_path, "late_algos", "late = late_algos:Late", source)
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ["PYTHONPATH"]])}
    code = "import late_algos, rl_training; print(rl_training.Late.algorithm_class is late_algos.Late)"
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], env=env, capture_output=True, text=True)
    assert done.stdout.split() == ["True"], done.stderr
