"""Creates the environments of a run and selects its device."""

from __future__ import annotations

import torch

from rl_training.envs.factory import EnvFactory, GivenEnv, RegisteredEnv
from rl_training.envs.pool import EnvPool, SeededEnvPool
from rl_training.envs.wrappers import WrappedEnv
from rl_training.errors import ConfigError
from rl_training.experiment.config import TrainConfig


def make_pool(
    config: TrainConfig, factory: EnvFactory | None, stream: str, num_envs: int, workers: str = "inline"
) -> EnvPool:
    """A pool of the environments in a config, or of those that the factory makes."""
    if factory is None and config.env_from_python:
        raise ConfigError(
            f"this agent was trained on {config.env_id}, an environment that was passed from Python; pass it again as env="
        )
    if isinstance(factory, GivenEnv) and (workers == "subprocess" or config.env_fresh):
        raise ConfigError(
            "env_workers: subprocess and env_fresh need to create environments; pass a function that creates one instead of "
            "an environment"
        )
    factory = factory or RegisteredEnv(config.env_id, config.env_kwargs)
    return SeededEnvPool(
        WrappedEnv(factory, config.wrappers) if config.wrappers else factory,
        num_envs=num_envs,
        seed=config.seed,
        stream=stream,
        env_id=config.env_id,
        workers=workers,
        fresh=config.env_fresh,
    )


def usable_device(name: str) -> torch.device:
    """The device with this name, or an error if it cannot be used."""
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).item()
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise ConfigError(f"device '{name}' cannot be used here ({str(error).splitlines()[0]}); use device: cpu") from error
    return device
