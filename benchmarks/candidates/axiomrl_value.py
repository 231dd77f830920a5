"""AxiomRL's candidates without memory. Its DQN does not clip gradients and its SAC has a fixed temperature, so both do
somewhat less work than ours."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from axiomrl.algorithms.dqn import DQN
from axiomrl.algorithms.qr_dqn import QRDQN
from axiomrl.data.replay_buffer import ReplayBuffer
from axiomrl.experiment.config import TrainConfig
from axiomrl.models.mlp_q_network import MLPQNetwork
from axiomrl.models.mlp_qr_q_network import MLPQRQNetwork
from axiomrl.runtime.callbacks import Callback
from axiomrl.runtime.dqn_trainer import train_dqn
from axiomrl.runtime.ppo_trainer import train_ppo
from axiomrl.runtime.sac_trainer import train_sac
from measure import Measurement, Rate, Stopwatch, repeat
from workloads import DQNSettings, PPOSettings, ReplaySettings, SACSettings, UpdateSettings


class LoopClock(Callback):  # type: ignore[misc]  # an untyped class
    """Times the training loop from inside, so that set-up, the last evaluation and the checkpoint are not included."""

    rate: Rate

    def __init__(self, total_steps: int) -> None:
        self._total, self.updates = total_steps, 0

    def on_train_start(self, trainer: Any) -> None:
        self._watch = Stopwatch()

    def on_update_end(self, trainer: Any, result: Any) -> None:
        self.updates += result.num_gradient_steps
        if trainer.global_step >= self._total:
            self.rate = self._watch.rate(trainer.global_step)


def measured(
    train: Callable[..., Any], algo: str, env_id: str, total_steps: int, seed: int, num_envs: int = 1, **algo_kwargs: Any
) -> Measurement:
    """A run from its first step to its last update, with as little logging and saving as possible."""
    clock = LoopClock(total_steps)
    with tempfile.TemporaryDirectory() as folder:
        config = TrainConfig(
            algo=algo,
            env_id=env_id,
            seed=seed,
            total_timesteps=total_steps,
            output_dir=Path(folder),
            device="cpu",
            num_envs=num_envs,
            eval_episodes=1,
            log_interval=total_steps,
            checkpoint_interval=total_steps,
            algo_kwargs=algo_kwargs,
        )
        train(config, callbacks=[clock])
    return Measurement(rates={"env steps": clock.rate}, work={"env steps": total_steps, "updates": clock.updates})


def dqn(settings: DQNSettings, seed: int) -> Measurement:
    return measured(
        train_dqn,
        "qr_dqn" if settings.num_quantiles else "c51_dqn" if settings.num_atoms else "dqn",
        settings.env_id,
        settings.total_steps,
        seed,
        settings.num_envs,
        buffer_capacity=settings.buffer_size,
        batch_size=settings.batch_size,
        learning_starts=settings.learning_starts,
        learning_rate=settings.learning_rate,
        gamma=settings.gamma,
        train_frequency=settings.steps_per_update,
        target_update_interval=settings.target_copy_steps,  # counts env steps
        hidden_sizes=list(settings.hidden_sizes),
        num_quantiles=settings.num_quantiles,
        num_atoms=settings.num_atoms,
        epsilon_end=settings.final_epsilon,
        exploration_fraction=settings.exploration_steps / settings.total_steps,
    )


def ppo(settings: PPOSettings, seed: int) -> Measurement:
    return measured(
        train_ppo,
        "ppo",
        settings.env_id,
        settings.total_steps,
        seed,
        settings.num_envs,
        num_steps=settings.n_steps,
        update_epochs=settings.n_epochs,
        minibatch_size=settings.num_envs * settings.n_steps // settings.n_minibatches,
        learning_rate=settings.learning_rate,
        hidden_sizes=list(settings.hidden_sizes),
    )


def sac(settings: SACSettings, seed: int) -> Measurement:
    return measured(
        train_sac,
        "sac",
        settings.env_id,
        settings.total_steps,
        seed,
        buffer_capacity=settings.buffer_size,
        batch_size=settings.batch_size,
        learning_starts=settings.learning_starts,
        learning_rate=settings.learning_rate,
        gamma=settings.gamma,
        tau=settings.tau,
        hidden_sizes=list(settings.hidden_sizes),
    )


def update(settings: UpdateSettings, seed: int) -> Measurement:
    torch.manual_seed(seed)
    network: dict[str, Any] = {
        "obs_dim": settings.obs_dim,
        "action_dim": settings.actions,
        "hidden_sizes": settings.hidden_sizes,
    }
    options: dict[str, Any] = {
        "learning_rate": settings.learning_rate,
        "gamma": settings.gamma,
        "target_update_interval": 500,
    }
    algorithm: Any
    if settings.num_quantiles:
        quantiles = MLPQRQNetwork(num_quantiles=settings.num_quantiles, **network)
        algorithm = QRDQN(q_network=quantiles, num_quantiles=settings.num_quantiles, **options)
    else:
        algorithm = DQN(q_network=MLPQNetwork(**network), **options)
    buffer: Any = ReplayBuffer(capacity=settings.buffer_size, obs_shape=(settings.obs_dim,), action_shape=())
    for column in (buffer.obs, buffer.next_obs, buffer.rewards):
        column.normal_()
    buffer.actions.random_(0, settings.actions)
    buffer.size = settings.buffer_size
    done = 0

    def learn() -> None:
        nonlocal done
        done += 1
        algorithm.update(buffer.sample(settings.batch_size), global_step=done)

    repeat(learn, settings.warm_up)
    return Measurement({"updates": repeat(learn, settings.updates)}, {"updates": done})


def replay(settings: ReplaySettings, seed: int) -> Measurement:
    torch.manual_seed(seed)
    rng = np.random.default_rng(seed)

    def new_buffer() -> Any:
        return ReplayBuffer(capacity=settings.capacity, obs_shape=(settings.obs_dim,), action_shape=())

    def step() -> dict[str, Any]:
        obs, next_obs = rng.standard_normal((2, settings.obs_dim), np.float32)
        return {"obs": obs, "actions": 0, "rewards": 1.0, "next_obs": next_obs, "dones": False}

    buffer, several = new_buffer(), settings.envs_per_add
    adding = repeat(partial(buffer.add, **step()), settings.capacity)
    sampling = repeat(partial(buffer.sample, settings.batch_size), settings.samples)
    other, steps = new_buffer(), [step() for _ in range(several)]

    def add_several() -> None:
        for one in steps:  # as its trainers do: there is no call that adds several
            other.add(**one)

    adding_several = repeat(add_several, settings.capacity // several, several)
    return Measurement(
        {
            "add, 1 per call": adding,
            f"add, {several} per call": adding_several,
            f"sample of {settings.batch_size}": sampling,
        }
    )
