"""R2D2's training entry, end to end on tiny runs, and the memory task that only memory solves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import family, tiny_config
from learning import mean_return, must_be
from recurrent_runs import check_run, check_stored_states
from replays import priorities_of

from rl_training.algorithms.recurrent_value import RecurrentQLearning
from rl_training.data import PrioritizedRecurrentReplayBuffer
from rl_training.errors import ConfigError
from rl_training.experiment.config import load_config_data, resolve_config
from rl_training.runtime.learner import OffPolicyLearner
from rl_training.runtime.r2d2_trainer import train_r2d2
from rl_training.runtime.trainer import Trainer

EVERYTHING: dict[str, Any] = {
    "burn_in": 3,
    "overlap": 3,
    "rescale_values": True,
    "previous_inputs": True,
    "epsilon_spread": 7.0,
    "dueling": True,
}


@pytest.mark.parametrize("settings", [{}, EVERYTHING], ids=["plain", "everything"])
def test_train_r2d2_writes_checkpoint_and_metrics(settings: dict[str, Any], tmp_path: Path) -> None:
    check_run(train_r2d2(tiny_config("r2d2", output_dir=str(tmp_path / "run"), algo_kwargs=settings)), "r2d2")


@pytest.mark.parametrize(
    "settings",
    [{}, EVERYTHING, {"burn_in": 6}, {"previous_inputs": True, "clip_reward": 0.5}],
    ids=["plain", "everything", "burn-in", "clipped"],
)
def test_stored_states_are_those_that_acting_had(settings: dict[str, Any]) -> None:
    check_stored_states("r2d2", **settings)


def test_priorities_of_the_updates_reach_the_replay() -> None:
    trainer = Trainer(tiny_config("r2d2", num_envs=2))
    trainer.train(150)
    assert isinstance(trainer.learner, OffPolicyLearner)
    buffer = trainer.learner.replay.buffer
    assert isinstance(buffer, PrioritizedRecurrentReplayBuffer)
    leaves = priorities_of(buffer)
    assert len(np.unique(leaves[leaves > 0])) > 3


@pytest.mark.parametrize("algo", family(RecurrentQLearning))
def test_the_smallest_replay_gives_a_batch_and_a_smaller_one_is_refused(algo: str) -> None:
    sizes = {"sequence_length": 6, "batch_size": 8}
    with pytest.raises(ConfigError, match=r"buffer_size \(59\).* 60$"):
        Trainer(tiny_config(algo, num_envs=2, algo_kwargs={**sizes, "buffer_size": 59}))
    assert Trainer(tiny_config(algo, num_envs=2, algo_kwargs={**sizes, "buffer_size": 60})).train().updates > 0


def test_images_with_every_frame_stored_once() -> None:
    settings = {"frame_stack": 3, "cnn_layers": [[4, 8, 4]], "n_step": 2, "buffer_size": 2000, **EVERYTHING}
    config = tiny_config(
        "r2d2", env_id="rl_training_test_envs:ImageWalk-v0", num_envs=2, total_timesteps=120, algo_kwargs=settings
    )
    trainer = Trainer(config)
    result = trainer.train()
    assert result.updates > 0
    assert trainer.learner.nbytes < 1.5 * 2000 * 36 * 36  # and not 3 or 6 times that


def test_the_packaged_paper_config_has_everything_on() -> None:
    config: Any = resolve_config(load_config_data("r2d2/paper")).algo_kwargs
    assert config.burn_in > 0
    assert config.overlap > 0
    assert config.epsilon_spread == 7.0
    assert config.rescale_values
    assert config.previous_inputs
    assert config.dueling
    assert config.double
    assert config.n_step == 5


def share_right(algo: str, seed: int, **algo_kwargs: Any) -> float:
    """How often the greedy policy recalls the cue after 5 steps."""
    config = tiny_config(
        algo,
        seed=seed,
        env_id="rl_training/Recall-v0",
        env_kwargs={"k": 5},
        num_envs=4,
        total_timesteps=4000,
        eval={"interval": 0, "final_episodes": 100, "num_envs": 10},
        algo_kwargs={
            "learning_starts": 300,
            "train_freq": 8,
            "buffer_size": 3000,
            "exploration_steps": 2000,
            "learning_rate": 5e-3,
            "target_update_interval": 20,
            "batch_size": 32,
            **algo_kwargs,
        },
    )
    return mean_return(config)


#: The cue is the first of an episode's 6 steps, and the answer the last: one sequence holds both, so that gradients reach
#: from one to the other. Stored states are tested by themselves.
RECURRENT: dict[str, Any] = {"lstm_size": 16, "lstm_layers": 1, "sequence_length": 6}


@must_be(above=0.95)
def r2d2_recalls(seed: int) -> float:
    return share_right("r2d2", seed, n_step=3, **RECURRENT)


@must_be(above=0.95)
def drqn_recalls(seed: int) -> float:
    return share_right("drqn", seed, **RECURRENT)


@must_be(below=0.75)
def dqn_cannot_recall(seed: int) -> float:
    return share_right("dqn", seed, hidden_sizes=[32])


def test_only_memory_solves_a_memory_task() -> None:
    r2d2_recalls.check()
    dqn_cannot_recall.check()


@pytest.mark.slow  # with R2D2's network, and a simpler replay
def test_drqn_solves_it_too() -> None:
    drqn_recalls.check()
