"""Trains R2D2: a thin wrapper around the common training loop."""

from __future__ import annotations

from rl_training.algorithms.r2d2 import R2D2
from rl_training.experiment.config import TrainConfig
from rl_training.runtime.sessions import train_family
from rl_training.runtime.trainer import TrainResult


def train_r2d2(config: TrainConfig) -> TrainResult:
    """Trains from a config to the end; returns the results and where they are stored."""
    return train_family(config, R2D2, "train_r2d2")
