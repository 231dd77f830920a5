"""``train --overwrite`` and ``train --init-from``: a run in the place of another one, and from the weights of another one."""

from __future__ import annotations

import itertools
import json
import os
import shutil
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
import yaml
from conftest import ALGORITHMS, final_fingerprint, tiny_config, tiny_values
from forgery import forge
from moments import finish_python

from rl_training import DQN, PPO, managed
from rl_training.cli import main
from rl_training.errors import CheckpointError, ConfigError, SpaceError
from rl_training.experiment.overview import runs_below
from rl_training.experiment.replacing import is_left_over
from rl_training.experiment.run import Initial, Run, open_run
from rl_training.runtime.sessions import resume_training, start_training

OLD_FILES = (
    "fault-step-7.json",
    "evaluation.json",
    "trackers.json",
    "tensorboard/events.out.tfevents.1.step0",
    "wandb/debug.log",
    "checkpoints/set-aside/step-0000000400/policy.json",
)


def train_to(path: Path, stop_at: int | None = None, algo: str = "dqn", init_from: Path | None = None, **values: Any) -> None:
    config = tiny_config(algo, output_dir=str(path), **values)
    trainer = start_training(config, command="test", init_from=init_from, warn=pytest.fail)
    trainer.train(stop_at)
    trainer.close()


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("source") / "source"
    train_to(path, seed=5)
    return path


@pytest.fixture
def old(source: Path, tmp_path: Path) -> Path:
    """A finished run, with everything that a run may hold."""
    copy = shutil.copytree(source, tmp_path / "runs" / "mine", symlinks=True)
    for name in OLD_FILES:
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        (copy / name).write_text("{}")
    return copy


def command(tmp_path: Path, *options: str, algo: str = "dqn", **values: Any) -> list[str]:
    (tmp_path / "c.yaml").write_text(yaml.safe_dump(tiny_values(algo, **{"total_timesteps": 60, **values})))
    return ["train", f"--config={tmp_path}/c.yaml", f"--output-dir={tmp_path}/runs/mine", "--quiet", *options]


