"""The candidates of AxiomRL. Its encoder has no activation after its last layer, so a little less work than ours."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import torch
from axiomrl.algorithms.drqn import DRQN
from axiomrl.algorithms.r2d2 import R2D2
from axiomrl.data.prioritized_recurrent_replay_buffer import PrioritizedRecurrentReplayBuffer
from axiomrl.data.recurrent_replay_buffer import RecurrentReplayBuffer
from axiomrl.experiment.config import TrainConfig
from axiomrl.models.recurrent import LSTMQNetwork
from axiomrl.runtime.drqn_trainer import train_drqn
from axiomrl.runtime.r2d2_trainer import train_r2d2
from measure import Measurement, Rate, Stopwatch, repeat
from workloads import SequenceSettings

ALPHA, BETA = 0.6, 0.4


def updates(settings: SequenceSettings, seed: int) -> Measurement:
    torch.manual_seed(seed)
    width, prioritised = settings.width, settings.algo == "r2d2"
    network = LSTMQNetwork(
        obs_shape=(settings.obs_dim,),
        action_dim=settings.actions,
        features_dim=width,
        encoder_hidden_sizes=(),
        head_hidden_sizes=(width,),
        hidden_size=width,
    )
    algorithm = (R2D2 if prioritised else DRQN)(
        q_network=network,
        learning_rate=settings.learning_rate,
        gamma=settings.gamma,
        target_update_interval=settings.target_copy_updates,
    )
    options: dict[str, Any] = {
        "capacity": settings.sequences,
        "num_envs": 1,
        "obs_shape": (settings.obs_dim,),
        "sequence_length": settings.sequence_length,
        "hidden_size": width,
    }
    buffer: Any = (
        PrioritizedRecurrentReplayBuffer(alpha=ALPHA, **options) if prioritised else RecurrentReplayBuffer(**options)
    )
    fill(buffer, settings)
    done = 0

    def update() -> None:
        nonlocal done
        done += 1
        batch = buffer.sample(settings.batch_size, beta=BETA) if prioritised else buffer.sample(settings.batch_size)
        algorithm.update(batch, global_step=done)
        if prioritised:
            buffer.update_priorities(batch["indices"], algorithm.last_sequence_priorities)

    repeat(update, settings.warm_up)
    rate = repeat(update, settings.updates)
    return Measurement(rates={"updates": rate}, work={"updates": done})


def fill(buffer: Any, settings: SequenceSettings) -> None:
    """Whole sequences at once: adding is no part of this workload."""
    for column in (buffer.obs, buffer.next_obs):
        column.copy_(torch.randn(column.shape))
    buffer.actions.copy_(torch.randint(0, settings.actions, buffer.actions.shape))
    buffer.rewards.fill_(1.0)
    buffer.mask.fill_(1.0)
    if hasattr(buffer, "priorities"):
        buffer.priorities.fill_(1.0)
    buffer.size = settings.sequences


class LoopClock:
    """Times the training loop from inside, so that set-up, the last evaluation and the checkpoint stay out."""

    rate: Rate

    def __init__(self, settings: SequenceSettings) -> None:
        self._total, self.updates = settings.total_steps, 0

    def on_train_start(self, trainer: Any) -> None:
        self._watch = Stopwatch()

    def on_collect_end(self, trainer: Any, result: Any) -> None:
        return

    def on_update_end(self, trainer: Any, result: Any) -> None:
        self.updates += result.num_gradient_steps
        if trainer.global_step >= self._total:
            self.rate = self._watch.rate(trainer.global_step)

    def on_eval_end(self, trainer: Any, metrics: Any) -> None:
        return

    def on_train_end(self, trainer: Any, result: Any) -> None:
        return


def run(settings: SequenceSettings, seed: int) -> Measurement:
    clock = LoopClock(settings)
    with tempfile.TemporaryDirectory() as folder:
        config = TrainConfig(
            algo=settings.algo,
            env_id="CartPole-v1",
            seed=seed,
            total_timesteps=settings.total_steps,
            output_dir=Path(folder),
            device="cpu",
            eval_episodes=1,
            log_interval=settings.total_steps,
            checkpoint_interval=settings.total_steps,
            algo_kwargs={
                "buffer_capacity": settings.sequences,
                "batch_size": settings.batch_size,
                "learning_starts": settings.learning_starts,
                "learning_rate": settings.learning_rate,
                "gamma": settings.gamma,
                "train_frequency": 1,
                "target_update_interval": settings.target_copy_updates,
                "hidden_sizes": [],
                "head_hidden_sizes": [settings.width],
                "features_dim": settings.width,
                "recurrent_hidden_size": settings.width,
                "sequence_length": settings.sequence_length,
                "n_step": settings.n_step,
                "prioritized_alpha": ALPHA,
                "prioritized_beta_start": BETA,
            },
        )
        (train_r2d2 if settings.algo == "r2d2" else train_drqn)(config, callbacks=[clock])
    return Measurement(rates={"env steps": clock.rate}, work={"env steps": settings.total_steps, "updates": clock.updates})
