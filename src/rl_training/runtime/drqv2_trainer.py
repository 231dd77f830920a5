"""Training DrQ-v2: a thin entry into the one loop."""

from __future__ import annotations

from rl_training.experiment.config import TrainConfig
from rl_training.runtime.sessions import train_to_end
from rl_training.runtime.trainer import TrainResult


def train_drqv2(config: TrainConfig) -> TrainResult:
    """Trains from a config to the end and returns what was reached and where it is."""
    return train_to_end(config, train_drqv2)
