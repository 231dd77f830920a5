"""The training entry of DrQ, end to end on tiny runs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import env_of_tests, metrics_without_time, tiny_config

from rl_training import DrQ
from rl_training.data import FrameReplayBuffer
from rl_training.errors import SpaceError
from rl_training.experiment.checkpoint import verify_checkpoint
from rl_training.experiment.config import load_config_data, resolve_config
from rl_training.runtime.announcements import describe_run
from rl_training.runtime.drq_trainer import train_drq
from rl_training.runtime.learner import OffPolicyLearner
from rl_training.runtime.trainer import Trainer


def test_a_run_writes_checkpoint_and_metrics(tmp_path: Path) -> None:
    result = train_drq(tiny_config("drq", output_dir=str(tmp_path / "run"), num_envs=2))
    assert result.run_dir is not None
    assert result.checkpoint is not None
    assert (result.env_steps, result.interrupted_by) == (240, None)
    assert verify_checkpoint(result.checkpoint)["info"]["step"] == 240
    last = [record for record in metrics_without_time(result.run_dir) if record["kind"] == "train"][-1]
    assert {"critic_loss", "actor_loss", "target_q_mean", "entropy_term", "alpha"} <= set(last)


def test_pendulum_in_pixels_from_the_packaged_config(tmp_path: Path) -> None:
    """Drawn, stacked, repeated, stored one frame at a time; actions reach the environment in its own bounds."""
    values: dict[str, Any] = load_config_data("drq/pendulum_pixels")
    values |= {"total_timesteps": 130, "output_dir": str(tmp_path / "run"), "checkpoint": {"interval": 60}}
    values |= {"eval": {"interval": 0, "final_episodes": 1, "num_envs": 1}, "log": {"interval": 20, "tensorboard": False}}
    values["algo_kwargs"] |= {"learning_starts": 100, "batch_size": 16}
    trainer = Trainer(resolve_config(values))
    trainer.train(110)
    assert isinstance(trainer.learner, OffPolicyLearner)
    assert isinstance(trainer.learner.replay.buffer, FrameReplayBuffer)
    batch = trainer.learner.replay.buffer.sample(64)
    assert batch.obs.shape[1] == 3
    assert batch.action.shape == (64, 1)
    assert batch.action.abs().max() <= 1.0
    assert batch.discount.min() > 0.9  # Pendulum never terminates
    train_drq(resolve_config(values))
    with DrQ.load(tmp_path / "run") as agent:
        assert agent.evaluate(episodes=1).lengths == [100]
        action, _ = agent.predict(np.zeros(agent.policy.spec.observation.leaves[0].raw_shape, np.uint8))
        assert action.shape == (1,)
        assert np.abs(action) <= 2.0


def test_the_memory_of_the_replay_is_reported_before_the_start(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trainer = Trainer(tiny_config("drq", algo_kwargs={"buffer_size": 100_000}))
    assert trainer.learner.nbytes == pytest.approx(100_000 * 1.05 * (12 * 12 + 4 + 4 + 4 + 4 + 4) + 800_000, rel=0.01)
    assert "replay 18." in describe_run(trainer)
    train_drq(tiny_config("drq", output_dir=str(tmp_path / "run"), total_timesteps=30))
    agent = DrQ(
        env_of_tests("drq", "RandomWalk")["env_id"], buffer_size=150, batch_size=4, learning_starts=5, cnn_layers=[[4, 3, 2]]
    )
    agent.learn(10, progress=True)
    messages = [line for line in capsys.readouterr().err.splitlines() if "MB" in line]
    assert [re.findall(r"^drq on .* replay [\d.]+ MB, writing to (.*)$", line) for line in messages] == [
        [str(tmp_path / "run")],
        ["nowhere"],
    ]
    agent.learn(20)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("env_id", "message"),
    [
        ("CartPole-v1", "drq takes image .*observations and continuous actions, but CartPole-v1 has vector"),
        ("Pendulum-v1", "has vector observations and continuous actions; use one of: .*sac"),
        ("rl_training_test_envs:ImageWalk-v0", "has image observations and discrete actions"),
    ],
)
def test_anything_else_is_refused_by_name(env_id: str, message: str) -> None:
    with pytest.raises(SpaceError, match=message):
        Trainer(tiny_config("drq", env_id=env_id))


def test_the_options_beyond_v1_train() -> None:
    settings = {"encoder": "paper", "target_shifts": 2, "loss_shifts": 2, "learn_alpha": True, "actor_update_interval": 2}
    config = tiny_config("drq", **env_of_tests("drq", "Counting"), total_timesteps=60, algo_kwargs=settings)
    result = Trainer(config).train()
    assert result.updates > 0
    assert np.isfinite(result.metrics["critic_loss"])
