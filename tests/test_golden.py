"""Runs as earlier releases wrote them can still be loaded, evaluated, used, exported and resumed."""

from __future__ import annotations

import json
import shutil
import warnings
from pathlib import Path

import numpy as np
import pytest
from conftest import TESTS

from rl_training.api import load_agent
from rl_training.experiment.run import step_directories
from rl_training.runtime.export import random_observations
from rl_training.runtime.sessions import resume_training

GOLDEN = sorted(path for path in (TESTS / "golden").glob("*/*") if path.is_dir())


@pytest.fixture(params=GOLDEN, ids=lambda path: f"{path.parent.name}-{path.name}")
def golden(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A copy of a golden run."""
    return Path(shutil.copytree(request.param, tmp_path / "run", symlinks=True))


def test_there_is_a_golden_run_of_each_algorithm() -> None:
    first = {"c51", "dqn", "drq", "drqn", "drqv2", "ppo", "qr_dqn", "r2d2", "recurrent_ppo", "sac"}
    releases = {"0.2.0": first, "0.3.0": first | {"a2c", "ddpg", "discrete_sac", "iqn", "td3", "tqc"}}
    for release, names in releases.items():
        assert {path.name for path in GOLDEN if path.parent.name == release} == names


def test_a_golden_agent_acts_evaluates_and_is_exported(golden: Path, tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for name in ("latest", "best"):
            agent = load_agent(golden / "checkpoints" / name)
            assert np.isfinite(agent.evaluate(episodes=1).mean_return)
        agent = load_agent(golden)
        found, _ = agent.predict(random_observations(agent.policy.spec, 30))
    expected = np.array(json.loads((golden / "expected_actions.json").read_text()))
    if found.dtype.kind == "f":
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)
    else:
        assert (found == expected).mean() > 0.9  # where two values tie within rounding, either may be chosen
    agent.export(tmp_path / "policy.safetensors")  # verified against the policy


@pytest.mark.slow
def test_a_golden_agent_is_exported_as_onnx(golden: Path, tmp_path: Path) -> None:
    load_agent(golden).export(tmp_path / "policy.onnx")  # verified against the policy


def test_a_golden_run_resumes_where_it_was(golden: Path) -> None:
    messages: list[str] = []
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        trainer = resume_training(golden, total_timesteps=120, warn=messages.append)
        reached, updates = trainer.env_steps, trainer.learner.updates
        trainer.train()
        trainer.close()
    assert messages == []
    assert reached == 70
    assert updates > 0
    assert trainer.env_steps == 120
    assert trainer.learner.updates > updates
    assert step_directories(golden)[0].name == "step-0000000120"
