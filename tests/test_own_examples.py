"""The examples of an own network and an own algorithm: run as a newcomer would run them, and used from a config."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml
from conftest import tiny_values
from reference_scripts import EXAMPLES

from rl_training.cli import main


@pytest.mark.parametrize("name", ["own_network", "own_algorithm"])
def test_the_script_runs_from_anywhere(name: str, tmp_path: Path) -> None:
    command = [sys.executable, str(EXAMPLES / f"{name}.py"), "--steps", "500"]
    finished = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert finished.returncode == 0, finished.stderr
    assert "return: " in finished.stdout
    assert "exported: policy.safetensors" in finished.stdout
    assert not list(tmp_path.iterdir())
    warned = [line for line in finished.stderr.splitlines() if "Warning" in line]
    assert len(warned) == (name == "own_network"), finished.stderr
    if name == "own_network":
        first, second = finished.stdout.split("action: ")[1].split(", of the loaded agent: ")
        assert first == second.splitlines()[0]
        assert "load and resume need network= again" in warned[0]


@pytest.mark.parametrize(
    ("algo", "settings"),
    [
        ("ppo", {"network": "own_network:make_trunk", "network_kwargs": {"width": 8, "blocks": 2}}),
        ("own_algorithm:DeepMellow", {"omega": 2.0, "hidden_sizes": [8], "learning_starts": 20, "batch_size": 8}),
    ],
)
def test_what_they_define_works_from_a_config(
    algo: str,
    settings: dict[str, object],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    values = {**tiny_values("dqn", total_timesteps=80), "algo": algo, "algo_kwargs": settings}
    if algo == "ppo":
        values = tiny_values("ppo", total_timesteps=80, algo_kwargs=settings)
    config, run = tmp_path / "config.yaml", str(tmp_path / "run")
    config.write_text(yaml.safe_dump(values))
    assert main(["train", "--config", str(config), "--output-dir", run, "--quiet"]) == 0
    assert main(["eval", run, "--episodes", "1"]) == 0
    assert main(["resume", run, "--total-timesteps", "120", "--quiet"]) == 0
    output = str(tmp_path / "policy.onnx")
    assert main(["export", run, "--output", output]) == 0, capsys.readouterr().err


def test_mellowmax_of_allowed_actions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    from own_algorithm import mellowmax

    q = torch.tensor([[0.0, 3.0, -torch.inf], [1.0, 1.0, 1.0]])
    expected = torch.tensor([(torch.tensor([0.0, 6.0]).exp().mean().log() / 2.0).item(), 1.0])
    torch.testing.assert_close(mellowmax(q, 2.0), expected)
