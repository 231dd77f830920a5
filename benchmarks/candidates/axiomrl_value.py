"""The candidates of AxiomRL's value family. It clips no gradients, which spares it some of our work."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from axiomrl.experiment.config import TrainConfig
from axiomrl.runtime.callbacks import Callback
from axiomrl.runtime.dqn_trainer import train_dqn
from measure import Measurement, Rate, Stopwatch
from workloads import DQNSettings


class LoopClock(Callback):  # type: ignore[misc]  # a class without types
    """Times the training loop from inside, so that set-up, the last evaluation and the checkpoint stay out."""

    rate: Rate

    def __init__(self, total_steps: int) -> None:
        self._total, self.updates = total_steps, 0

    def on_train_start(self, trainer: Any) -> None:
        self._watch = Stopwatch()

    def on_update_end(self, trainer: Any, result: Any) -> None:
        self.updates += result.num_gradient_steps
        if trainer.global_step >= self._total:
            self.rate = self._watch.rate(trainer.global_step)


def dqn(settings: DQNSettings, seed: int) -> Measurement:
    clock = LoopClock(settings.total_steps)
    with tempfile.TemporaryDirectory() as folder:
        config = TrainConfig(
            algo="qr_dqn" if settings.num_quantiles else "c51_dqn" if settings.num_atoms else "dqn",
            env_id=settings.env_id,
            seed=seed,
            total_timesteps=settings.total_steps,
            output_dir=Path(folder),
            device="cpu",
            num_envs=settings.num_envs,
            eval_episodes=1,
            log_interval=settings.total_steps,
            checkpoint_interval=settings.total_steps,
            algo_kwargs={
                "buffer_capacity": settings.buffer_size,
                "batch_size": settings.batch_size,
                "learning_starts": settings.learning_starts,
                "learning_rate": settings.learning_rate,
                "gamma": settings.gamma,
                "train_frequency": settings.steps_per_update,
                "target_update_interval": settings.target_copy_steps,  # counts env steps
                "hidden_sizes": list(settings.hidden_sizes),
                "num_quantiles": settings.num_quantiles,
                "num_atoms": settings.num_atoms,
                "epsilon_end": settings.final_epsilon,
                "exploration_fraction": settings.exploration_steps / settings.total_steps,
            },
        )
        train_dqn(config, callbacks=[clock])
    return Measurement(rates={"env steps": clock.rate}, work={"env steps": settings.total_steps, "updates": clock.updates})
