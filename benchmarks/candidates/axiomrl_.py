"""AxiomRL's recurrent candidates. Its encoder has no activation after the last layer, so it does slightly less than ours."""

from __future__ import annotations

from typing import Any

import torch
from axiomrl.algorithms.drqn import DRQN
from axiomrl.algorithms.r2d2 import R2D2
from axiomrl.data.prioritized_recurrent_replay_buffer import PrioritizedRecurrentReplayBuffer
from axiomrl.data.recurrent_replay_buffer import RecurrentReplayBuffer
from axiomrl.models.recurrent import LSTMQNetwork
from axiomrl.runtime.drqn_trainer import train_drqn
from axiomrl.runtime.r2d2_trainer import train_r2d2
from measure import Measurement, repeat
from workloads import SequenceSettings

from candidates.axiomrl_value import measured

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
    """Adds whole sequences at once, because adding is not part of this workload."""
    for column in (buffer.obs, buffer.next_obs):
        column.copy_(torch.randn(column.shape))
    buffer.actions.copy_(torch.randint(0, settings.actions, buffer.actions.shape))
    buffer.rewards.fill_(1.0)
    buffer.mask.fill_(1.0)
    if hasattr(buffer, "priorities"):
        buffer.priorities.fill_(1.0)
    buffer.size = settings.sequences


def run(settings: SequenceSettings, seed: int) -> Measurement:
    return measured(
        train_r2d2 if settings.algo == "r2d2" else train_drqn,
        settings.algo,
        "CartPole-v1",
        settings.total_steps,
        seed,
        buffer_capacity=settings.sequences,
        batch_size=settings.batch_size,
        learning_starts=settings.learning_starts,
        learning_rate=settings.learning_rate,
        gamma=settings.gamma,
        train_frequency=1,
        target_update_interval=settings.target_copy_updates,
        hidden_sizes=[],
        head_hidden_sizes=[settings.width],
        features_dim=settings.width,
        recurrent_hidden_size=settings.width,
        sequence_length=settings.sequence_length,
        n_step=settings.n_step,
        prioritized_alpha=ALPHA,
        prioritized_beta_start=BETA,
    )
