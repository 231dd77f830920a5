"""The result of a call of ``train``."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from rl_training.runtime.evaluation import EvaluationResult


@dataclass(frozen=True)
class TrainResult:
    """The results of a call of ``train`` and where they are stored."""

    env_steps: int  # in the whole run
    steps_now: int  # in this call
    episodes: int
    updates: int
    metrics: dict[str, float]
    evaluation: EvaluationResult | None
    best_return: float | None
    run_dir: Path | None
    checkpoint: Path | None
    interrupted_by: int | None  # the number of the signal that stopped it
    stopped_by: str | None = None  # which hook asked to stop, and why
    seconds: dict[str, float] = field(default_factory=dict)
