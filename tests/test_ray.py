"""The core of what runs on Ray: one instance for all of these tests, with real processes that are really killed.

It is meant for CI, so it stays well below two minutes on two cores. Each collector is a process that imports torch: what
needs more of them is in ``test_ray_jobs.py``, ``test_ray_registry.py`` and ``test_ray_clusters.py``.
"""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from conftest import tiny_values
from moments import PATIENCE, finish
from test_collectors import assert_each_once_and_in_order, fingerprint, free_config, stretch_config, trained

from rl_training.cli import main
from rl_training.envs.pool import Episode
from rl_training.errors import ConfigError, RLTrainingError
from rl_training.experiment import aggregate
from rl_training.runtime import ray_collectors
from rl_training.runtime.ray_cluster import connected
from rl_training.runtime.sessions import resume_training, start_training
from rl_training.runtime.trainer import Trainer

pytest.importorskip("ray")
pytestmark = pytest.mark.slow  # starting Ray takes 10 to 20 seconds

CPUS = 3
#: Settings of Ray on a machine that may be slow and busy. Its processes are polite by default, and would get nothing of it.
UNHURRIED = {
    "RAY_worker_niceness": "0",
    "RAY_raylet_start_wait_time_s": "600",
    "RAY_worker_register_timeout_seconds": "600",
    "RAY_gcs_rpc_server_connect_timeout_s": "60",
    "RAY_health_check_timeout_ms": "120000",
}


def assert_no_trace(name: str, mode: str, folder: Path) -> None:
    """A run on Ray, one of whose collectors is killed in mid-stretch, is the run inline."""
    inline, _ = trained(stretch_config(name, folder / "inline", mode=mode))
    (folder / "deaths").write_text("37")
    away, restarts = trained(stretch_config(name, folder / "ray", str(folder / "deaths"), kind="ray", mode=mode))
    assert restarts == 1
    assert away == inline


@pytest.fixture(scope="module")
def ray() -> Iterator[Any]:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in UNHURRIED.items():
            patch.setenv(name, value)
        with connected(None, num_cpus=CPUS) as module:
            yield module


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(aggregate, "RESAMPLES", 50)
    return tmp_path


def test_a_failing_task_is_named_in_one_line(ray: Any, capsys: pytest.CaptureFixture[str]) -> None:
    Path("broken.yaml").write_text(yaml.safe_dump(tiny_values("dqn", env_id="no_such_module:Env-v0")))
    assert main(["bench", "broken.yaml", "--seeds", "1", "--runs", "runs", "--ray"]) == 1
    failures = [line for line in capsys.readouterr().err.splitlines() if line.startswith("failed: ")]
    assert len(failures) == 1
    assert "broken.yaml seed 0" in failures[0]
    assert "no_such_module" in failures[0]


@pytest.mark.parametrize(("name", "mode"), [("r2d2", "lockstep"), ("dqn", "pipelined")])
def test_collectors_on_ray_that_are_killed_leave_no_trace(ray: Any, name: str, mode: str, tmp_path: Path) -> None:
    assert_no_trace(name, mode, tmp_path)


class BothHeard:
    """Stops a run when both collectors have ended an episode after one of them was started again."""

    def __init__(self, trainer: Trainer) -> None:
        self._trainer, self._heard = trainer, set[int]()

    def on_episode(self, episode: Episode) -> str | None:
        time.sleep(0.02)  # the other one plays on meanwhile, and could fill any replay
        if self._trainer.collector.restarts:  # type: ignore[union-attr]
            self._heard.add(episode.env_index // 4)
        return "both are heard" if self._heard == {0, 1} else None


def test_free_collectors_on_ray_lose_and_double_no_step(ray: Any, tmp_path: Path) -> None:
    (tmp_path / "deaths").write_text("31")
    trainer = start_training(free_config(tmp_path / "run", tmp_path / "deaths", 500_000, kind="ray", count=2), command="test")
    try:
        trainer.train(callbacks=[BothHeard(trainer)], evaluate=False)
        assert_each_once_and_in_order(trainer)
        assert trainer.collector.restarts == 1  # type: ignore[union-attr]
    finally:
        trainer.close()


class Terminating:
    """Sends this process SIGTERM, as a cluster does that wants its nodes back."""

    def on_episode(self, episode: Episode) -> None:
        os.kill(os.getpid(), signal.SIGTERM)


def test_a_run_that_is_stopped_is_saved_and_gives_its_cpus_back(ray: Any, tmp_path: Path) -> None:
    config = stretch_config("dqn", tmp_path / "run", kind="ray", mode="pipelined")
    trainer = start_training(config, command="test")
    try:
        result = trainer.train(callbacks=[Terminating()])
    finally:
        trainer.close()
    assert result.interrupted_by == signal.SIGTERM
    assert 0 < result.env_steps < config.total_timesteps
    deadline = time.monotonic() + PATIENCE
    while ray.available_resources().get("CPU") != CPUS:
        assert time.monotonic() < deadline, "collectors are still there"
        time.sleep(0.1)
    inline = config.with_values(collectors=config.collectors.model_copy(update={"kind": "inline"}))
    resumed = resume_training(tmp_path / "run", change=lambda _: inline, warn=pytest.fail)
    resumed.train()
    resumed.close()
    whole, _ = trained(inline.with_values(output_dir=str(tmp_path / "whole")))
    assert fingerprint(tmp_path / "run")["files"] == whole["files"]


def test_a_module_that_the_nodes_cannot_import_is_named(ray: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "only_here.py").write_text("from rl_training_test_envs import RandomWalkEnv as Walk\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    config = stretch_config("dqn", tmp_path / "run", kind="ray", count=1).with_values(env_id="only_here:Walk", env_kwargs={})
    with pytest.raises(RLTrainingError, match="only_here"):
        trained(config)


def test_a_full_object_store_is_named(ray: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray's own exception: a real store moves to the disk, and would be full with that."""

    def put(value: Any) -> None:
        raise ray.exceptions.ObjectStoreFullError("the store is full")

    monkeypatch.setattr(ray, "put", put)
    monkeypatch.setattr(ray_collectors, "WITHIN_MESSAGE", 10)
    with pytest.raises(ConfigError, match="is its object store full"):
        trained(stretch_config("dqn", tmp_path / "run", kind="ray"))


def test_an_address_where_nothing_answers(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = ["bench", "tiny.yaml", "--seeds", "1", "--runs", "runs", "--ray", f"127.0.0.1:{port}"]
    Path("tiny.yaml").write_text(yaml.safe_dump(tiny_values("dqn")))
    done = finish(*command)
    assert done.returncode == 2
    assert f"nothing answers at the Ray address 127.0.0.1:{port}" in done.stderr


def test_too_few_cpus(ray: Any, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"has 3 CPUs, but 2 collectors of 2 CPUs need 4; lower collectors.count"):
        trained(stretch_config("dqn", tmp_path / "run", kind="ray", cpus=2))
