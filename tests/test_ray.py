"""Work on Ray: one instance for all of these tests, with real processes that are really killed."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from conftest import env_of_tests, final_fingerprint, tiny_values
from moments import finish
from test_collectors import stretch_config, trained

from rl_training.bench.store import load_results
from rl_training.cli import main
from rl_training.errors import ConfigError, RLTrainingError
from rl_training.experiment import aggregate
from rl_training.runtime import ray_collectors
from rl_training.runtime.ray_cluster import connected

pytest.importorskip("ray")
pytestmark = pytest.mark.slow  # starting Ray takes 10 to 20 seconds

CPUS = 3


def assert_no_trace(name: str, mode: str, folder: Path) -> None:
    """A run on Ray, one of whose collectors is killed in mid-stretch, is the run inline."""
    inline, _ = trained(stretch_config(name, folder / "inline", mode=mode))
    (folder / "deaths").write_text("37")
    away, restarts = trained(stretch_config(name, folder / "ray", str(folder / "deaths"), kind="ray", mode=mode))
    assert restarts == 1
    assert away == inline


@pytest.fixture(scope="module")
def ray() -> Iterator[Any]:
    # As polite as Ray's processes are by default, they get nothing of a busy machine.
    os.environ["RAY_worker_niceness"] = "0"  # noqa: SIM112 (Ray's own spelling)
    with connected(None, num_cpus=CPUS) as module:
        yield module


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(aggregate, "RESAMPLES", 50)
    return tmp_path


def test_a_bench_on_ray_survives_the_death_of_a_task(ray: Any, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    env = {**env_of_tests("dqn", "Mortal"), "env_kwargs": {"deaths": str(place / "deaths"), "whom": "parent"}}
    Path("tiny.yaml").write_text(yaml.safe_dump(tiny_values("dqn", **env)))
    main(["train", "--config", "tiny.yaml", "--output-dir", "whole", "--quiet"])
    Path("deaths").write_text("150")
    assert main(["bench", "tiny.yaml", "--seeds", "1", "--runs", "runs", "--ray"]) == 0
    shown = capsys.readouterr()
    assert "[1/1] tiny.yaml seed 0: " in shown.err
    assert not Path("deaths").read_text(), "no task was killed"
    assert list(load_results(Path("runs/learning.json"))["tiny.yaml"]) == ["0"]
    assert final_fingerprint(Path("runs/tiny/seed0")) == final_fingerprint(Path("whole"))


def test_a_tune_on_ray_is_the_tune_here(ray: Any, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("optuna")
    ranges = {"algo_kwargs.learning_rate": {"log": [1e-4, 1e-2]}}
    Path("tiny.yaml").write_text(yaml.safe_dump({**tiny_values("dqn"), "tune": ranges}))
    command = ["tune", "tiny.yaml", "--trials", "1", "--finalists", "0", "--confirm", "1", "--output-dir"]
    assert main([*command, "here"]) == 0
    assert main([*command, "there", "--ray"]) == 0
    here, there = (json.loads(Path(folder, "results.json").read_text()) for folder in ("here", "there"))
    for name in ("score", "settings", "trials"):
        assert there[name] == here[name]
    assert there["confirmed"]["200"]["return"] == here["confirmed"]["200"]["return"]


def test_a_failing_task_is_named_in_one_line(ray: Any, capsys: pytest.CaptureFixture[str]) -> None:
    Path("broken.yaml").write_text(yaml.safe_dump(tiny_values("dqn", env_id="no_such_module:Env-v0")))
    assert main(["bench", "broken.yaml", "--seeds", "1", "--runs", "runs", "--ray"]) == 1
    failures = [line for line in capsys.readouterr().err.splitlines() if line.startswith("failed: ")]
    assert len(failures) == 1
    assert "broken.yaml seed 0" in failures[0]
    assert "no_such_module" in failures[0]


@pytest.mark.parametrize(("name", "mode"), [("dqn", "pipelined"), ("ppo", "lockstep"), ("r2d2", "lockstep")])
def test_collectors_on_ray_that_are_killed_leave_no_trace(ray: Any, name: str, mode: str, tmp_path: Path) -> None:
    assert_no_trace(name, mode, tmp_path)


def test_large_weights_go_through_the_object_store(ray: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stored: list[bytes] = []
    put = ray.put

    def noted(value: bytes) -> Any:
        stored.append(value)
        return put(value)

    monkeypatch.setattr(ray, "put", noted)
    monkeypatch.setattr(ray_collectors, "WITHIN_MESSAGE", 10)
    assert_no_trace("drqv2", "lockstep", tmp_path)
    assert len(set(stored)) == len(stored) > 1, "once for all collectors"


def test_a_module_that_the_nodes_cannot_import_is_named(ray: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "only_here.py").write_text("from rl_training_test_envs import RandomWalkEnv as Walk\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    config = stretch_config("dqn", tmp_path / "run", kind="ray").with_values(env_id="only_here:Walk", env_kwargs={})
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
