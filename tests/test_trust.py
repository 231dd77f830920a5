"""A module that only a run names is imported from trusted places; nothing is imported to find out where it is."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import CLI
from forgery import OBS, assert_refused, replace_in_all
from moments import PATIENCE

from rl_training.api import DQN, load_agent
from rl_training.cli import main
from rl_training.errors import ConfigError
from rl_training.experiment.config import resolve_config
from rl_training.experiment.run import step_directories
from rl_training.experiment.trust import Trust
from rl_training.runtime import export
from rl_training.runtime.export import load_exported
from rl_training.runtime.inference import load_policy

EVIL = "from pathlib import Path\nPath(__file__).with_name('executed').touch()\n"


@pytest.fixture
def run(finished_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run that is the current directory, where Python searches for modules, and that has modules of its own."""
    path = Path(shutil.copytree(finished_run, tmp_path / "run", symlinks=True))
    (path / "evilmod.py").write_text(EVIL)
    monkeypatch.syspath_prepend("")
    monkeypatch.chdir(path)
    monkeypatch.delitem(sys.modules, "evilmod", raising=False)
    return path


def name_in(run: Path, **values: str) -> None:
    """Writes other names into a run's config and its checkpoints."""
    agent = json.loads((step_directories(run)[0] / "agent.json").read_text())
    agent["config"].update(values)
    replace_in_all(run, "agent.json", json.dumps(agent))
    text = (run / "config.yaml").read_text()
    for key, value in values.items():
        text = "".join(f"{key}: {value}\n" if line.startswith(f"{key}:") else f"{line}\n" for line in text.splitlines())
    (run / "config.yaml").write_text(text)


COMMANDS = {
    "eval": ["eval", ".", "--episodes", "1"],
    "film": ["eval", ".", "--episodes", "1", "--video", "x.gif"],
    "predict": ["predict", ".", "--obs", OBS],
    "export": ["export", ".", "--format", "safetensors"],
    "resume": ["resume", ".", "--quiet"],
}


@pytest.mark.parametrize(
    ("setting", "command"),
    [("env_id", "eval"), ("env_id", "film"), ("env_id", "resume"), *(("algo", command) for command in COMMANDS)],
)
def test_a_module_of_the_run_directory_is_not_imported(
    run: Path, setting: str, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    name_in(run, **{setting: "evilmod:CartPole-v1"})
    assert_refused(capsys, COMMANDS[command], "the module 'evilmod'", str(run / "evilmod.py"), "--trust-env-module")
    assert not (run / "executed").exists()
    assert "evilmod" not in sys.modules


@pytest.mark.parametrize("command", ["predict", "export"])
def test_what_makes_no_environment_does_not_ask_for_its_module(run: Path, command: str) -> None:
    name_in(run, env_id="evilmod:CartPole-v1")
    assert main(COMMANDS[command]) == 0
    assert not (run / "executed").exists()


@pytest.mark.parametrize("setting", ["env_id", "algo"])
def test_plot_imports_nothing_that_a_run_names(run: Path, setting: str) -> None:
    name_in(run, **{setting: "evilmod:CartPole-v1"})
    assert main(["plot", ".", "--output", "x.png"]) == 0
    assert not (run / "executed").exists()


@pytest.mark.parametrize("command", ["eval", "resume"])
def test_a_module_is_imported_if_the_user_trusts_it(run: Path, command: str) -> None:
    name_in(run, env_id="evilmod:CartPole-v1")
    assert main([*COMMANDS[command], "--trust-env-module"]) == 0
    assert (run / "executed").exists()


def test_in_python_too(run: Path) -> None:
    name_in(run, env_id="evilmod:CartPole-v1")
    agent = load_agent(".")
    for use in (lambda: agent.evaluate(1), lambda: agent.film("x.gif"), lambda: agent.learn(250), lambda: DQN.resume(".")):
        with pytest.raises(ConfigError, match="trust_modules=True"):
            use()
    load_agent(".", env="CartPole-v1").evaluate(1)  # the user's own name
    assert not (run / "executed").exists()
    load_agent(".", trust_modules=True).evaluate(1)
    assert (run / "executed").exists()
    sys.modules.pop("evilmod")
    DQN.load(".", trust_modules=True).evaluate(1)
    DQN.resume(".", trust_modules=True).close()


def test_an_exported_policy_names_no_other_module_either(run: Path, tmp_path: Path) -> None:
    agent = load_agent(".")
    object.__setattr__(agent.config, "algo", "evilmod:Evil")
    with pytest.raises(ConfigError, match="the module 'evilmod'"):
        export._export_safetensors(agent.policy, agent.config, tmp_path / "p.safetensors")
    with pytest.raises(ConfigError, match="the module 'evilmod'"):
        load_exported(tmp_path / "p.safetensors")
    assert not (run / "executed").exists()


def add_plugin(run: Path) -> None:
    """Puts a package that announces an algorithm into a run, where importlib.metadata finds it if Python searches there."""
    info = run / "evil-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: evil\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[rl_training.algorithms]\nevil = evilmod:Evil\n")


