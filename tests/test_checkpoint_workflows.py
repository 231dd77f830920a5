"""What one does with a saved agent: evaluate it, predict with it, export it, continue training it; for every algorithm."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from conftest import tiny_config

from rl_training.api import load_agent, managed
from rl_training.errors import ConfigError, DivergenceError
from rl_training.experiment.layout import ACTING_PARTS
from rl_training.runtime.export import load_exported, random_observations
from rl_training.runtime.sessions import train


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {}


@pytest.fixture
def run(algo: str, runs: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One finished run per algorithm."""
    if algo not in runs:
        path = tmp_path_factory.mktemp(algo) / "run"
        assert train(tiny_config(algo, total_timesteps=100, output_dir=str(path))).env_steps == 100
        runs[algo] = path
    return runs[algo]


def test_a_saved_agent_evaluates_as_it_did_when_trained(run: Path) -> None:
    stored = json.loads((run / "evaluation.json").read_text())
    with load_agent(run) as agent:
        assert agent.evaluate(episodes=2).returns == stored["returns"]


def test_best_and_latest_are_agents(run: Path) -> None:
    for name in ("best", "latest"):
        with load_agent(run / "checkpoints" / name) as agent:
            assert agent.evaluate(episodes=1).lengths[0] > 0


def test_an_export_gives_the_same_actions(run: Path, tmp_path: Path) -> None:
    agent = load_agent(run)
    path = agent.export(tmp_path / "policy.safetensors")
    obs = random_observations(agent.policy.spec, 50)
    np.testing.assert_array_equal(load_exported(path).predict(obs)[0], agent.predict(obs)[0])
    assert sorted(file.name for file in tmp_path.iterdir()) == [path.name, f"{path.name}.json"]


def test_an_onnx_export_gives_the_same_actions(run: Path, tmp_path: Path) -> None:
    agent = load_agent(run)
    path = agent.export(tmp_path / "policy.onnx")
    obs = random_observations(agent.policy.spec, 50)
    expected, _ = agent.predict(obs)
    found, _ = load_exported(path).predict(obs)
    if agent.policy.spec.action.kind == "discrete":
        np.testing.assert_array_equal(found, expected)
    else:
        np.testing.assert_allclose(found, expected, atol=1e-5)
        assert found.shape == (50, *agent.policy.spec.action.raw_shape)
    assert sorted(file.name for file in tmp_path.iterdir()) == [path.name, f"{path.name}.json"]


def test_an_export_of_an_unknown_format_is_refused(run: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="onnx, safetensors"):
        load_agent(run).export(tmp_path / "policy.pkl")


def test_a_full_save_continues_as_the_original(algo: str, tmp_path: Path) -> None:
    settings = tiny_config(algo).describe()
    common = {key: settings[key] for key in ("eval", "checkpoint", "log")}
    agent = managed(algo)(settings["env_id"], **common, **settings["algo_kwargs"]).learn(70)
    agent.save(tmp_path / "full", full=True)
    agent.save(tmp_path / "light")
    assert {path.stem for path in (tmp_path / "light").iterdir()} == {*ACTING_PARTS, "manifest"}
    twin = managed(algo).load(tmp_path / "full")
    for each in (agent, twin):
        each.learn(120)
    for key, value in agent.policy.state_dict().items():
        assert (value == twin.policy.state_dict()[key]).all()


def test_a_policy_with_broken_weights_is_not_exported(run: Path, tmp_path: Path) -> None:
    agent = load_agent(run)
    for parameter in agent.policy.network.parameters():
        parameter.data.fill_(float("nan"))
    with pytest.raises(DivergenceError, match=r"the policy in the agent cannot be used: the weights .* are not finite"):
        agent.export(tmp_path / "policy.safetensors")
    assert not list(tmp_path.iterdir())
