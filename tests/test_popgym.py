"""The packaged configs for POPGym (extra ``popgym``)."""

from __future__ import annotations

from typing import Any

import pytest

from rl_training.experiment.config import load_config_data, resolve_config
from rl_training.experiment.packaged import packaged_configs
from rl_training.runtime.trainer import Trainer

CONFIGS = [name for name in packaged_configs() if "/popgym" in name]
ROLLOUTS = {"n_steps": 16, "n_minibatches": 2, "n_epochs": 1}
SMALL: dict[str, dict[str, Any]] = {
    "r2d2": {
        "learning_starts": 40,
        "batch_size": 4,
        "sequence_length": 8,
        "encoder_sizes": [8],
        "lstm_size": 8,
        "buffer_size": 1000,
    },
    "recurrent_ppo": {**ROLLOUTS, "lstm_size": 8},
    "ppo": ROLLOUTS,
}


def test_there_are_configs() -> None:
    assert {name.split("/")[0] for name in CONFIGS} == set(SMALL)


@pytest.mark.parametrize("name", CONFIGS)
def test_a_packaged_config_trains(name: str) -> None:
    pytest.importorskip("popgym")
    data: dict[str, Any] = load_config_data(name)
    data |= {"total_timesteps": 240, "num_envs": 2, "eval": {"interval": 0, "final_episodes": 1, "num_envs": 1}}
    data["algo_kwargs"] |= {**SMALL[data["algo"]], "hidden_sizes": [8]}
    trainer = Trainer(resolve_config(data))
    result = trainer.train()
    trainer.close()
    assert result.episodes > 0
    assert result.updates > 0
    assert result.evaluation is not None
