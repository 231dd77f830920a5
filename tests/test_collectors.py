"""Collecting in stretches: where collectors run, and whether they die, changes no bit of a run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import ON_POLICY, env_of_tests, final_fingerprint, settings_of, tiny_config

from rl_training.errors import CollectorError, EnvironmentFault
from rl_training.experiment.changes import with_overrides
from rl_training.experiment.config import TrainConfig
from rl_training.runtime.sessions import resume_training, start_training
from rl_training.runtime.trainer import Trainer


def stretch_config(algo: str, output: Path, deaths: str = "", **collectors: Any) -> TrainConfig:
    """Two collectors of two environments each, in stretches of eight steps or of a rollout."""
    stretch = 16 if algo in ON_POLICY else 8
    return tiny_config(
        algo,
        **env_of_tests(algo, "Mortal"),
        env_kwargs={"deaths": deaths},
        num_envs=4,
        total_timesteps=256,
        collectors={"count": 2, "stretch": stretch, **collectors},
        eval={"interval": 90, "episodes": 1, "final_episodes": 1, "num_envs": 1},
        algo_kwargs=settings_of(algo, {"epsilon": 0.1}),  # the weights must matter
        output_dir=str(output),
    )


def trained(config: TrainConfig, total: int | None = None) -> tuple[dict[str, Any], int]:
    """The fingerprint of a run, and how often its collectors were started again."""
    trainer = start_training(config, command="test")
    try:
        trainer.train(total)
    finally:
        trainer.close()
    assert config.output_dir is not None
    return fingerprint(Path(config.output_dir)), getattr(trainer.collector, "restarts", 0)


def fingerprint(run: Path) -> dict[str, Any]:
    """Of all but the config, which names the kind of the collectors."""
    found = final_fingerprint(run)
    files = {name: digest for name, digest in found["files"].items() if not name.startswith("agent")}
    return {"files": files, "metrics": found["metrics"]}


def test_a_process_that_is_killed_leaves_no_trace(algo: str, tmp_path: Path) -> None:
    inline, _ = trained(stretch_config(algo, tmp_path / "inline"))
    deaths = tmp_path / "deaths"
    deaths.write_text("37")
    process, restarts = trained(stretch_config(algo, tmp_path / "process", str(deaths), kind="process"))
    assert restarts == 1
    assert process == inline


@pytest.mark.parametrize("name", ["dqn", "r2d2"])
@pytest.mark.parametrize("interval", [1, 2])
def test_pipelined_collectors_are_exact_too(name: str, interval: int, tmp_path: Path) -> None:
    settings = {"mode": "pipelined", "broadcast_interval": interval}
    lockstep, _ = trained(stretch_config(name, tmp_path / "lockstep"))
    inline, _ = trained(stretch_config(name, tmp_path / "inline", **settings))
    deaths = tmp_path / "deaths"
    deaths.write_text("21\n45")
    process, restarts = trained(stretch_config(name, tmp_path / "process", str(deaths), kind="process", **settings))
    assert restarts == 2
    assert process == inline
    assert inline["files"]["policy.safetensors"] != lockstep["files"]["policy.safetensors"]


@pytest.mark.parametrize("mode", ["lockstep", "pipelined"])
@pytest.mark.parametrize("interval", [1, 3])
def test_a_run_is_resumed_exactly_and_elsewhere(mode: str, interval: int, tmp_path: Path) -> None:
    settings = {"mode": mode, "broadcast_interval": interval}
    whole, _ = trained(stretch_config("dqn", tmp_path / "whole", **settings))
    trained(stretch_config("dqn", tmp_path / "parts", **settings), 130)
    for total, kind in ((200, "process"), (None, "inline")):
        trainer = resume_training(
            tmp_path / "parts",
            change=lambda config, kind=kind: with_overrides(config, [f"collectors.kind={kind}"]),  # type: ignore[misc]
            warn=pytest.fail,
        )
        trainer.train(total)
        trainer.close()
    parts = fingerprint(tmp_path / "parts")
    assert parts["files"] == whole["files"]
    assert [record for record in parts["metrics"] if record["kind"] != "change"] == whole["metrics"]


@pytest.mark.parametrize("name", ["ppo", "recurrent_ppo"])
def test_rollouts_in_one_stretch_are_those_of_the_usual_loop(name: str, tmp_path: Path) -> None:
    """The policy is the same during a rollout, so nothing else can differ than when evaluations are due."""
    evaluation = {"interval": 0, "final_episodes": 1, "num_envs": 1}
    shared: dict[str, Any] = {"num_envs": 2, "eval": evaluation, "checkpoint": {"interval": 0}, "log": {"interval": 10_000}}
    weights = []
    for collectors in ({}, {"stretch": 16}):
        trainer = Trainer(tiny_config(name, collectors=collectors, **shared))
        trainer.train(160)
        trainer.close()
        weights.append(trainer.policy.state_dict())
    assert weights[0].keys() == weights[1].keys()
    assert all(torch.equal(weights[0][key], weights[1][key]) for key in weights[0])


def test_a_collector_that_dies_for_ever_ends_the_run_saved(tmp_path: Path) -> None:
    deaths = tmp_path / "deaths"
    deaths.write_text("\n".join(["40", "1", "1", "1", "1", "1", "1", "1"]))
    with pytest.raises(CollectorError, match=r"collector [01] \(environments .* has died 4 times in one stretch.*saved at step"):
        trained(stretch_config("dqn", tmp_path / "run", str(deaths), kind="process"))
    deaths.unlink()
    trainer = resume_training(tmp_path / "run", warn=pytest.fail)
    trainer.train()
    trainer.close()
    whole, _ = trained(stretch_config("dqn", tmp_path / "whole"))
    assert fingerprint(tmp_path / "run") == whole


@pytest.mark.parametrize("kind", ["inline", "process"])
def test_a_fault_in_a_collector_is_reported_as_any_fault(kind: str, tmp_path: Path) -> None:
    mended = tmp_path / "mended"
    config = tiny_config(
        "dqn",
        **env_of_tests("dqn", "Faulty"),
        env_kwargs={"fault": "raise", "mended": str(mended)},
        num_envs=4,
        collectors={"kind": kind, "count": 2, "stretch": 5},
        output_dir=str(tmp_path / "run"),
    )
    with pytest.raises(EnvironmentFault, match=r"index [0-3].*The run is saved at step") as raised:
        trained(config)
    assert raised.value.__cause__ is not None
    (report,) = (tmp_path / "run").glob("fault-step-*.json")
    content = json.loads(report.read_text())
    assert content["actions"]
    assert any("rl_training_test_envs.py" in frame for frame in content["traceback"])
    mended.touch()
    trainer = resume_training(tmp_path / "run", warn=pytest.fail)
    trainer.train()
    trainer.close()
    assert trainer.env_steps >= 240
