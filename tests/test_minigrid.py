"""The packaged configs for MiniGrid (extra ``minigrid``)."""

from __future__ import annotations

from typing import Any

import pytest

from rl_training.experiment.config import load_config_data, resolve_config
from rl_training.experiment.packaged import packaged_configs
from rl_training.runtime.trainer import Trainer

CONFIGS = [name for name in packaged_configs() if "/minigrid" in name]
ROLLOUTS = {"n_steps": 16, "n_minibatches": 2, "n_epochs": 1, "cnn_features": 8}
SMALL: dict[str, dict[str, Any]] = {
    "ppo": ROLLOUTS,
    "recurrent_ppo": {**ROLLOUTS, "lstm_size": 8},
    "r2d2": {"learning_starts": 64, "batch_size": 4, "sequence_length": 8, "lstm_size": 8, "buffer_size": 1000},
}


def test_there_are_three_rooms_for_each_algorithm() -> None:
    rooms = {f"minigrid_{room}" for room in ("empty", "doorkey", "memory")}
    assert set(CONFIGS) == {f"{algo}/{room}" for algo in SMALL for room in rooms}


@pytest.mark.parametrize("name", CONFIGS)
def test_a_packaged_config_trains_on_planes(name: str) -> None:
    pytest.importorskip("minigrid")
    data: dict[str, Any] = load_config_data(name)
    data |= {"total_timesteps": 128, "num_envs": 2, "eval": {"interval": 0, "final_episodes": 1, "num_envs": 1}}
    data["algo_kwargs"] |= {**SMALL[data["algo"]], "hidden_sizes": [8]}
    trainer = Trainer(resolve_config(data))
    result = trainer.train()
    trainer.close()
    assert result.updates > 0
    assert result.evaluation is not None
