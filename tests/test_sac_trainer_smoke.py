"""The training entry of SAC, end to end on tiny runs, and that it learns what it should."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from conftest import metrics_without_time, tiny_config
from learning import mean_return, must_be

from rl_training import SAC
from rl_training.errors import SpaceError
from rl_training.experiment.checkpoint import verify_checkpoint
from rl_training.runtime.sac_trainer import train_sac
from rl_training.runtime.trainer import Trainer


def test_a_run_writes_checkpoint_and_metrics(tmp_path: Path) -> None:
    result = train_sac(tiny_config("sac", output_dir=str(tmp_path / "run"), num_envs=2))
    assert result.run_dir is not None
    assert result.checkpoint is not None
    assert (result.env_steps, result.interrupted_by) == (240, None)
    assert verify_checkpoint(result.checkpoint)["info"]["step"] == 240
    last = [record for record in metrics_without_time(result.run_dir) if record["kind"] == "train"][-1]
    assert {"critic_loss", "actor_loss", "target_q_mean", "entropy_term", "alpha", "learning_rate"} <= set(last)


def test_actions_of_several_dimensions(tmp_path: Path) -> None:
    """The environment refuses what is not within its bounds, which differ between the dimensions."""
    env_id = "rl_training_test_envs:UnevenActions-v0"
    train_sac(tiny_config("sac", env_id=env_id, total_timesteps=120, output_dir=str(tmp_path / "run")))
    with SAC.load(tmp_path / "run") as agent:
        assert len(agent.evaluate(episodes=2).returns) == 2
        action, _ = agent.predict(np.zeros(agent.policy.spec.observation.leaves[0].raw_shape))
        assert action.shape == (2,)
        assert agent.policy.spec.action.low == (-3.0, 0.5)
        assert agent.policy.spec.action.to_env(np.zeros((1, 2), np.float32)) == pytest.approx(np.array([[-1.4, 5.25]]))


def test_discrete_actions_are_refused_by_name() -> None:
    with pytest.raises(
        SpaceError, match=r"sac takes vector, image or mixed observations and continuous actions, but CartPole-v1 .* dqn"
    ):
        Trainer(tiny_config("sac", env_id="CartPole-v1"))


@must_be(above=-20)
def sac_walks_home(seed: int) -> float:
    """A walk against noise. Means over 1500 episodes: always heading home -13.5, standing still -34.5, at random -43.9."""
    config = tiny_config(
        "sac",
        seed=seed,
        env_id="rl_training_test_envs:RandomWalkContinuous-v0",
        env_kwargs={"limit": 100.0},
        total_timesteps=1500,
        eval={"interval": 0, "final_episodes": 50, "num_envs": 10},
        algo_kwargs={"hidden_sizes": [32, 32], "learning_rate": 3e-3, "batch_size": 64, "buffer_size": 3000, "gamma": 0.9},
    )
    return mean_return(config)


def test_sac_learns_a_trivial_task() -> None:
    sac_walks_home.check()
