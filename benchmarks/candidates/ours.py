"""This repository's candidates."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import torch
from measure import Measurement, Rate, Stopwatch, repeat, timed
from workloads import DQNSettings, DrQSettings, PPOSettings, ReplaySettings, SACSettings, UpdateSettings

from rl_training.algorithms.base import init_generator
from rl_training.algorithms.drq import DrQ, DrQConfig
from rl_training.data import PrioritizedReplayBuffer, ReplayBuffer, random_shift
from rl_training.experiment.config import TrainConfig, resolve_config
from rl_training.experiment.registry import get_algorithm
from rl_training.rng import RandomStreams
from rl_training.runtime.cadence import PhaseTimer
from rl_training.runtime.hooks import Training
from rl_training.runtime.progress import Progress
from rl_training.runtime.trainer import Trainer
from rl_training.types import ActionSpec, ObservationSpec, SpaceSpec, TransitionBatch, Transitions


class LoopClock(Progress):
    """Times the training loop from inside, so that construction and the final evaluation are not included."""

    rate: Rate

    def on_start(self, training: Training) -> None:
        self._training = training
        self._watch = Stopwatch()

    def update(self) -> None:
        if self._training.env_steps >= self._training.total_timesteps:
            self.rate = self._watch.rate(self._training.env_steps)


def distribution(settings: DQNSettings | UpdateSettings) -> tuple[str, dict[str, Any]]:
    """The algorithm, and its settings for the return distribution."""
    if settings.num_quantiles:
        return "qr_dqn", {"num_quantiles": settings.num_quantiles}
    if settings.num_atoms:
        return "c51", {"num_atoms": settings.num_atoms, "v_min": 0.0, "v_max": 100.0}
    return "dqn", {}


def run_config(
    algo: str, settings: DQNSettings | PPOSettings | SACSettings, seed: int, compile_mode: str, *own: str, **further: Any
) -> TrainConfig:
    """A config of ours: the settings named ``own`` under their names, and further ones."""
    return resolve_config(
        {
            "algo": algo,
            "compile": compile_mode,
            "env_id": settings.env_id,
            "num_envs": getattr(settings, "num_envs", 1),
            "seed": seed,
            "total_timesteps": settings.total_steps,
            "device": "cpu",
            "eval": {"interval": 0, "final_episodes": 1, "num_envs": 1},
            "algo_kwargs": {**{name: getattr(settings, name) for name in own}, **further},
        }
    )


#: Settings that all replay learners have under one name.
REPLAYED = ("hidden_sizes", "gamma", "learning_rate", "buffer_size", "batch_size", "learning_starts")


def dqn_config(settings: DQNSettings, seed: int, compile_mode: str) -> TrainConfig:
    """The settings as a config of ours. Our target interval counts updates, not env steps."""
    algo, own_settings = distribution(settings)
    return run_config(
        algo,
        settings,
        seed,
        compile_mode,
        *REPLAYED,
        "max_grad_norm",
        train_freq=settings.steps_per_update,
        gradient_steps=1,
        target_update_interval=settings.target_copy_steps // settings.steps_per_update,
        exploration_final_eps=settings.final_epsilon,
        exploration_steps=settings.exploration_steps,
        **own_settings,
    )


def measured(config: TrainConfig) -> Measurement:
    """A run from its first step to its last."""
    clock = LoopClock()
    result = Trainer(config, progress=clock).train()
    return Measurement(
        rates={"env steps": clock.rate},
        work={"env steps": result.env_steps, "updates": result.updates},
        outcome={"return of the last 100 episodes": result.metrics["return_mean"]},
        seconds=result.seconds,
    )


def dqn(settings: DQNSettings, seed: int, compile_mode: str = "off") -> Measurement:
    return measured(dqn_config(settings, seed, compile_mode))


def dqn_compiled(settings: DQNSettings, seed: int) -> Measurement:
    return dqn(settings, seed, "on")


def update(settings: UpdateSettings, seed: int, compile_mode: str = "off") -> Measurement:
    algo, own_settings = distribution(settings)
    own = ("hidden_sizes", "batch_size", "buffer_size", "learning_rate", "gamma", "max_grad_norm")
    values = {**{name: getattr(settings, name) for name in own}, **own_settings}
    algorithm_class: Any = get_algorithm(algo)
    config = algorithm_class.config_class.model_validate(values)
    spec = SpaceSpec(ObservationSpec.vector(settings.obs_dim), ActionSpec("discrete", count=settings.actions))
    streams = RandomStreams(seed)
    algorithm = algorithm_class(algorithm_class.make_policy(config, spec, init_generator(seed)), config, streams)
    replay, rng, size = algorithm.make_replay(1), np.random.default_rng(seed), settings.buffer_size
    obs, next_obs = rng.standard_normal((2, size, settings.obs_dim), np.float32)
    reward, discount = rng.standard_normal(size, np.float32), np.full(size, settings.gamma, np.float32)
    replay.buffer.add(Transitions(obs, rng.integers(0, settings.actions, size), reward, next_obs, discount))
    compiling = repeat(lambda: algorithm.compile(replay.example()), 1).wall_seconds if compile_mode == "on" else 0.0

    def learn(timer: PhaseTimer) -> None:
        batch = replay.sample(0)
        timer.lap("sampling")
        algorithm.update(batch)
        timer.lap("update")

    rate, seconds = timed(learn, settings.warm_up, settings.updates)
    return Measurement({"updates": rate}, {"updates": algorithm.updates}, seconds={**seconds, "compilation": compiling})


def update_compiled(settings: UpdateSettings, seed: int) -> Measurement:
    return update(settings, seed, "on")


def ppo_compiled(settings: PPOSettings, seed: int) -> Measurement:
    return ppo(settings, seed, "on")


def ppo(settings: PPOSettings, seed: int, compile_mode: str = "off") -> Measurement:
    algo, own = settings.algo, ["hidden_sizes", "n_steps", "learning_rate"]
    if algo == "ppo":
        own += ["n_epochs", "n_minibatches"]
    if settings.lstm_size:
        algo, own = "recurrent_ppo", [*own, "lstm_size"]
    return measured(run_config(algo, settings, seed, compile_mode, *own))


def transitions(rng: np.random.Generator, count: int, obs_dim: int) -> Transitions:
    """One step of ``count`` environments, in the shapes that the training loop stores."""
    obs, next_obs = rng.standard_normal((2, count, obs_dim), np.float32)
    discount = np.full(count, 0.99, np.float32)
    return Transitions(obs, np.zeros(count, np.int64), np.ones(count, np.float32), next_obs, discount)


def sac_compiled(settings: SACSettings, seed: int) -> Measurement:
    return sac(settings, seed, "on")


def sac(settings: SACSettings, seed: int, compile_mode: str = "off") -> Measurement:
    return measured(run_config(settings.algo, settings, seed, compile_mode, *REPLAYED, "tau"))


def image_batch(settings: DrQSettings, seed: int) -> TransitionBatch:
    """Random noise in the shape of a sampled batch."""
    generator = torch.Generator().manual_seed(seed)
    size = (2, settings.batch_size, *settings.shape)
    obs, next_obs = torch.randint(0, 256, size, dtype=torch.uint8, generator=generator)
    action = torch.rand(settings.batch_size, 1, generator=generator) * 2.0 - 1.0
    reward = torch.randn(settings.batch_size, generator=generator)
    return TransitionBatch(obs, action, reward, next_obs, torch.full((settings.batch_size,), 0.99))


def drq_update(settings: DrQSettings, seed: int) -> Measurement:
    config = DrQConfig(
        batch_size=settings.batch_size,
        hidden_sizes=settings.hidden_sizes,
        cnn_features=settings.cnn_features,
        shift_pad=settings.shift_pad,
        learning_rate=settings.learning_rate,
        tau=settings.tau,
        alpha=settings.alpha,
    )
    action = ActionSpec("continuous", low=(-1.0,), high=(1.0,), raw_shape=(1,))
    spec = SpaceSpec(ObservationSpec.image(*settings.shape), action)
    algorithm = DrQ(DrQ.make_policy(config, spec, init_generator(seed)), config, RandomStreams(seed))
    batch = image_batch(settings, seed)
    repeat(lambda: algorithm.update(batch), settings.warm_up)
    updates = repeat(lambda: algorithm.update(batch), settings.updates)
    rng = np.random.default_rng(seed)

    def augment() -> None:
        for images in (batch.obs, batch.next_obs):
            random_shift(images, settings.shift_pad, rng)

    shifts = repeat(augment, 10 * settings.updates)
    return Measurement(
        rates={"updates": updates},
        work={"updates": algorithm.updates},
        outcome={
            "augmentation's share": updates.per_cpu_second / shifts.per_cpu_second,
            "augmentation's share of the wall": updates.per_wall_second / shifts.per_wall_second,
        },
    )


def replay(settings: ReplaySettings, seed: int) -> Measurement:
    rng = np.random.default_rng(seed)

    def new_buffer() -> ReplayBuffer:
        return ReplayBuffer(settings.capacity, (settings.obs_dim,), rng=rng)

    buffer = new_buffer()
    adding = repeat(partial(buffer.add, transitions(rng, 1, settings.obs_dim)), settings.capacity)
    sampling = repeat(partial(buffer.sample, settings.batch_size), settings.samples)
    several = settings.envs_per_add
    steps = transitions(rng, several, settings.obs_dim)
    adding_several = repeat(partial(new_buffer().add, steps), settings.capacity // several, several)
    return Measurement(
        {
            "add, 1 per call": adding,
            f"add, {several} per call": adding_several,
            f"sample of {settings.batch_size}": sampling,
        }
    )


def prioritized(settings: ReplaySettings, seed: int) -> Measurement:
    rng = np.random.default_rng(seed)
    buffer = PrioritizedReplayBuffer(settings.capacity, (settings.obs_dim,), alpha=0.6, rng=rng)
    block = 10_000
    for _ in range(settings.capacity // block):
        buffer.add(transitions(rng, block, settings.obs_dim))

    def cycle() -> None:
        batch = buffer.sample(settings.batch_size, beta=0.4)
        assert batch.indices is not None
        buffer.update_priorities(batch.indices, rng.random(settings.batch_size))

    return Measurement({f"sample + update of {settings.batch_size}": repeat(cycle, settings.samples)})
