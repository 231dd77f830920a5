"""The candidates of Tianshou, set up as its examples do it."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import torch
from measure import Measurement, Stopwatch
from tianshou.algorithm import C51
from tianshou.algorithm.modelfree.c51 import C51Policy
from tianshou.algorithm.optim import AdamOptimizerFactory
from tianshou.data import Collector, VectorReplayBuffer
from tianshou.env import DummyVectorEnv
from tianshou.trainer import OffPolicyTrainerParams
from tianshou.utils.net.common import Net
from workloads import DQNSettings


def c51(settings: DQNSettings, seed: int) -> Measurement:
    """It clips no gradients, which spares it some of our work."""
    np.random.seed(seed)  # noqa: NPY002  # the generator that this library draws from
    torch.manual_seed(seed)
    envs = DummyVectorEnv([lambda: gym.make(settings.env_id) for _ in range(settings.num_envs)])
    space, actions = envs.observation_space[0], envs.action_space[0]
    network = Net(
        state_shape=space.shape,
        action_shape=actions.n,
        hidden_sizes=list(settings.hidden_sizes),
        softmax=True,
        num_atoms=settings.num_atoms,
    )
    policy = C51Policy(network, actions, space, num_atoms=settings.num_atoms, eps_training=1.0)
    algorithm = C51(
        policy=policy,
        optim=AdamOptimizerFactory(lr=settings.learning_rate),
        gamma=settings.gamma,
        target_update_freq=settings.target_copy_steps // settings.steps_per_update,
    )
    buffer = VectorReplayBuffer(settings.buffer_size, settings.num_envs)
    collector = Collector(algorithm, envs, buffer, exploration_noise=True)
    collector.reset()
    updates = 0

    def anneal(epoch: int, env_step: int) -> None:
        nonlocal updates
        updates += 1
        share = min(1.0, (settings.learning_starts + env_step) / settings.exploration_steps)
        policy.set_eps_training(1.0 + share * (settings.final_epsilon - 1.0))

    watch = Stopwatch()
    collector.collect(n_step=settings.learning_starts, random=True)
    steps = settings.total_steps - settings.learning_starts
    algorithm.run_training(
        OffPolicyTrainerParams(
            training_collector=collector,
            max_epochs=1,
            epoch_num_steps=steps,
            collection_step_num_env_steps=settings.steps_per_update,
            update_step_num_gradient_steps_per_sample=1 / settings.steps_per_update,
            batch_size=settings.batch_size,
            training_fn=anneal,
            verbose=False,
            show_progress=False,
        )
    )
    rate = watch.rate(settings.total_steps)
    return Measurement(rates={"env steps": rate}, work={"env steps": settings.total_steps, "updates": updates})
