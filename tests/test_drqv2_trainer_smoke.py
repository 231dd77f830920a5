"""The training entry of DrQ-v2, end to end on tiny runs, and that it learns what it should."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import family, metrics_without_time, settings_of, tiny_config
from learning import mean_return, must_be

from rl_training import DrQv2
from rl_training.algorithms.continuous import ContinuousAlgorithm
from rl_training.experiment.checkpoint import verify_checkpoint
from rl_training.experiment.config import load_config_data, resolve_config
from rl_training.runtime.drqv2_trainer import train_drqv2


def test_a_run_writes_checkpoint_and_metrics(tmp_path: Path) -> None:
    result = train_drqv2(tiny_config("drqv2", output_dir=str(tmp_path / "run"), num_envs=2))
    assert result.run_dir is not None
    assert result.checkpoint is not None
    assert (result.env_steps, result.interrupted_by) == (240, None)
    assert verify_checkpoint(result.checkpoint)["info"]["step"] == 240
    last = [record for record in metrics_without_time(result.run_dir) if record["kind"] == "train"][-1]
    assert {"critic_loss", "actor_loss", "target_q_mean", "noise"} <= set(last)


def test_pendulum_in_pixels_from_the_packaged_config(tmp_path: Path) -> None:
    values: dict[str, Any] = load_config_data("drqv2/pendulum_pixels")
    values |= {"total_timesteps": 120, "output_dir": str(tmp_path / "run"), "checkpoint": {"interval": 60}}
    values |= {"eval": {"interval": 0, "final_episodes": 1, "num_envs": 1}, "log": {"interval": 20, "tensorboard": False}}
    values["algo_kwargs"] |= {"learning_starts": 100, "batch_size": 16}
    train_drqv2(resolve_config(values))
    with DrQv2.load(tmp_path / "run") as agent:
        action, _ = agent.predict(np.zeros(agent.policy.spec.observation.leaves[0].raw_shape, np.uint8))
        assert action.shape == (1,)
        assert np.abs(action) <= 2.0


def sign_learned(algo: str, seed: int) -> float:
    """A bright or a dark picture, and one action that fits it: 1 for a policy that tells them apart, 0 at random."""
    noise = {"noise_steps": 300, "exploration_noise": 0.5, "alpha": 0.05}
    options = settings_of(algo, {**noise, "train_freq": 1, "frame_stack": 3})
    config = tiny_config(
        algo,
        seed=seed,
        env_id="rl_training_test_envs:SignPictures-v0",
        total_timesteps=600,
        eval={"interval": 0, "final_episodes": 50, "num_envs": 10},
        algo_kwargs={"hidden_sizes": [32], "learning_rate": 3e-3, "batch_size": 32, "buffer_size": 600, **options},
    )
    return mean_return(config)


SIGNS = {
    algo: must_be(above=0.9, name=f"{algo} tells pictures apart")(partial(sign_learned, algo))
    for algo in family(ContinuousAlgorithm)
}


@pytest.mark.parametrize("algo", [pytest.param(algo, marks=[] if algo == "drqv2" else [pytest.mark.slow]) for algo in SIGNS])
def test_a_trivial_task_is_learned_from_pictures(algo: str) -> None:
    SIGNS[algo].check()
