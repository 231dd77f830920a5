"""A config of a run that was edited by hand, and what was recorded of earlier changes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from conftest import tiny_config
from test_changes import changes_of, resume
from test_changes import half as half
from test_changes import run as run

from rl_training.cli import main
from rl_training.errors import CheckpointError, ConfigError, DivergenceError
from rl_training.experiment.changes import differences
from rl_training.experiment.config import TrainConfig
from rl_training.runtime.sessions import start_training


def edit(run: Path, **values: Any) -> None:
    file = run / "config.yaml"
    data = yaml.safe_load(file.read_text())
    data["algo_kwargs"].update(values.pop("algo_kwargs", {}))
    file.write_text(yaml.safe_dump({**data, **values}))


def test_an_edited_setting_that_may_change_is_named_with_the_command(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    edit(run, algo_kwargs={"learning_rate": 0.01})
    assert main(["resume", str(run)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line == (
        f"error: {run}/config.yaml was edited: algo_kwargs.learning_rate is 0.01 there and 0.001 in the run; change it with: "
        f"rl-training resume {run} --set=algo_kwargs.learning_rate=0.01"
    )
    assert main(["resume", str(run), "--set=algo_kwargs.learning_rate=0.01", "--quiet"]) == 0  # as the message says
    assert changes_of(run)[0]["settings"] == {"algo_kwargs.learning_rate": {"from": 0.001, "to": 0.01}}


def test_an_edited_setting_that_may_not_change_is_to_be_put_back(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = (run / "config.yaml").read_text()
    edit(run, seed=3, total_timesteps=500, algo_kwargs={"hidden_sizes": [8]})
    assert main(["resume", str(run), "--set=total_timesteps=500"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith("put back seed and algo_kwargs.hidden_sizes, which cannot change in a run that has begun")
    assert "seed is 3 there and 0 in the run" in line
    assert "total_timesteps" not in line
    (run / "config.yaml").write_text(text)
    resume(run, stop_at=130)


def test_another_algorithm_in_the_config_is_named(run: Path) -> None:
    data = yaml.safe_load((run / "config.yaml").read_text())
    del data["algo_kwargs"]["huber_delta"]  # which QR-DQN does not have
    (run / "config.yaml").write_text(yaml.safe_dump({**data, "algo": "qr_dqn"}))
    with pytest.raises(ConfigError, match=r"config.yaml was edited: algo is 'qr_dqn' there and 'dqn' in the run"):
        resume(run)


def test_comments_and_the_order_of_keys_are_no_edit(run: Path) -> None:
    data = yaml.safe_load((run / "config.yaml").read_text())
    (run / "config.yaml").write_text("# mine\n" + yaml.safe_dump(dict(reversed(data.items()))))
    resume(run, stop_at=130)


def test_a_run_without_a_checkpoint_may_be_edited(tmp_path: Path) -> None:
    trainer = start_training(tiny_config("dqn", output_dir=str(tmp_path / "run")), command="test")
    trainer.close()
    edit(tmp_path / "run", seed=3)
    assert resume(tmp_path / "run").config.seed == 3


@pytest.mark.parametrize(
    "metadata", [None, "[]", "{}", '{"changes": 3}', '{"changes": [{"settings": {"seed": {"to": 4}}}]}', "{"]
)
def test_the_metadata_of_others_change_nothing(metadata: str | None, run: Path) -> None:
    (run / "metadata.json").unlink()
    if metadata is not None:
        (run / "metadata.json").write_text(metadata)
    trainer = resume(run, "algo_kwargs.learning_rate=1e-4", stop_at=130)
    assert (trainer.config.seed, trainer.config.algo_kwargs.learning_rate) == (0, 1e-4)
    assert "algo_kwargs.learning_rate" in changes_of(run)[-1]["settings"]


@pytest.mark.parametrize("key", ["total_timesteps.x", "eval.x", "eval", "x.y", "a.b.c", ""])
def test_a_recorded_key_that_no_run_has_changes_nothing(key: str, run: Path) -> None:
    (run / "metadata.json").write_text(json.dumps({"changes": [{"settings": {key: {"to": 4}}}]}))
    if key == "eval":
        with pytest.raises(CheckpointError, match=r"metadata.json is damaged: it records what cannot be: eval "):
            resume(run)
    else:
        resume(run, stop_at=130)


def test_a_recorded_value_that_cannot_be_names_its_file(run: Path) -> None:
    (run / "metadata.json").write_text('{"changes": [{"settings": {"algo_kwargs.learning_rate": {"to": -1}}}]}')
    with pytest.raises(CheckpointError, match=r"run/metadata.json is damaged: .* algo_kwargs.learning_rate: input should be"):
        resume(run)


def test_an_extended_run_of_an_older_version_goes_on(run: Path) -> None:
    metadata = json.loads((run / "metadata.json").read_text())
    del metadata["changes"]
    (run / "metadata.json").write_text(json.dumps(metadata))
    edit(run, total_timesteps=260)  # as ``resume --total-timesteps`` of that version did
    assert resume(run).env_steps == 260


def test_differences_are_those_of_single_settings() -> None:
    first: TrainConfig = tiny_config("dqn")
    second = tiny_config("dqn", seed=4, eval={"interval": 7}, algo_kwargs={"gamma": 0.5})
    assert differences(first, first) == {}
    assert {key: change.after for key, change in differences(first, second).items()}.keys() >= {
        "seed",
        "eval.interval",
        "algo_kwargs.gamma",
    }


def test_a_run_that_diverged_with_a_schedule_goes_on_with_a_lower_learning_rate(tmp_path: Path) -> None:
    hot = {"kind": "piecewise", "points": [[0, 1e-3], [100, 1e-3], [101, 1e30]]}
    config = tiny_config("dqn", algo_kwargs={"learning_rate": hot}, output_dir=str(tmp_path / "run"))
    trainer = start_training(config, command="test")
    with pytest.raises(DivergenceError, match=r"learning_rate \(1e\+30 now\)"):
        trainer.train()
    trainer.close()
    assert resume(tmp_path / "run", "algo_kwargs.learning_rate=1e-4").env_steps == 240
