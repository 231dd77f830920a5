"""Creates the environments of a run and selects its device."""

from __future__ import annotations

import functools
import os
from typing import Any

import gymnasium as gym
import torch

from rl_training.algorithms.policy import Policy
from rl_training.data.memory import require_memory
from rl_training.envs.factory import AnyVectorEnv, EnvFactory, GivenEnv, RegisteredEnv
from rl_training.envs.final_info import SUCCESS
from rl_training.envs.pool import EnvPool, SeededEnvPool
from rl_training.envs.vector_pool import VectorEnvPool
from rl_training.envs.wrappers import WrappedEnv
from rl_training.errors import FOREIGN, ConfigError
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.registry import fitted, get_algorithm
from rl_training.rng import TRAINING_EPISODES
from rl_training.types import ObservationSpec

#: More threads than this, and than twice the processors, are a mistake: starting them could end the process.
MOST_THREADS = 512
#: The least memory that an environment, a worker process and an evaluated episode take. Most environments take far more.
BYTES_PER_ENV = 4_000
BYTES_PER_WORKER = 40_000_000
BYTES_PER_EPISODE = 16


def make_pool(
    config: TrainConfig,
    factory: EnvFactory | None,
    stream: str,
    num_envs: int,
    workers: str = "inline",
    *,
    first: int = 0,
    recorded: ObservationSpec | None = None,
) -> EnvPool:
    """A pool of the environments in a config, or of those that the factory makes. ``recorded`` is the
    observation spec of a checkpoint, ``first`` the index of the pool's first environment in the run."""
    if factory is None and config.env_from_python:
        raise ConfigError(
            f"this agent was trained on {config.env_id}, an environment that was passed from Python; pass it again as env= "
            "of load_agent, load or resume; the command line takes only environments with a name, such as module:Class"
        )
    if factory is None and config.env_vector and stream == TRAINING_EPISODES:
        arguments = {"num_envs": config.num_envs, **config.env_kwargs}
        given = ", ".join([repr(config.env_id), *(f"{name}={value!r}" for name, value in arguments.items())])
        raise ConfigError(
            f"this agent was trained on a vector environment of {config.env_id} that was passed from Python; to train it "
            f"further, pass one again: resume(run, env=gym.make_vec({given}))"
        )
    if isinstance(factory, GivenEnv) and (workers == "subprocess" or config.env_fresh):
        raise ConfigError(
            "env_workers: subprocess and env_fresh need to create environments; pass a function that creates one instead of "
            "an environment"
        )
    _require_resources(config, num_envs, workers)
    common: dict[str, Any] = {
        "seed": config.seed,
        "stream": stream,
        "env_id": config.env_id,
        "info_keys": (SUCCESS, *config.log.info_keys),
        "fit": functools.partial(fitted, get_algorithm(config.algo), env_id=config.env_id, recorded=recorded),
    }
    pool: EnvPool
    made = _look_for_vector_env(config, factory, workers)
    if isinstance(made, gym.vector.VectorEnv):
        if config.env_timeout is not None:
            made.close()
            raise ConfigError(
                f"env_timeout has no effect on {config.env_id}, a vector environment, which steps its members itself: leave "
                "it out, or pass a function that creates one environment, with env_workers: subprocess"
            )
        pool = VectorEnvPool(made, **common)
    else:
        factory = made or factory or RegisteredEnv(config.env_id, config.env_kwargs)
        wrapped = WrappedEnv(factory, config.wrappers) if config.wrappers else factory
        pool = SeededEnvPool(
            wrapped,
            num_envs=num_envs,
            first=first,
            workers=workers,
            fresh=config.env_fresh,
            max_replay_steps=config.checkpoint.max_replay_steps,
            timeout=config.env_timeout,
            **common,
        )
    return pool


class _StartingWith:
    """A factory whose first environment has already been made."""

    def __init__(self, first: Any, factory: EnvFactory) -> None:
        self._first, self._factory = first, factory

    def __call__(self) -> Any:
        first, self._first = self._first, None
        return self._factory() if first is None else first


def _look_for_vector_env(config: TrainConfig, factory: EnvFactory | None, workers: str) -> AnyVectorEnv | EnvFactory | None:
    """The vector environment that a user's factory makes, or a factory whose first environment is the one it made."""
    if factory is None or workers != "inline" or config.env_fresh or config.wrappers:
        return None
    try:
        first: Any = factory()
    except FOREIGN:
        return None  # reported where environments are made
    return first if isinstance(first, gym.vector.VectorEnv) else _StartingWith(first, factory)


def _require_resources(config: TrainConfig, num_envs: int, workers: str) -> None:
    """Refuses what this machine cannot hold, before any of it is created."""
    cpus = os.cpu_count() or 1
    most = max(MOST_THREADS, 2 * cpus)
    if config.threads > most:
        raise ConfigError(
            f"threads is {config.threads}, but this machine has {cpus} CPU(s), and at most {most} threads can be asked for; "
            f"set threads to {cpus} or less"
        )
    evaluated = max(config.eval.episodes, config.eval.final_episodes)
    for count, size, what, setting in (
        (num_envs, BYTES_PER_ENV if workers == "inline" else BYTES_PER_WORKER, "environments", "num_envs"),
        (config.eval.num_envs, BYTES_PER_ENV, "environments for evaluation", "eval.num_envs"),
        (evaluated, BYTES_PER_EPISODE, "episodes in an evaluation", "eval.episodes and eval.final_episodes"),
    ):
        require_memory(count * size, f"a run with {count} {what}", f"lower {setting}")


def require_room_to_learn(policy: Policy) -> None:
    """Refuses a network whose gradients and averages of gradients would not fit into memory beside it."""
    parameters = list(policy.network.parameters())
    require_memory(
        3 * sum(parameter.nbytes for parameter in parameters if parameter.device.type == "cpu"),
        f"learning {sum(parameter.numel() for parameter in parameters)} parameters",
        "lower the sizes of the network in algo_kwargs, such as hidden_sizes",
    )


def usable_device(name: str) -> torch.device:
    """The device with this name, or an error if it cannot be used; ``auto`` is a GPU if there is one."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).item()
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise ConfigError(f"device '{name}' cannot be used here ({str(error).splitlines()[0]}); use device: cpu") from error
    return device
