"""The packaged configs for POPGym and MiniGrid (the extras of these names)."""

from __future__ import annotations

from typing import Any

import pytest

from rl_training.experiment.config import load_config_data, resolve_config
from rl_training.experiment.packaged import packaged_configs
from rl_training.runtime.trainer import Trainer

PACKAGES = ("popgym", "minigrid")
CONFIGS = [(package, name) for package in PACKAGES for name in packaged_configs() if f"/{package}" in name]
ROLLOUTS = {"n_steps": 16, "n_minibatches": 2, "n_epochs": 1, "cnn_features": 8}
SEQUENCES = {"learning_starts": 40, "batch_size": 4, "sequence_length": 8, "encoder_sizes": [8], "buffer_size": 1000}
SMALL: dict[str, dict[str, Any]] = {
    "r2d2": {**SEQUENCES, "lstm_size": 8},
    "recurrent_ppo": {**ROLLOUTS, "lstm_size": 8},
    "ppo": ROLLOUTS,
}


def test_every_algorithm_has_configs_for_both() -> None:
    assert {(package, name.split("/")[0]) for package, name in CONFIGS} == {(one, algo) for one in PACKAGES for algo in SMALL}
    rooms = {f"{algo}/minigrid_{room}" for algo in SMALL for room in ("empty", "doorkey", "memory")}
    assert {name for package, name in CONFIGS if package == "minigrid"} == rooms


@pytest.mark.parametrize(("package", "name"), CONFIGS)
def test_a_packaged_config_trains(package: str, name: str) -> None:
    pytest.importorskip(package)
    data: dict[str, Any] = load_config_data(name)
    evaluation = {"interval": 0, "final_episodes": 1, "num_envs": 1}
    data |= {"total_timesteps": 240, "num_envs": 2, "eval": evaluation}
    data["algo_kwargs"] |= {**SMALL[data["algo"]], "hidden_sizes": [8]}
    trainer = Trainer(resolve_config(data))
    result = trainer.train()
    trainer.close()
    assert result.updates > 0
    assert result.evaluation is not None
