"""Trackers: what they hold is what the log holds, also after a kill, and a tracker that fails stops nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from conftest import final_fingerprint, metrics_without_time, tiny_config, tiny_values
from moments import kill, logged_step, start, wait_until, waiting_at

from rl_training import DQN
from rl_training.errors import ConfigError, MissingExtraError
from rl_training.experiment.config import resolve_config
from rl_training.runtime.sessions import resume_training, start_training
from rl_training.runtime.trackers import logged_before

#: A tracker's records: the steps of each kind, and the mean return at each of them.
Records = dict[str, list[tuple[int, float]]]


def train(path: Path, *hooks: object, stop_at: int | None = None, **values: Any) -> None:
    trainer = start_training(tiny_config("dqn", output_dir=str(path), **values), command="test")
    try:
        trainer.train(stop_at, callbacks=hooks)
    finally:
        trainer.close()


def resume(path: Path, stop_at: int | None = None, **values: Any) -> None:
    """Continues a run, with other settings if some are given."""
    change = (lambda config: resolve_config({**config.describe(), **values})) if values else None
    trainer = resume_training(path, change=change, warn=warnings.warn)
    try:
        trainer.train(stop_at)
    finally:
        trainer.close()


def tracked(*names: str, interval: int = 25) -> dict[str, Any]:
    return {"interval": interval, "trackers": list(names)}


def logged(run: Path) -> Records:
    """What the log and the last evaluation say, at a tracker's precision."""
    records: Records = {"train": [], "eval": [], "final": []}
    for record in metrics_without_time(run):
        if "return_mean" in record:
            records[record["kind"]].append((record["step"], record["return_mean"]))
    final = json.loads((run / "evaluation.json").read_text())
    records["final"] = [(final["step"], final["return_mean"])]
    return records


def rounded(records: Records) -> Records:
    return {kind: [(step, round(value, 3)) for step, value in values] for kind, values in records.items()}


# ------------------------------------------------------------------------------------------------------------ TensorBoard


def events_of(run: Path) -> Any:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    accumulator = EventAccumulator(str(run / "tensorboard"), {"scalars": 0})
    accumulator.Reload()
    return accumulator


def test_tensorboard_shows_the_log_once_also_after_a_resume(tmp_path: Path) -> None:
    run = tmp_path / "run"
    train(run, stop_at=150, log=tracked("tensorboard"))
    begun = int(time.time())
    while int(time.time()) == begun:  # TensorBoard reads files in the order of their names, which begin with the second
        time.sleep(0.02)
    resume(run / "checkpoints" / "step-0000000070")  # what came after it is logged again
    events = events_of(run)
    kinds = ("train", "eval", "final")
    shown = {kind: [(event.step, event.value) for event in events.Scalars(f"{kind}/return_mean")] for kind in kinds}
    assert rounded(shown) == rounded(logged(run))
    assert len(list((run / "tensorboard").glob("events.out.tfevents.*.step*"))) == 2


def test_tensorboard_has_the_hyperparameters(tmp_path: Path) -> None:
    from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

    train(tmp_path / "run", log=tracked("tensorboard"))
    content = events_of(tmp_path / "run").PluginTagToContent("hparams")
    start_info = HParamsPluginData.FromString(content["_hparams_/session_start_info"]).session_start_info.hparams
    assert start_info["algo"].string_value == "dqn"
    assert start_info["algo_kwargs.learning_rate"].number_value == 0.001
    assert start_info["algo_kwargs.hidden_sizes"].string_value == "[16]"
    metrics = HParamsPluginData.FromString(content["_hparams_/experiment"]).experiment.metric_infos
    assert "eval/return_mean" in [metric.name.tag for metric in metrics]


@pytest.mark.parametrize("log", [tracked(), {"interval": 25, "tensorboard": False}], ids=["no trackers", "switched off"])
def test_no_tensorboard_if_none_is_wanted(log: dict[str, Any], tmp_path: Path) -> None:
    train(tmp_path / "run", log=log)
    assert not (tmp_path / "run" / "tensorboard").exists()
    assert not (tmp_path / "run" / "trackers.json").exists()


# ------------------------------------------------------------------------------------------------------------- W&B, MLflow


def in_wandb(run: Path) -> Records:
    """All rows of the run in W&B's files, in their order."""
    from rl_training.runtime.trackers.wandb_tracker import history

    files = sorted((run / "wandb").glob("offline-run-*/run-*.wandb"))
    assert len({file.name for file in files}) == 1, "one run of W&B"
    rows = [row for file in files for row in history(file)]
    assert [row["_step"] for row in rows] == list(range(len(rows)))
    return records_of({key: value for key, value in row.items() if not key.startswith("_")} for row in rows)


def records_of(rows: Iterator[Mapping[str, float]]) -> Records:
    records: Records = {"train": [], "eval": [], "final": []}
    for row in rows:
        (kind,) = {key.partition("/")[0] for key in row}
        if f"{kind}/return_mean" in row:
            records[kind].append((int(row[f"{kind}/step"]), row[f"{kind}/return_mean"]))
    return records


