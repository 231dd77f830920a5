"""This repository's recurrent candidates."""

from __future__ import annotations

from typing import Any

import numpy as np
from measure import Measurement, timed
from workloads import SequenceSettings

from candidates.ours import measured
from rl_training.algorithms.base import init_generator
from rl_training.experiment.config import TrainConfig, resolve_config
from rl_training.experiment.registry import get_algorithm
from rl_training.rng import RandomStreams
from rl_training.runtime.cadence import PhaseTimer
from rl_training.types import ActionSpec, ObservationSpec, SpaceSpec, Step

ENVS = 8


def config_of(settings: SequenceSettings, seed: int) -> TrainConfig:
    """The settings as a config of ours."""
    own = {"n_step": settings.n_step} if settings.algo == "r2d2" else {}
    return resolve_config(
        {
            "algo": settings.algo,
            "env_id": "CartPole-v1",
            "seed": seed,
            "total_timesteps": settings.total_steps,
            "device": "cpu",
            "eval": {"interval": 0, "final_episodes": 1, "num_envs": 1},
            "algo_kwargs": {
                "encoder_sizes": [settings.width],
                "lstm_size": settings.width,
                "hidden_sizes": [settings.width],
                "sequence_length": settings.sequence_length,
                "batch_size": settings.batch_size,
                "buffer_size": settings.sequences * settings.sequence_length,
                "learning_rate": settings.learning_rate,
                "learning_starts": settings.learning_starts,
                "gamma": settings.gamma,
                "max_grad_norm": None,
                "target_update_interval": settings.target_copy_updates,
                **own,
            },
        }
    )


def updates(settings: SequenceSettings, seed: int) -> Measurement:
    spec = SpaceSpec(ObservationSpec.vector(settings.obs_dim), ActionSpec("discrete", count=settings.actions))
    config, streams = config_of(settings, seed).algo_kwargs, RandomStreams(seed)
    algorithm_class: Any = get_algorithm(settings.algo)
    algorithm = algorithm_class(algorithm_class.make_policy(config, spec, init_generator(seed)), config, streams)
    replay = algorithm.make_replay(ENVS)
    rng = np.random.default_rng(seed)
    obs, never = rng.standard_normal((ENVS, settings.obs_dim), np.float32), np.zeros(ENVS, np.bool_)
    carry = algorithm.policy.initial_carry(ENVS)
    for _ in range(settings.sequences * settings.sequence_length // ENVS):
        next_obs = rng.standard_normal((ENVS, settings.obs_dim), np.float32)
        action = rng.integers(0, settings.actions, ENVS)
        step = Step(obs, action, np.ones(ENVS, np.float32), next_obs, never, never)
        replay.observe(step, carry)
        obs = next_obs

    def update(timer: PhaseTimer) -> None:
        batch = replay.sample(0)
        timer.lap("sampling")
        result = algorithm.update(batch)
        timer.lap("update")
        if batch.indices is not None:
            replay.update_priorities(batch, result.priorities.numpy())
            timer.lap("sampling")

    rate, seconds = timed(update, settings.warm_up, settings.updates)
    return Measurement({"updates": rate}, {"updates": algorithm.updates}, seconds=seconds)


def run(settings: SequenceSettings, seed: int) -> Measurement:
    return measured(config_of(settings, seed))
