"""Tianshou's candidates. Its C51 does not clip gradients, so it does slightly less work than the others."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from measure import Measurement, Stopwatch, repeat
from tianshou.algorithm.modelfree.c51 import C51, C51Policy
from tianshou.algorithm.optim import AdamOptimizerFactory
from tianshou.data import Collector, PrioritizedReplayBuffer, ReplayBuffer, VectorReplayBuffer
from tianshou.env import DummyVectorEnv
from tianshou.trainer import OffPolicyTrainerParams
from tianshou.utils.net.common import Net
from workloads import DQNSettings, ReplaySettings


def c51(settings: DQNSettings, seed: int) -> Measurement:
    envs = DummyVectorEnv([lambda: gym.make(settings.env_id)] * settings.num_envs)
    envs.seed(seed)
    space: Any = envs.action_space[0]
    net = Net(
        state_shape=envs.observation_space[0].shape,
        action_shape=space.n,
        hidden_sizes=list(settings.hidden_sizes),
        softmax=True,
        num_atoms=settings.num_atoms,
    )
    policy = C51Policy(net, space, num_atoms=settings.num_atoms, v_min=0.0, v_max=100.0, eps_training=1.0)
    algorithm: Any = C51(
        policy=policy,
        optim=AdamOptimizerFactory(lr=settings.learning_rate),
        gamma=settings.gamma,
        target_update_freq=settings.target_copy_steps // settings.steps_per_update,
    )
    collector: Any = Collector(
        algorithm, envs, VectorReplayBuffer(settings.buffer_size, settings.num_envs), exploration_noise=True
    )
    slope = (1.0 - settings.final_epsilon) / settings.exploration_steps

    def explore(epoch: int, env_step: int) -> None:
        done = settings.learning_starts + env_step
        policy.set_eps_training(max(settings.final_epsilon, 1.0 - slope * done))

    watch = Stopwatch()
    collector.reset()
    collector.collect(n_step=settings.learning_starts, random=True)
    learning_steps = settings.total_steps - settings.learning_starts
    result = algorithm.run_training(
        OffPolicyTrainerParams(
            training_collector=collector,
            max_epochs=1,
            epoch_num_steps=learning_steps,
            collection_step_num_env_steps=settings.steps_per_update,
            update_step_num_gradient_steps_per_sample=1.0 / settings.steps_per_update,
            batch_size=settings.batch_size,
            training_fn=explore,
            verbose=False,
            show_progress=False,
        )
    )
    rate = watch.rate(settings.total_steps)
    return Measurement({"env steps": rate}, {"env steps": settings.total_steps, "updates": int(result.update_step)}, {})


def prioritized(settings: ReplaySettings, seed: int) -> Measurement:
    np.random.seed(seed)  # noqa: NPY002  # this library samples with the global generator
    rng, size = np.random.default_rng(seed), settings.capacity
    obs, next_obs = rng.standard_normal((2, size, settings.obs_dim), np.float32)
    never: Any = np.zeros(size, np.bool_)
    columns: tuple[Any, ...] = (obs, np.zeros(size, np.int64), np.ones(size, np.float32), never, never, never, next_obs)
    buffer = PrioritizedReplayBuffer(size, alpha=0.6, beta=0.4)
    buffer.update(ReplayBuffer.from_data(*columns))

    def cycle() -> None:
        _, index = buffer.sample(settings.batch_size)
        buffer.update_weight(index, rng.random(settings.batch_size))

    cycle()  # numba compiles on the first call
    return Measurement({f"sample + update of {settings.batch_size}": repeat(cycle, settings.samples)})