def in_mlflow(run: Path, store: str) -> tuple[Any, Records]:
    """The one run of MLflow that belongs to a run, and its records."""
    from mlflow import MlflowClient

    client = MlflowClient(store)
    experiment = client.get_experiment_by_name("rl_training")
    assert experiment is not None
    mine = json.loads((run / "trackers.json").read_text())["id"]
    (found,) = client.search_runs([experiment.experiment_id], f"tags.`rl_training.run` = '{mine}'")
    records = {
        kind: [(metric.step, metric.value) for metric in client.get_metric_history(found.info.run_id, f"{kind}/return_mean")]
        for kind in ("train", "eval", "final")
    }
    return found, records


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both trackers work here, without any server."""
    pytest.importorskip("wandb")
    pytest.importorskip("mlflow")
    monkeypatch.chdir(tmp_path)  # where MLflow keeps reports
    place = f"sqlite:///{tmp_path / 'mlflow.db'}"
    for name, value in {"MLFLOW_TRACKING_URI": place, "WANDB_MODE": "offline", "WANDB_SILENT": "true"}.items():
        monkeypatch.setenv(name, value)
    return place


@pytest.mark.slow
def test_a_killed_run_stays_one_run_with_every_step_once(store: str, tmp_path: Path) -> None:
    from mlflow import MlflowClient

    values = tiny_values("dqn", total_timesteps=400, log=tracked("tensorboard", "wandb", "mlflow", interval=10))
    values |= {"env_id": "rl_training_test_envs:Waiting-v0", "checkpoint": {"interval": 70}}
    values["eval"] = {"interval": 90, "episodes": 1, "num_envs": 1, "final_episodes": 2}
    config, run = tmp_path / "config.yaml", tmp_path / "run"
    config.write_text(yaml.safe_dump(values))
    process = start("train", "--config", str(config), "--quiet", "--output-dir", str(run), env=waiting_at(280))
    wait_until(lambda: logged_step(run) >= 230, process)
    kill(process)
    steps = [step for step, _ in in_mlflow(run, store)[1]["train"]]
    assert steps[-1] > 210, "more than its last checkpoint has"
    resume(run)
    assert rounded(in_wandb(run)) == rounded(logged(run))
    found, records = in_mlflow(run, store)
    assert rounded(records) == rounded(logged(run))
    assert found.info.status == "FINISHED"
    assert found.data.params["algo_kwargs.hidden_sizes"] == "[16]"
    assert found.data.tags["best_checkpoint"] == str((run / "checkpoints" / "best").resolve())
    report = MlflowClient(store).download_artifacts(found.info.run_id, "report.html", str(tmp_path))
    assert "dqn on rl_training_test_envs:Waiting-v0, seed 0" in Path(report).read_text()
    assert [step for step, _ in records["train"]] == [e.step for e in events_of(run).Scalars("train/return_mean")]


@pytest.mark.slow
def test_a_stopped_run_goes_on_in_the_same_one(store: str, tmp_path: Path) -> None:
    run = tmp_path / "run"
    train(run, Asking(), log=tracked("wandb", "mlflow"))
    assert in_mlflow(run, store)[0].info.status == "KILLED"
    final = json.loads((run / "evaluation.json").read_text())
    resume(run)
    expected = logged(run)
    expected["final"].insert(0, (final["step"], final["return_mean"]))
    assert rounded(in_wandb(run)) == rounded(expected)
    assert rounded(in_mlflow(run, store)[1]) == rounded(expected)


def change_on_the_way(run: Path, *trackers: str) -> None:
    """A run in three sessions. The second has other settings, so the third finds that in the log."""
    train(run, stop_at=100, log=tracked(*trackers))
    resume(run, stop_at=180, eval={"interval": 30, "episodes": 1})
    resume(run)


def test_the_log_of_earlier_sessions_is_sent_without_what_was_changed(tmp_path: Path) -> None:
    change_on_the_way(tmp_path / "run")
    records = metrics_without_time(tmp_path / "run")
    assert {record["kind"] for record in records} == {"train", "eval", "change"}
    expected = [(record["kind"], record["step"]) for record in records if record["kind"] != "change"]
    assert [(kind, step) for kind, step, _ in logged_before(tmp_path / "run")] == expected


@pytest.mark.slow
def test_a_run_that_was_changed_on_the_way_stays_tracked(store: str, tmp_path: Path) -> None:
    run = tmp_path / "run"
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        change_on_the_way(run, "wandb", "mlflow")
    assert [str(one.message) for one in seen if "the tracker" in str(one.message)] == []
    for records in (in_wandb(run), in_mlflow(run, store)[1]):
        assert {**rounded(records), "final": []} == {**rounded(logged(run)), "final": []}


class Asking:
    def on_evaluation(self, result: object) -> str:
        return "once"


@pytest.mark.slow
def test_the_config_and_the_results_are_in_wandb(store: str, tmp_path: Path) -> None:
    from wandb.proto.wandb_internal_pb2 import Record

    from rl_training.runtime.trackers.wandb_tracker import records

    run = tmp_path / "run"
    train(run, log=tracked("wandb"))
    (file,) = (run / "wandb").glob("offline-run-*/run-*.wandb")
    found = [Record.FromString(content) for content in records(file)]
    config = {item.key: item.value_json for record in found if record.HasField("run") for item in record.run.config.update}
    assert json.loads(config["algo"]) == "dqn"
    assert json.loads(config["algo_kwargs"])["hidden_sizes"] == [16]
    summary = {item.key: item.value_json for record in found for item in record.summary.update}
    assert json.loads(summary["best_checkpoint"]) == str((run / "checkpoints" / "best").resolve())
    assert json.loads(summary["status"]) == "finished"
    (report,) = (run / "wandb").glob("offline-run-*/files/media/html/report*.html")
    assert "dqn on CartPole-v1, seed 0" in report.read_text()


SYNCED = """
import sys, wandb
from pathlib import Path
from test_trackers import tracked, train
run = wandb.init(project="theirs", dir=".", sync_tensorboard=True)
train(Path("run"), log=tracked("tensorboard"))
run.finish()
"""


@pytest.mark.slow
def test_wandb_sees_our_tensorboard_events(store: str, tmp_path: Path) -> None:
    """``sync_tensorboard`` of a W&B run that the user has begun."""
    from rl_training.runtime.trackers.wandb_tracker import history

    env = {name: value for name, value in os.environ.items() if name != "WANDB_SERVICE"}  # that of earlier tests
    subprocess.run([sys.executable, "-c", SYNCED], cwd=tmp_path, check=True, env=env)
    (file,) = (tmp_path / "wandb").glob("offline-run-*/run-*.wandb")
    rows = [row for row in history(file) if "train/return_mean" in row]
    assert [row["global_step"] for row in rows] == [step for step, _ in logged(tmp_path / "run")["train"]]


# ---------------------------------------------------------------------------------------------------------------- failures


class Breaking:
    """Makes MLflow's store unusable at the second line of the log."""

    def __init__(self, store: Path) -> None:
        self.store, self.lines = store, 0

    def on_update(self, metrics: object) -> None:
        self.lines += 1
        if self.lines == 2:
            self.store.write_bytes(b"this is no database" * 1000)


