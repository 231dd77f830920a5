"""A run that diverges stops with a message and keeps what was finite; a policy that is not finite is not used."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import ON_POLICY, config_fields, tiny_config
from forgery import forge
from safetensors.numpy import load_file, save_file

from rl_training.api import load_agent, managed
from rl_training.cli import main
from rl_training.envs.factory import RegisteredEnv
from rl_training.envs.pool import SeededEnvPool
from rl_training.errors import DivergenceError
from rl_training.experiment.run import step_directories
from rl_training.runtime.divergence import DivergenceWatch
from rl_training.runtime.evaluation import Extent
from rl_training.runtime.export import export_policy, load_exported
from rl_training.runtime.inference import build_policy, save_policy
from rl_training.runtime.sessions import resume_training, start_training
from rl_training.runtime.trainer import Trainer

pytestmark = pytest.mark.filterwarnings("error::RuntimeWarning")  # numpy's, of overflows, must not precede our sentence

HOT = 1e30


def all_finite(path: Path) -> bool:
    return all(
        np.isfinite(array).all() for array in load_file(path / "policy.safetensors").values() if array.dtype.kind == "f"
    )


@pytest.mark.parametrize("prioritized", [False, True])
def test_every_algorithm_stops_when_it_diverges_and_keeps_the_last_finite_checkpoint(
    algo: str, prioritized: bool, tmp_path: Path
) -> None:
    if prioritized and "prioritized" not in config_fields(algo):
        pytest.skip("it has no priorities, or always")
    settings = {"learning_rate": HOT, **({"prioritized": True} if prioritized else {})}
    config = tiny_config(algo, checkpoint={"interval": 10}, algo_kwargs=settings, output_dir=str(tmp_path / "run"))
    trainer = start_training(config, command="test")
    with pytest.raises(
        DivergenceError, match=r"training diverged by step \d+: .*finite.*learning_rate \(1e\+30 now\)"
    ) as caught:
        trainer.train()
    trainer.close()
    newest = step_directories(tmp_path / "run")[0]
    assert f"The last finite checkpoint is {newest}" in str(caught.value)
    assert (tmp_path / "run" / "checkpoints" / "latest").resolve() == newest
    assert all(all_finite(path) for path in step_directories(tmp_path / "run"))
    assert not list((tmp_path / "run").glob("fault-*"))  # it was not the environment
    for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines():
        assert all(math.isfinite(value) for value in json.loads(line).values() if isinstance(value, float))
    resumed = resume_training(tmp_path / "run", warn=pytest.fail)
    with pytest.raises(DivergenceError):
        resumed.train()
    resumed.close()


@pytest.mark.parametrize("algo", ON_POLICY)
def test_continuous_actions_that_are_not_finite_are_the_learners(algo: str, tmp_path: Path) -> None:
    config = tiny_config(
        algo,
        env_id="Pendulum-v1",
        algo_kwargs={"learning_rate": HOT},
        log={"interval": 1000, "tensorboard": False},
        eval={"interval": 0, "final_episodes": 1, "num_envs": 1},
        checkpoint={"interval": 0},
        output_dir=str(tmp_path / "run"),
    )
    trainer = start_training(config, command="test")
    with pytest.raises(DivergenceError, match=r"the policy's actions are not finite.*No checkpoint had been written"):
        trainer.train()
    trainer.close()
    assert not list((tmp_path / "run").glob("fault-*"))


def test_actions_are_checked_before_any_environment_gets_one() -> None:
    pool = SeededEnvPool(RegisteredEnv("Pendulum-v1"), num_envs=2)
    pool.reset()
    before = pool.obs.copy()
    with pytest.raises(DivergenceError, match="actions are not finite"):
        pool.step(np.array([[0.5], [np.nan]], np.float32))
    step, _ = pool.step(np.array([[0.5], [0.5]], np.float32))
    np.testing.assert_array_equal(step.obs, before)
    assert pool.state_dict()["lengths"] == [1, 1]
    pool.close()


def test_nothing_is_saved_or_evaluated_after_the_weights_have_diverged(tmp_path: Path) -> None:
    run = tmp_path / "run"
    trainer = start_training(tiny_config("dqn", output_dir=str(run)), command="test")
    trainer.train(60)
    with torch.no_grad():
        next(trainer.policy.network.parameters()).view(-1)[3] = torch.nan
    trainer.divergence = type(trainer.divergence)(trainer)  # as before the next check
    trainer.checkpoints.outdated()
    for forbidden in (
        lambda: trainer.evaluate(Extent(1)),
        trainer.checkpoints.save_due,
        lambda: trainer.checkpoints.save_to(tmp_path / "elsewhere"),
        trainer.train,
    ):
        with pytest.raises(DivergenceError, match=r"the weights '.*' are not finite"):
            forbidden()
    trainer.close()
    assert not (tmp_path / "elsewhere").exists()
    assert [path.name for path in step_directories(run)] == ["step-0000000060"]
    assert all_finite(step_directories(run)[0])


def test_a_checkpoint_that_is_not_finite_is_not_called_the_last_finite_one(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Earlier versions wrote such checkpoints."""
    file = step_directories(run)[0] / "policy.safetensors"
    save_file({name: np.full_like(array, np.nan) for name, array in load_file(file).items()}, file)
    forge(step_directories(run)[0])
    assert main(["resume", str(run), "--total-timesteps", "250", "--quiet"]) == 3
    said = capsys.readouterr().err
    assert "training had diverged before this session began at step 240: the weights" in said
    assert "last finite" not in said


