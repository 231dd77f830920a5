"""More of Ray than ``test_ray.py``: runs and trials as tasks, and weights that are too large for a message."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from conftest import env_of_tests, final_fingerprint, tiny_values
from test_ray import assert_no_trace
from test_ray import place as place  # the directory in which each of these tests runs
from test_ray import ray as ray  # the instance that they share

from rl_training.bench.store import load_results
from rl_training.cli import main
from rl_training.runtime import ray_collectors

pytest.importorskip("ray")
pytestmark = pytest.mark.slow  # many processes that import torch


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