@pytest.mark.slow
def test_a_tracker_that_breaks_is_reported_once_and_training_goes_on(store: str, tmp_path: Path) -> None:
    train(tmp_path / "plain", log={"interval": 25, "tensorboard": False})
    breaking = Breaking(tmp_path / "mlflow.db")
    with pytest.warns(UserWarning, match=r"the tracker mlflow failed \(.*\); training goes on without it") as seen:
        train(tmp_path / "run", breaking, log={"interval": 25, "trackers": ["mlflow"]})
    assert len([w for w in seen if "the tracker" in str(w.message)]) == 1
    assert breaking.lines > 4
    assert metrics_without_time(tmp_path / "run") == metrics_without_time(tmp_path / "plain")
    assert (
        final_fingerprint(tmp_path / "run")["files"]["policy.safetensors"]
        == (final_fingerprint(tmp_path / "plain")["files"]["policy.safetensors"])
    )


def test_a_tracker_that_cannot_begin_is_reported_once(tmp_path: Path) -> None:
    (tmp_path / "run" / "tensorboard").parent.mkdir()
    run = tmp_path / "run"
    trainer = start_training(tiny_config("dqn", output_dir=str(run), log=tracked("tensorboard")), command="test")
    (run / "tensorboard").write_text("something else is here")
    with pytest.warns(UserWarning, match="the tracker tensorboard failed") as seen:
        trainer.train()
    trainer.close()
    assert len([w for w in seen if "the tracker" in str(w.message)]) == 1


@pytest.mark.parametrize("name", ["wandb", "mlflow"])
def test_a_missing_extra_is_named_before_anything_is_written(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    message = rf"log\.trackers: {name} needs the package '{name}'; install it with: pip install 'rl-training\[{name}\]'"
    with pytest.raises(MissingExtraError, match=message):
        train(tmp_path / "run", log=tracked(name))
    assert not (tmp_path / "run").exists()


def test_an_unknown_tracker(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"log\.trackers\.0: input should be 'tensorboard', 'wandb' or 'mlflow', got 'neptune'"
    ):
        train(tmp_path / "run", log=tracked("neptune"))


def test_a_tracker_needs_a_run_directory() -> None:
    pytest.importorskip("wandb")
    with DQN("CartPole-v1", log=tracked("wandb")) as agent, pytest.raises(ConfigError, match="wandb needs a run directory"):
        agent.learn(100)
    assert os.environ.get("WANDB_RUN_ID") is None
