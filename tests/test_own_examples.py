"""The examples of an own environment, network, algorithm and hook and of deploying: run as a newcomer would run them."""

from __future__ import annotations

import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml
from conftest import EXPORTED, tiny_values
from moments import finish_python
from reference_scripts import EXAMPLES

from rl_training.cli import main


@pytest.mark.parametrize("name", ["own_network", "own_algorithm"])
def test_the_script_runs_from_anywhere(name: str, tmp_path: Path) -> None:
    finished = finish_python(EXAMPLES / f"{name}.py", "--steps", "500", cwd=tmp_path)
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


def test_the_script_with_hooks_runs_from_anywhere(tmp_path: Path) -> None:
    finished = finish_python(EXAMPLES / "own_hook.py", "--steps", "500", cwd=tmp_path)
    assert finished.returncode == 0, finished.stderr
    assert "asked to stop: 5 evaluations in a row were not better than" in finished.stdout
    assert "asked to stop" in finished.stderr
    assert not list(tmp_path.iterdir())


def test_an_own_environment_is_trained_on_filmed_and_found_by_its_file(tmp_path: Path) -> None:
    script = EXAMPLES / "own_environment.py"
    finished = finish_python(script, "--steps", "500", cwd=tmp_path)
    assert finished.returncode == 0, finished.stderr
    assert "return: " in finished.stdout
    assert "filmed: " in finished.stdout
    first, second = finished.stdout.split("action: ")[1].split(", of the loaded agent: ")
    assert first == second.strip()
    assert not finished.stderr
    assert not list(tmp_path.iterdir())
    run = str(tmp_path / "run")
    command = ["train", "--algo=dqn", f"--env={script}:Docking", "--total-timesteps=300", "--output-dir", run, "--quiet"]
    assert main([*command, "--set=algo_kwargs.learning_starts=100", "--set=eval.max_episode_steps=20"]) == 0


def test_an_exported_policy_acts_without_torch_and_without_us(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("onnxruntime")
    script = str(EXAMPLES / "deploy_onnx.py")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [script, "train", "policy.onnx", "--steps", "500"])
    runpy.run_path(script, run_name="__main__")
    assert {path.name for path in tmp_path.iterdir()} == {"policy.onnx", "policy.onnx.json"}
    play = (
        f"import runpy, sys; sys.argv = ['', 'play', 'policy.onnx', '--episodes', '2']; "
        f"runpy.run_path({script!r}, run_name='__main__'); "
        "print('imported:', sorted({'torch', 'rl_training'} & set(sys.modules)))"
    )
    # A new interpreter: what the helper starts has already imported torch.
    finished = subprocess.run([sys.executable, "-c", play], cwd=tmp_path, capture_output=True, text=True)
    assert finished.returncode == 0, finished.stderr
    assert "policy: dqn for CartPole-v1, inputs {'obs': " in finished.stdout
    assert "over 2 episodes\nimported: []" in finished.stdout


@pytest.mark.parametrize(
    ("algo", "settings"),
    [
        ("ppo", {"network": "own_network:make_trunk", "network_kwargs": {"width": 8, "blocks": 2}}),
        ("own_algorithm:DeepMellow", {"omega": 2.0, "hidden_sizes": [8], "learning_starts": 20, "batch_size": 8}),
    ],
)
@pytest.mark.parametrize("exported", EXPORTED)
def test_what_they_define_works_from_a_config(
    exported: str,
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
    output = str(tmp_path / f"policy.{exported}")
    assert main(["export", run, "--output", output]) == 0, capsys.readouterr().err


def test_mellowmax_of_allowed_actions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    from own_algorithm import mellowmax

    q = torch.tensor([[0.0, 3.0, -torch.inf], [1.0, 1.0, 1.0]])
    expected = torch.tensor([(torch.tensor([0.0, 6.0]).exp().mean().log() / 2.0).item(), 1.0])
    torch.testing.assert_close(mellowmax(q, 2.0), expected)
