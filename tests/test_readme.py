"""What the README says of the algorithms is what the algorithms say of themselves, and commands of tables work."""

from __future__ import annotations

import importlib.util
import re
import shlex
from pathlib import Path

import pytest
from conftest import TESTS
from make_stubs import readme_text

from rl_training.cli import main
from rl_training.experiment.metrics import read_metrics


def test_the_tables_are_those_of_this_version() -> None:
    assert (TESTS.parent / "README.md").read_text("utf-8") == readme_text(), "run make stubs"


#: A module that each extra of the table installs.
MODULES = {
    "minigrid": "minigrid",
    "box2d": "Box2D",
    "mujoco": "mujoco",
    "atari": "ale_py",
    "popgym": "popgym",
    "dmc": "shimmy",
}
COMMAND = re.compile(r"^\| ([^|]+) \| (?:`(\w+)`)? ?\| `rl-training (train [^`]+)` \|$", re.MULTILINE)
COMMANDS = COMMAND.findall((TESTS.parent / "README.md").read_text("utf-8"))


def test_the_table_of_packages_is_whole() -> None:
    assert {extra for _, extra, _ in COMMANDS} == {*MODULES, ""}


@pytest.mark.slow
@pytest.mark.parametrize(("extra", "command"), [row[1:] for row in COMMANDS], ids=[row[0] for row in COMMANDS])
def test_a_package_starts_with_its_command(
    extra: str, command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if extra and importlib.util.find_spec(MODULES[extra]) is None:
        pytest.skip(f"rl-training[{extra}] is not installed")
    monkeypatch.chdir(TESTS.parent)
    run = tmp_path / "run"
    code = main([*shlex.split(command), "--total-timesteps", "2000", "--output-dir", str(run), "--quiet"])
    assert code == 0, capsys.readouterr().err
    last = read_metrics(run, "train")[-1]
    assert last["step"] >= 2000
    assert last["updates"] > 0