def files_of(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


# ------------------------------------------------------------------------------------------------------------ overwrite


def test_a_run_is_replaced(old: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = files_of(old)
    assert main(command(tmp_path)) == 2
    assert "replace it with --overwrite" in capsys.readouterr().err
    assert files_of(old) == before
    assert main(command(tmp_path, "--overwrite")) == 0
    assert [path.name for path in old.parent.iterdir()] == ["mine"]
    assert not (old / OLD_FILES[0]).exists()
    train_to(tmp_path / "fresh", total_timesteps=60)
    assert final_fingerprint(old) == final_fingerprint(tmp_path / "fresh")
    assert main(["resume", str(old), "--total-timesteps=70", "--quiet"]) == 0


def test_there_may_be_nothing_to_replace(tmp_path: Path) -> None:
    (tmp_path / "runs" / "mine").mkdir(parents=True)
    assert main(command(tmp_path, "--overwrite")) == 0
    assert (tmp_path / "runs" / "mine" / "evaluation.json").exists()


def test_without_an_output_directory_the_usual_name_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    arguments = [one for one in command(tmp_path) if not one.startswith("--output-dir")]
    for options in ([], [], ["--overwrite"]):
        assert main([*arguments, *options]) == 0
    names = sorted(path.name for path in (tmp_path / "runs").iterdir())
    assert names == ["dqn-CartPole-v1-seed0", "dqn-CartPole-v1-seed0-2"]
    commands = [json.loads((tmp_path / "runs" / name / "metadata.json").read_text())["command"] for name in names]
    assert ["--overwrite" in one for one in commands] == [True, False]


INSIDE = ("checkpoints/notes.txt", "checkpoints/step-0000000240/a.tex", "initial/a.tex", "tensorboard/a.jpg", "log.bak")


@pytest.mark.parametrize("kind", ["notes", *INSIDE, "checkpoint", "no metadata", "photos", "link"])
def test_nothing_else_is_ever_replaced(kind: str, old: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    expected = "is no run directory: it has no "
    if kind == "notes":
        (old / "notes.txt").write_text("mine")
        expected = "also holds 'notes.txt', which no run has written, so it is not overwritten; move that away"
    elif kind in INSIDE:
        (old / kind).parent.mkdir(exist_ok=True)
        (old / kind).write_text("mine")
        expected = f"also holds '{kind}', which no run has written"
    elif kind == "no metadata":
        (old / "metadata.json").unlink()
    elif kind == "link":
        old.rename(tmp_path / "elsewhere")
        old.symlink_to(tmp_path / "elsewhere")
        expected = "is a symbolic link"
    else:
        checkpoint = shutil.copytree((old / "checkpoints" / "latest").resolve(), tmp_path / "checkpoint")
        shutil.rmtree(old)
        if kind == "checkpoint":
            checkpoint.rename(old)
        else:
            old.mkdir()
            (old / "config.yaml").write_text("mine: true\n")
            (old / "a.jpg").write_bytes(b"a picture")
    before = files_of(old)
    assert main(command(tmp_path, "--overwrite")) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert expected in line
    assert files_of(old) == before


def test_a_run_that_is_being_trained_is_not_replaced(old: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trainer = resume_training(old, warn=pytest.fail)
    before = files_of(old)
    assert main(command(tmp_path, "--overwrite")) == 2
    assert "another process is training in" in capsys.readouterr().err
    assert files_of(old) == before
    trainer.close()


@pytest.mark.parametrize("mistake", [{"env_id": "Pendulum-v1"}, {"algo_kwargs": {"learning_rate": -1}}])
def test_a_mistake_in_the_new_run_leaves_the_old_one(mistake: dict[str, Any], old: Path, tmp_path: Path) -> None:
    before = files_of(old)
    assert main(command(tmp_path, "--overwrite", **mistake)) == 2
    assert files_of(old) == before


def test_a_run_that_cannot_be_created_leaves_the_old_one(old: Path) -> None:
    before = files_of(old)
    config = tiny_config("dqn", output_dir=str(old))
    with pytest.raises(TypeError):
        Run.create(config, "test", overwrite=True, initial=Initial("?", {"policy": {"weights": object()}}))
    assert files_of(old) == before
    assert [path.name for path in old.parent.iterdir()] == ["mine"]


def test_what_a_killed_process_had_set_aside_is_removed(old: Path, tmp_path: Path) -> None:
    shutil.copytree(old, old.with_name(".replaced-mine"), symlinks=True)
    assert main(command(tmp_path, "--overwrite")) == 0
    assert [path.name for path in old.parent.iterdir()] == ["mine"]


CREATE_AND_DIE = """
import os, sys
from pathlib import Path
from rl_training.experiment.config import load_config_data, resolve_config
from rl_training.experiment.run import Run
folder, left = sys.argv[1], int(sys.argv[2])
config = resolve_config({**load_config_data(folder + "/c.yaml"), "output_dir": folder + "/runs/mine"})

def strike(event, arguments):
    global left
    if event in ("os.rename", "os.mkdir", "shutil.rmtree") or (event == "open" and "/runs/.new-" in str(arguments[0])):
        left -= 1
        if left < 0:
            os._exit(9)

sys.addaudithook(strike)
Run.create(config, "new", overwrite=True)
"""


def test_a_kill_while_a_run_is_replaced_leaves_one_of_the_two(old: Path, tmp_path: Path) -> None:
    """A process that dies before any of the calls that replace a run."""
    command(tmp_path)
    kept = shutil.copytree(old, tmp_path / "kept", symlinks=True)
    commands = []
    for calls in itertools.count():
        done = finish_python("-c", CREATE_AND_DIE, tmp_path, str(calls))
        assert done.returncode in (0, 9), done.stderr
        beside = [path for path in old.parent.iterdir() if not is_left_over(path)]
        assert runs_below(old.parent) == beside
        open_run(old).close()
        commands.append(json.loads((old / "metadata.json").read_text())["command"])
        if commands[-1] == "test":
            assert {*files_of(kept)} <= {*files_of(old)}
        if done.returncode == 0:
            break
        shutil.rmtree(old.parent)
        shutil.copytree(kept, old, symlinks=True)
    assert calls > 5
    assert commands == sorted(commands, reverse=True)  # first the old one, then the new one


def test_a_run_that_was_moved_away_is_put_back(old: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = files_of(old)
    for arguments in (["resume", str(old), "--set=seed=9"], command(tmp_path)):
        old.rename(old.with_name(".replaced-mine"))
        assert runs_below(old.parent) == [old.with_name(".replaced-mine")]
        assert main(arguments) == 2
        assert "cannot change" in (line := capsys.readouterr().err) or "already holds a run" in line
        assert files_of(old) == before


def test_the_current_directory_is_not_replaced(
    old: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = files_of(old)
    monkeypatch.chdir(old / "checkpoints")
    for name in ("..", "../../mine"):
        assert main([*command(tmp_path, "--overwrite"), f"--output-dir={name}"]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert line == (
            f"error: the output directory {name} is the current directory or above it, so it is not overwritten; change to "
            "another directory first"
        )
    assert files_of(old) == before


def test_a_link_to_nothing_is_no_directory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "mine").symlink_to(tmp_path / "nothing")
    assert main(command(tmp_path)) == 2
    assert "runs/mine is not a directory; choose another --output-dir" in capsys.readouterr().err


def test_a_name_without_room_for_a_prefix_is_one_sentence_in_python_too(old: Path) -> None:
    long = old.rename(old.with_name("x" * 250))
    before = files_of(long)
    with pytest.raises(ConfigError, match=r"cannot write in the output directory .*x: File name too long; choose another"):
        DQN("CartPole-v1", output_dir=str(long), overwrite=True).learn(60)
    assert files_of(long) == before


def test_python_overwrites_too(old: Path) -> None:
    settings: dict[str, Any] = {"output_dir": str(old), "learning_starts": 20, "batch_size": 8, "total_timesteps": 60}
    with pytest.raises(ConfigError, match="already holds a run"):
        DQN("CartPole-v1", **settings).learn()
    with DQN("CartPole-v1", overwrite=True, **settings) as agent:
        agent.learn(40)
        agent.learn(60)  # continues, and does not overwrite itself
    assert not (old / OLD_FILES[0]).exists()
    with DQN.from_config("dqn/cartpole", overwrite=True, train_freq=20, gradient_steps=1, **settings) as agent:
        agent.learn()
    assert json.loads((old / "metadata.json").read_text())["command"] == "DQN.learn"


# ------------------------------------------------------------------------------------------------------------- init from


def weights_of(path: Path) -> dict[str, torch.Tensor]:
    return managed("dqn").load(path).policy.state_dict()


class OtherPole(gym.Wrapper[Any, Any, Any, Any]):
    """Another environment with the spaces of CartPole."""

    def step(self, action: Any) -> Any:
        obs, reward, *rest = self.env.step(action)
        return (obs, -float(reward), *rest)


@pytest.mark.parametrize("which", [".", "checkpoints/best", "checkpoints/latest"])
def test_a_run_starts_from_the_weights_and_nothing_else(which: str, source: Path, tmp_path: Path) -> None:
    config = tiny_config("dqn", output_dir=str(tmp_path / "run"))
    trainer = start_training(config, command="test", init_from=source / which, warn=pytest.fail)
    for name, value in weights_of(source / which).items():
        assert torch.equal(trainer.policy.state_dict()[name], value)
        target: Any = trainer.algorithm
        assert torch.equal(target.target.state_dict()[name], value)
    assert (trainer.env_steps, trainer.learner.updates, trainer.episodes.count) == (0, 0, 0)
    trainer.train()
    trainer.close()
    assert json.loads((tmp_path / "run" / "metadata.json").read_text())["init_from"] == str(source / which)


def test_a_run_repeats_and_resumes_exactly_from_its_initial_weights(source: Path, tmp_path: Path) -> None:
    """Stopped after a part, killed before the first checkpoint, or whole: they end in the same bits."""
    whole, parted, killed, new = (tmp_path / name for name in ("whole", "parted", "killed", "new"))
    train_to(whole, init_from=source)
    train_to(parted, 100, init_from=source)
    copy = shutil.copytree(source, tmp_path / "copy", symlinks=True)
    start_training(tiny_config("dqn", output_dir=str(killed)), command="test", init_from=copy).close()
    shutil.rmtree(copy)
    for run in (parted, killed):
        trainer = resume_training(run, warn=pytest.fail)
        trainer.train()
        trainer.close()
        assert final_fingerprint(run) == final_fingerprint(whole)
    train_to(new)
    assert final_fingerprint(new)["files"]["policy.safetensors"] != final_fingerprint(whole)["files"]["policy.safetensors"]


def test_lost_initial_weights_are_missed(source: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    start_training(tiny_config("dqn", output_dir=str(run)), command="test", init_from=source).close()
    shutil.rmtree(run / "initial")
    with pytest.raises(CheckpointError, match=r"started from the weights of '.*source', but its directory initial/, which"):
        resume_training(run, warn=pytest.fail)


def test_the_same_spaces_are_enough(source: Path, tmp_path: Path) -> None:
    agent = DQN(lambda: OtherPole(gym.make("CartPole-v1")), init_from=source, hidden_sizes=[16])
    obs = np.array([[0.01, -0.02, 0.03, 0.04], [0.4, 0.3, -0.2, 0.1]], np.float32)
    np.testing.assert_array_equal(agent.predict(obs)[0], DQN.load(source).predict(obs)[0])
    for name, value in weights_of(source).items():
        assert torch.equal(agent.policy.state_dict()[name], value)
    agent.close()


@pytest.mark.parametrize("algo", ["dqn", "sac"])
def test_training_does_not_start_from_weights_for_inputs_of_another_scale(algo: str, tmp_path: Path) -> None:
    size = {"dqn": 4, "sac": 3}[algo]  # CartPole and Pendulum
    first = tmp_path / "first"
    train_to(first, algo=algo, algo_kwargs={"observation_scale": [2.0] * size})
    train_to(tmp_path / "same", algo=algo, init_from=first, algo_kwargs={"observation_scale": [2.0] * size})
    with pytest.raises(ConfigError, match=r"observation_scale is \[2.0, .* in the checkpoint .* and \[1.0, .* here"):
        train_to(tmp_path / "other", algo=algo, init_from=first, algo_kwargs={"observation_scale": [1.0] * size})


def test_other_spaces_algorithms_and_networks_are_one_sentence(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    option = f"--init-from={source}"
    place = (source / "checkpoints" / "latest").resolve()
    for values, words in (
        ({"algo": "ppo"}, f"{place} holds a dqn agent, but ppo can only start from the weights of a ppo agent"),
        ({"env_id": "Acrobot-v1"}, "was trained on CartPole-v1, whose observations differ from those of Acrobot-v1"),
        ({"env_id": "Acrobot-v1"}, "cannot start from its weights (shape (4,) there, (6,) here); use an environment of"),
        ({"algo_kwargs": {"hidden_sizes": [7]}}, f"the network of the checkpoint {place} differs: '"),
        ({"algo_kwargs": {"hidden_sizes": [7]}}, "is (16, 4) there and (7, 4) here; use the settings of the network"),
        ({"algo_kwargs": {"noisy": True}}, "is missing there and"),
    ):
        assert main(command(tmp_path, option, **values)) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert words in line
        assert not (tmp_path / "runs").exists()
    assert main(command(tmp_path, f"--init-from={tmp_path}/none")) == 2
    assert f"there is no run or checkpoint at {tmp_path}/none" in capsys.readouterr().err
    for error, make in (
        (SpaceError, lambda: DQN("Acrobot-v1", init_from=source)),
        (ConfigError, lambda: PPO("CartPole-v1", init_from=source)),
        (CheckpointError, lambda: DQN("CartPole-v1", init_from=tmp_path)),
    ):
        with pytest.raises(error):
            make().learn(10)


def test_a_run_can_take_its_own_place_with_its_own_weights(old: Path, tmp_path: Path) -> None:
    expected = weights_of(old)
    assert main(command(tmp_path, "--overwrite", f"--init-from={old}")) == 0
    for name, value in weights_of(old / "initial").items():
        assert torch.equal(value, expected[name])


def test_no_module_that_the_checkpoint_names_is_imported(source: Path, tmp_path: Path) -> None:
    """The names in the checkpoint are compared as text."""
    (tmp_path / "evil_algos.py").write_text("raise AssertionError('imported')\n")
    copy = shutil.copytree((source / "checkpoints" / "latest").resolve(), tmp_path / "copy")
    agent = json.loads((copy / "agent.json").read_text())
    agent["config"]["algo"] = f"{tmp_path}/evil_algos.py:Evil"
    (copy / "agent.json").write_text(json.dumps(agent))
    forge(copy)
    with pytest.raises(ConfigError, match=r"holds a .*evil_algos.py:Evil agent, but dqn can only"):
        DQN("CartPole-v1", init_from=copy).learn(10)


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_every_algorithm_starts_from_its_own_weights(algo: str, tmp_path: Path) -> None:
    train_to(tmp_path / "first", 40, algo, total_timesteps=60)
    train_to(tmp_path / "second", 40, algo, init_from=tmp_path / "first", seed=3, total_timesteps=60)
    first, second = (managed(algo).load(tmp_path / name).policy.state_dict() for name in ("first", "second/initial"))
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_new_weights_have_the_permissions_of_the_umask(source: Path, tmp_path: Path) -> None:
    start_training(tiny_config("dqn", output_dir=str(tmp_path / "run")), command="test", init_from=source).close()
    mask = os.umask(0)
    os.umask(mask)
    assert (tmp_path / "run" / "initial" / "policy.safetensors").stat().st_mode & 0o777 == 0o666 & ~mask
