"""The training entry of DQN's family, end to end on a tiny run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from conftest import metrics_without_time, tiny_config
from learning import mean_return, must_be

from rl_training.experiment.checkpoint import verify_checkpoint
from rl_training.runtime.dqn_trainer import train_dqn
from rl_training.runtime.learner import OffPolicyLearner
from rl_training.runtime.trainer import Trainer, TrainResult


def check_run(result: TrainResult, algo: str) -> None:
    run = result.run_dir
    assert run is not None
    assert result.checkpoint is not None
    assert (result.env_steps, result.interrupted_by) == (240, None)
    assert result.updates == (240 - 20) // 4
    assert verify_checkpoint(result.checkpoint)["info"]["step"] == 240
    assert yaml.safe_load((run / "config.yaml").read_text())["algo"] == algo
    assert json.loads((run / "metadata.json").read_text())["seed"] == 0
    assert result.evaluation is not None
    assert json.loads((run / "evaluation.json").read_text())["returns"] == result.evaluation.returns
    records = metrics_without_time(run)
    assert [record["step"] for record in records if record["kind"] == "train"] == list(range(25, 241, 25))
    assert [record["step"] for record in records if record["kind"] == "eval"] == [90, 180]
    last = records[-1]
    assert {"loss", "q_value_mean", "target_mean", "td_error_mean", "return_mean", "epsilon"} <= set(last)
    assert set(result.seconds) == {
        "compilation",
        "environment",
        "acting",
        "sampling",
        "update",
        "evaluation",
        "rest",
        "waiting",
    }


def test_train_dqn_writes_checkpoint_and_metrics(tmp_path: Path) -> None:
    check_run(train_dqn(tiny_config("dqn", output_dir=str(tmp_path / "run"))), "dqn")


def test_train_qr_dqn_writes_checkpoint_and_metrics(tmp_path: Path) -> None:
    settings = {"num_quantiles": 7}
    check_run(train_dqn(tiny_config("qr_dqn", output_dir=str(tmp_path / "run"), algo_kwargs=settings)), "qr_dqn")


def test_train_c51_writes_checkpoint_and_metrics(tmp_path: Path) -> None:
    check_run(train_dqn(tiny_config("c51", output_dir=str(tmp_path / "run"))), "c51")


def test_tensorboard_events_are_written(tmp_path: Path) -> None:
    result = train_dqn(tiny_config("dqn", output_dir=str(tmp_path / "run"), log={"interval": 25}))
    assert result.run_dir is not None
    (events,) = (result.run_dir / "tensorboard").iterdir()
    assert "tfevents" in events.name
    content = events.read_bytes()
    assert b"train/loss" in content
    assert b"eval/return_mean" in content


@pytest.mark.parametrize(("train_freq", "gradient_steps", "updates"), [(1, 1, 221), (8, 4, 108), (128, 64, 64), (1, 3, 663)])
def test_updates_are_counted_in_env_steps(train_freq: int, gradient_steps: int, updates: int, tmp_path: Path) -> None:
    settings = {"train_freq": train_freq, "gradient_steps": gradient_steps}
    result = train_dqn(tiny_config("dqn", output_dir=str(tmp_path / "run"), algo_kwargs=settings))
    assert result.updates == updates


@pytest.mark.parametrize(("clip", "largest"), [(None, 4.0), (1.5, 1.5)])
def test_rewards_are_clipped_for_learning_but_not_in_reported_returns(clip: float | None, largest: float) -> None:
    settings = {"clip_reward": clip, "n_step": 1}
    trainer = Trainer(tiny_config("dqn", env_id="rl_training_test_envs:Counting-v0", algo_kwargs=settings))
    result = trainer.train()  # rewards 1, 2, 3, 4
    assert isinstance(trainer.learner, OffPolicyLearner)
    assert trainer.learner.replay.buffer.sample(200).reward.max() == largest
    assert result.metrics["return_mean"] == 1 + 2 + 3 + 4


@pytest.mark.parametrize("num_envs", [3, 7])
def test_no_interval_is_stepped_over_with_several_environments(num_envs: int, tmp_path: Path) -> None:
    result = train_dqn(tiny_config("dqn", output_dir=str(tmp_path / "run"), num_envs=num_envs, total_timesteps=250))
    assert result.run_dir is not None
    steps = [record["step"] for record in metrics_without_time(result.run_dir) if record["kind"] == "train"]
    assert len(steps) == 250 // 25
    assert all(0 <= step - due < num_envs for step, due in zip(steps, range(25, 251, 25), strict=True))


@must_be(above=-20)
def dqn_walks_home(seed: int) -> float:
    """A walk against noise. Means over 1500 episodes: always heading home -13.5, standing still -34.5, at random -43.9."""
    config = tiny_config(
        "dqn",
        seed=seed,
        env_id="rl_training_test_envs:RandomWalk-v0",
        env_kwargs={"limit": 100.0},
        total_timesteps=1500,
        eval={"interval": 0, "final_episodes": 100},
        algo_kwargs={
            "learning_starts": 200,
            "buffer_size": 1500,
            "batch_size": 32,
            "exploration_steps": 1000,
            "learning_rate": 3e-3,
            "target_update_interval": 100,
            "hidden_sizes": [32],
        },
    )
    return mean_return(config)


def test_learns_a_trivial_task() -> None:
    dqn_walks_home.check()