@pytest.mark.parametrize("command", COMMANDS)
def test_a_plugin_in_the_run_directory_is_not_loaded(run: Path, command: str, capsys: pytest.CaptureFixture[str]) -> None:
    add_plugin(run)
    name_in(run, algo="evil")
    assert_refused(capsys, COMMANDS[command], "unknown algorithm 'evil'")
    assert not (run / "executed").exists()


def test_the_command_as_it_is_typed_in_a_forged_run(run: Path) -> None:
    add_plugin(run)
    name_in(run, env_id="evilmod:CartPole-v1")
    done = subprocess.run([*CLI, *COMMANDS["eval"]], capture_output=True, text=True, timeout=PATIENCE)
    assert (done.returncode, done.stdout) == (2, "")
    assert str(run / "evilmod.py") in done.stderr
    assert "Traceback" not in done.stderr
    assert not (run / "executed").exists()


# ------------------------------------------------------------------------------------------------ where a module is


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder on the search path, with a package that must not be imported."""
    for name in ("boom", "boom/inner"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise SystemExit\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def test_pythonpath_is_trusted_unless_it_is_the_run(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = tmp_path / "run"
    run.mkdir()
    for name in ("boom", "boom.inner"):
        with pytest.raises(ConfigError, match=r"boom/__init__\.py"):
            Trust(run).require_env(f"{name}:Env-v0")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(["", str(place)]))
    for name in ("boom", "boom.inner", "boom.missing", "no_such_module"):
        Trust(run).require_env(f"{name}:Env-v0")
    with pytest.raises(ConfigError, match="boom"):
        Trust(place).require_env("boom:Env-v0")


def test_an_empty_entry_of_pythonpath_is_no_choice(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)
    monkeypatch.setenv("PYTHONPATH", os.pathsep)
    with pytest.raises(ConfigError, match="boom"):
        Trust(place / "run").require_env("boom:Env-v0")


@pytest.mark.parametrize("module", ["yaml.cyaml", "turtledemo.clock", "rl_training.envs.recall", "gymnasium", "sys"])
def test_installed_packages_are_trusted(module: str, tmp_path: Path) -> None:
    Trust(tmp_path).require_env(f"{module}:Env-v0")
    Trust(tmp_path).require_algo({"algo": f"{module}:Class"})


def test_a_module_in_use_is_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "evilmod", sys)
    Trust(tmp_path).require_env("evilmod:Env-v0")


@pytest.mark.parametrize("module", [".foo", "a b", "../x", "x:y", ""])
def test_what_is_no_name_of_a_module_is_refused(module: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no module's"):
        Trust(tmp_path).require_env(f"{module}:Env-v0")


def test_a_part_of_a_namespace_package_in_an_untrusted_place_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for side in ("good", "bad"):
        (tmp_path / side / "shared_namespace").mkdir(parents=True)
        monkeypatch.syspath_prepend(str(tmp_path / side))
    (tmp_path / "bad" / "shared_namespace" / "mod.py").write_text(EVIL)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "good"))
    with pytest.raises(ConfigError, match="bad/shared_namespace"):
        Trust(tmp_path / "run").require_env("shared_namespace.mod:Env-v0")


def test_the_users_own_config_may_name_any_module(run: Path) -> None:
    with pytest.raises(ConfigError, match="has no 'Evil'"):
        resolve_config({"algo": "evilmod:Evil", "env_id": "CartPole-v1"})
    assert (run / "executed").exists()


def test_a_sound_run_needs_no_trust(run: Path) -> None:
    load_policy(run, warn=lambda message: None)
    assert main(COMMANDS["eval"]) == 0
