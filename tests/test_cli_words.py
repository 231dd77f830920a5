"""The command line's words: names, numbers, help, the first answer, and readers that leave."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import warnings
from pathlib import Path

import gymnasium as gym
import pytest
import yaml
from conftest import ALGORITHMS, TESTS, tiny_values
from moments import PATIENCE, finish, finish_python, start
from test_cli import written_config

from rl_training import cli
from rl_training.cli import main

COMMANDS = ("train", "resume", "eval", "predict", "export", "list", "show", "plot", "report", "bench")


def test_a_number_may_be_written_with_an_exponent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("my.yaml").write_text(yaml.safe_dump(tiny_values("dqn")))
    options = ["--set=algo_kwargs.buffer_size=2e2", "--device=auto", "--algo=DQN", "--output-dir=run"]
    assert main(["train", "--config=my.yaml", "--quiet", "--total-timesteps=6e1", *options]) == 0
    config = written_config(Path("run"))
    assert (config["total_timesteps"], config["algo_kwargs"]["buffer_size"]) == (60, 200)
    assert (config["algo"], config["device"]) == ("dqn", "auto")
    assert main(["resume", "run", "--quiet", "--total-timesteps=1e2"]) == 0


@pytest.mark.parametrize("name", ["PPO", "qr-dqn", "QRDQN", "DrQv2", "Recurrent_PPO"])
def test_an_algorithm_is_found_in_any_letters(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", name]) == 0
    assert capsys.readouterr().out


@pytest.mark.parametrize(
    ("override", "place"), [("batch_size=4", "algo_kwargs.batch_size"), ("final_episodes=4", "eval.final_episodes")]
)
def test_a_setting_without_its_group_is_pointed_to(override: str, place: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--config=dqn/cartpole", f"--set={override}"]) == 2
    assert f"did you mean '{place}'?" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["point", "point.py", "./point.py"])
def test_a_file_without_its_class_is_no_misspelt_id(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("point.py").write_text("class Point:\n    pass\n")
    assert main(["train", "--algo=ppo", f"--env={name}"]) == 2
    error = capsys.readouterr().err
    assert "point.py is a file: name the class in it too, as in point.py:MyEnv" in error
    assert "did you mean" not in error


def test_a_warning_of_gymnasium_is_shown_without_its_colours(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def complain(arguments: object) -> int:
        gym.logger.warn("an old id")
        warnings.warn("two\nlines\x07", stacklevel=1)
        return 0

    monkeypatch.setitem(cli.COMMANDS, "list", complain)
    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)  # puts it back
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        assert main(["list"]) == 0
    assert capsys.readouterr().err.splitlines() == ["warning: an old id", "warning: two lines\\x07"]


def test_version_and_a_bare_command(capsys: pytest.CaptureFixture[str]) -> None:
    from rl_training import __version__

    with pytest.raises(SystemExit) as stopped:
        main(["--version"])
    assert (stopped.value.code, capsys.readouterr().out) == (0, f"rl-training {__version__}\n")
    assert main([]) == 0
    assert "commands:" in capsys.readouterr().out


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_each_command_shows_examples(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main([command, "--help"])
    assert stopped.value.code == 0
    assert re.search(rf"examples:\n  rl-training {command}", capsys.readouterr().out)


def test_the_examples_of_help_can_be_parsed(capsys: pytest.CaptureFixture[str]) -> None:
    import shlex

    from rl_training.arguments import make_parser

    for command in COMMANDS:
        with pytest.raises(SystemExit):
            main([command, "--help"])
        examples = capsys.readouterr().out.partition("examples:\n")[2].strip().splitlines()
        assert examples
        for example in examples:
            program, *arguments = shlex.split(example.partition("<")[0])
            assert program == "rl-training"
            make_parser().parse_args(arguments)


@pytest.mark.parametrize("arguments", [["--help"], ["train", "--help"]], ids=" ".join)
def test_the_first_answer_needs_no_torch(arguments: list[str], tmp_path: Path) -> None:
    slow = ("torch", "gymnasium", "matplotlib", "onnx", "rich", "tensorboard")
    code = (
        "import sys\nfrom rl_training.cli import main\n"
        f"try:\n    main({arguments!r})\nexcept SystemExit:\n    pass\n"
        f"print('imported:', [name for name in {slow!r} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert "rl-training" in done.stdout
    assert "imported: []" in done.stdout


def test_training_without_compilation_does_not_import_the_compiler() -> None:
    """Torch brings in sympy, 0.8 seconds, on some harmless calls. Every algorithm trains, in one process."""
    data = json.dumps([tiny_values(algo, compile="off", total_timesteps=64) for algo in ALGORITHMS])
    code = (
        "import json, sys\n"
        "from rl_training.experiment.config import resolve_config\n"
        "from rl_training.runtime.trainer import Trainer\n"
        "for data in json.load(sys.stdin):\n"
        "    trainer = Trainer(resolve_config(data))\n"
        "    assert trainer.train().updates, data['algo']\n"
        "    assert 'sympy' not in sys.modules, data['algo']\n"
    )
    done = finish_python("-c", code, cwd=TESTS, stdin=data)
    assert done.returncode == 0, done.stderr


def test_the_console_script_is_the_same_command(tmp_path: Path) -> None:
    script = Path(sys.executable).with_name("rl-training")
    done = subprocess.run([script, "--help"], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout == finish("--help", cwd=tmp_path).stdout
    assert all(command in done.stdout for command in COMMANDS)


def test_a_reader_that_leaves_early_is_no_error(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    process = start("show", "dqn/cartpole", cwd=tmp_path, stdout=writer)
    os.close(writer)
    assert process.communicate(timeout=PATIENCE)[1] == ""
    assert process.returncode == 0


def test_the_collector_is_off_only_while_torch_is_imported() -> None:
    script = (
        "import builtins, gc, sys\n"
        "real, seen = builtins.__import__, []\n"
        "def importing(name, *rest, **options):\n"
        "    if name == 'torch': seen.append(gc.isenabled())\n"
        "    return real(name, *rest, **options)\n"
        "builtins.__import__ = importing\n"
        "from rl_training.cli import main\n"
        "assert main(['predict', 'nothing']) == 2 and seen[0] is False and gc.isenabled(), seen[:3]\n"
        "frozen = gc.get_freeze_count()\n"
        "assert main(['predict', 'nothing']) == 2 and gc.get_freeze_count() == frozen > 10_000"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=PATIENCE)
