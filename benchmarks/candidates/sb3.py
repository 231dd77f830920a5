"""Stable-Baselines3's candidates, set up as its documentation recommends."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from gymnasium import spaces
from measure import Measurement, Stopwatch, repeat
from stable_baselines3 import A2C, DQN, PPO, SAC, TD3
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.noise import NormalActionNoise
from workloads import DQNSettings, PPOSettings, ReplaySettings, SACSettings


def dqn(settings: DQNSettings, seed: int) -> Measurement:
    return measure_dqn(DQN, settings, seed)


def learned(model: Any, steps: int, updates_per_count: int = 1) -> Measurement:
    """The rate of a run that logs nothing, as on our side."""
    watch = Stopwatch()
    model.learn(steps, log_interval=steps)
    work = {"env steps": model.num_timesteps, "updates": model._n_updates * updates_per_count}
    return Measurement(rates={"env steps": watch.rate(model.num_timesteps)}, work=work)


def measure_dqn(algorithm: Any, settings: DQNSettings, seed: int, **policy_kwargs: Any) -> Measurement:
    """DQN, or an algorithm with the same settings."""
    assert settings.steps_per_update % settings.num_envs == 0
    model = algorithm(
        "MlpPolicy",
        make_vec_env(settings.env_id, settings.num_envs, seed=seed),
        learning_rate=settings.learning_rate,
        buffer_size=settings.buffer_size,
        learning_starts=settings.learning_starts,
        batch_size=settings.batch_size,
        gamma=settings.gamma,
        train_freq=settings.steps_per_update // settings.num_envs,  # counts steps of the vector environment
        gradient_steps=1,
        target_update_interval=settings.target_copy_steps,  # counts env steps; SB3 divides by the number of envs
        exploration_fraction=settings.exploration_steps / settings.total_steps,
        exploration_initial_eps=1.0,
        exploration_final_eps=settings.final_epsilon,
        max_grad_norm=settings.max_grad_norm,
        policy_kwargs={"net_arch": list(settings.hidden_sizes), **policy_kwargs},
        seed=seed,
        device="cpu",
    )
    measured = learned(model, settings.total_steps)
    returns = [episode["r"] for episode in model.ep_info_buffer or ()]
    return replace(measured, outcome={"return of the last 100 episodes": float(np.mean(returns))})


def ppo(settings: PPOSettings, seed: int) -> Measurement:
    return measure_ppo(PPO, "MlpPolicy", settings, seed)


def measure_ppo(algorithm: Any, policy: str, settings: PPOSettings, seed: int, **policy_kwargs: Any) -> Measurement:
    """PPO, or an algorithm with the same settings."""
    model = algorithm(
        policy,
        make_vec_env(settings.env_id, settings.num_envs, seed=seed),
        learning_rate=settings.learning_rate,
        n_steps=settings.n_steps,
        batch_size=settings.n_steps * settings.num_envs // settings.n_minibatches,
        n_epochs=settings.n_epochs,
        policy_kwargs={"net_arch": list(settings.hidden_sizes), **policy_kwargs},
        seed=seed,
        device="cpu",
    )
    return learned(model, settings.total_steps, settings.n_minibatches)  # SB3 counts epochs


def a2c(settings: PPOSettings, seed: int) -> Measurement:
    model = A2C(
        "MlpPolicy",
        make_vec_env(settings.env_id, settings.num_envs, seed=seed),
        learning_rate=settings.learning_rate,
        n_steps=settings.n_steps,
        use_rms_prop=False,  # Adam, as on our side
        policy_kwargs={"net_arch": list(settings.hidden_sizes)},
        seed=seed,
        device="cpu",
    )
    return learned(model, settings.total_steps)


def sac(settings: SACSettings, seed: int) -> Measurement:
    return measure_sac(SAC, settings, seed)


def td3(settings: SACSettings, seed: int) -> Measurement:
    return measure_sac(TD3, settings, seed, action_noise=NormalActionNoise(np.zeros(1), np.full(1, 0.1)))


def measure_sac(algorithm: Any, settings: SACSettings, seed: int, **further: Any) -> Measurement:
    """SAC, or an algorithm with the same settings."""
    model = algorithm(
        "MlpPolicy",
        make_vec_env(settings.env_id, 1, seed=seed),
        learning_rate=settings.learning_rate,
        buffer_size=settings.buffer_size,
        learning_starts=settings.learning_starts,
        batch_size=settings.batch_size,
        gamma=settings.gamma,
        tau=settings.tau,
        policy_kwargs={"net_arch": list(settings.hidden_sizes)},
        seed=seed,
        device="cpu",
        **further,
    )
    return learned(model, settings.total_steps)


def replay(settings: ReplaySettings, seed: int) -> Measurement:
    np.random.seed(seed)  # noqa: NPY002  # this library samples with the global generator
    observation_space = spaces.Box(-np.inf, np.inf, (settings.obs_dim,), np.float32)
    rng = np.random.default_rng(seed)

    def new_buffer(num_envs: int) -> ReplayBuffer:
        return ReplayBuffer(settings.capacity, observation_space, spaces.Discrete(2), device="cpu", n_envs=num_envs)

    def step(count: int) -> dict[str, Any]:
        obs, next_obs = rng.standard_normal((2, count, settings.obs_dim), np.float32)
        return {
            "obs": obs,
            "next_obs": next_obs,
            "action": np.zeros(count, np.int64),
            "reward": np.ones(count, np.float32),
            "done": np.zeros(count, np.bool_),
            "infos": [{"TimeLimit.truncated": False} for _ in range(count)],
        }

    buffer = new_buffer(1)
    adding = repeat(partial(buffer.add, **step(1)), settings.capacity)
    sampling = repeat(partial(buffer.sample, settings.batch_size), settings.samples)
    several = settings.envs_per_add
    adding_several = repeat(partial(new_buffer(several).add, **step(several)), settings.capacity // several, several)
    return Measurement(
        {
            "add, 1 per call": adding,
            f"add, {several} per call": adding_several,
            f"sample of {settings.batch_size}": sampling,
        }
    )