def test_the_command_line_has_an_exit_code_for_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = str(tmp_path / "run")
    command = ["train", "--algo", "dqn", "--env", "CartPole-v1", "--total-timesteps", "3000", "--output-dir", run]
    command += [
        "--set",
        f"algo_kwargs.learning_rate={HOT}",
        "--set",
        "algo_kwargs.learning_starts=50",
        "--set",
        "algo_kwargs.batch_size=8",
    ]
    assert main([*command, "--quiet"]) == 3
    said = capsys.readouterr().err
    assert said.count("error: training diverged by step") == 1
    assert "Traceback" not in said


@pytest.fixture
def broken(tmp_path: Path) -> Path:
    """A checkpoint of a policy that is not finite."""
    config = tiny_config("dqn")
    trainer = Trainer(config)
    policy = build_policy(config, trainer.pool.spec)
    trainer.close()
    with torch.no_grad():
        for parameter in policy.network.parameters():
            parameter.fill_(torch.nan)
    save_policy(policy, config, tmp_path / "broken")
    return tmp_path / "broken"


@pytest.mark.parametrize(
    "command",
    [
        ["predict", "--obs", "[0, 0, 0, 0]"],
        ["eval", "--episodes", "1"],
        ["export", "--format", "safetensors", "--output", "x"],
    ],
)
def test_a_policy_that_is_not_finite_is_refused(
    command: list[str], broken: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(broken.parent)
    name, *options = command
    assert main([name, str(broken), *options]) == 3
    captured = capsys.readouterr()
    assert captured.out == ""
    assert f"the policy in the checkpoint {broken} cannot be used: the weights" in captured.err
    assert not (broken.parent / "x").exists()


def test_an_exported_policy_that_is_not_finite_is_refused(tmp_path: Path) -> None:
    config = tiny_config("dqn")
    trainer = Trainer(config)
    export_policy(trainer.policy, config, tmp_path / "policy.safetensors")
    trainer.close()
    content = bytearray((tmp_path / "policy.safetensors").read_bytes())
    content[-4:] = np.array([np.nan], np.float32).tobytes()
    (tmp_path / "policy.safetensors").write_bytes(bytes(content))
    with pytest.raises(DivergenceError, match=r"the exported policy .* cannot be used"):
        load_exported(tmp_path / "policy.safetensors")


def test_an_agent_that_has_diverged_answers_nothing(tmp_path: Path) -> None:
    agent: Any = managed("dqn")("CartPole-v1", learning_rate=HOT, learning_starts=20, batch_size=8, buffer_size=100)
    with pytest.raises(DivergenceError):
        agent.learn(2000)
    forbidden: list[Callable[[], object]] = [
        lambda: agent.predict(np.zeros(4)),
        lambda: agent.evaluate(1),
        lambda: agent.export(tmp_path / "policy.safetensors"),
        lambda: agent.save(tmp_path / "agent"),
        lambda: agent.save(tmp_path / "agent", full=True),
    ]
    for call in forbidden:
        with pytest.raises(DivergenceError):
            call()
    agent.close()
    with pytest.raises(DivergenceError):
        agent.predict(np.zeros(4))
    assert not list(tmp_path.iterdir())


def test_a_sound_agent_is_loaded(tmp_path: Path) -> None:
    agent: Any = managed("dqn")("CartPole-v1")
    agent.save(tmp_path / "agent")
    agent.close()
    with load_agent(tmp_path / "agent") as loaded:
        loaded.predict(np.zeros(4))


def test_the_log_alone_notices_it() -> None:
    """Without checkpoints and evaluations on the way, the run still stops at the first line of the log after it diverged."""
    never = {"checkpoint": {"interval": 0}, "eval": {"interval": 0, "final_episodes": 1, "num_envs": 1}}
    trainer = Trainer(tiny_config("dqn", **never, algo_kwargs={"learning_rate": HOT, "train_freq": 1}))
    with pytest.raises(DivergenceError, match=r"by step 25: loss is"):
        trainer.train()
    trainer.close()


@pytest.mark.parametrize(("name", "stops"), [("critic_loss", True), ("return_mean", False)])
def test_any_loss_that_is_not_finite_counts_and_nothing_else(name: str, stops: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the algorithm calls it, while its weights are still finite."""
    trainer = Trainer(tiny_config("sac"))
    monkeypatch.setattr(type(trainer.learner), "metrics", {"actor_loss": 0.5, name: math.inf})
    with pytest.raises(DivergenceError, match=f"{name} is inf") if stops else contextlib.nullcontext():
        DivergenceWatch(trainer).check()
    trainer.close()
