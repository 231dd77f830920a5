"""Creates environments from a Gymnasium id, a factory or an object, always with the same guarantees."""

from __future__ import annotations

import copy
import importlib
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import gymnasium as gym

from rl_training.errors import ConfigError, RLTrainingError, described, did_you_mean, shown

Env = gym.Env[Any, Any]
AnyVectorEnv = gym.vector.VectorEnv[Any, Any, Any]
EnvFactory = Callable[[], Env]


@dataclass(frozen=True)
class RegisteredEnv:
    """Creates an environment from its Gymnasium id (``module:id`` imports the module first). It is plain data, so it can be
    sent to a worker process."""

    env_id: str
    kwargs: dict[str, Any] = field(default_factory=dict)

    def __call__(self) -> Env:
        module, _, name = self.env_id.rpartition(":")
        if module:
            try:
                importlib.import_module(module)
            except RLTrainingError:  # a package that is missing
                raise
            except (Exception, SystemExit) as error:
                reason = error if isinstance(error, ImportError) else described(error)
                raise ConfigError(f"env_id '{self.env_id}': cannot import the module '{module}' ({reason})") from error
        try:
            # Gymnasium's checker would repeat, on every step, what EnvPool checks anyway.
            return gym.make(name, disable_env_checker=True, **self.kwargs)
        except gym.error.DependencyNotInstalled as error:
            raise ConfigError(f"environment {self.env_id} needs a package that is not installed: {error}") from error
        except gym.error.Error as error:
            known = [spec_id for spec_id in gym.registry if "/" not in spec_id]
            raise ConfigError(
                f"unknown environment '{self.env_id}'{did_you_mean(name, known)} ({error}); give your own environment as "
                "module:id, or from Python as env="
            ) from error
        except RLTrainingError:
            raise
        except TypeError as error:
            raise ConfigError(f"environment {self.env_id} does not take env_kwargs {shown(self.kwargs)}: {error}") from error
        except (Exception, SystemExit) as error:
            given = f"with env_kwargs {shown(self.kwargs)}" if self.kwargs else "without env_kwargs"
            raise ConfigError(f"environment {self.env_id} cannot be created {given} ({described(error)})") from error


class GivenEnv:
    """Hands out an environment object created by the user: the first caller gets the object itself, later ones a copy."""

    def __init__(self, env: Any) -> None:
        self._env = env
        self._handed_out = False

    def __call__(self) -> Any:
        if not self._handed_out:
            self._handed_out = True
            return self._env
        try:
            return copy.deepcopy(self._env)
        except Exception as error:
            raise ConfigError(
                f"{env_name(self._env)} cannot be copied for evaluation ({error}); pass a function that creates the "
                "environment instead of the environment itself"
            ) from error


def created(factory: EnvFactory) -> Env:
    """A new environment. What goes wrong in the user's code is reported as an error of the environment."""
    try:
        env = factory()
    except RLTrainingError:
        raise
    except (Exception, SystemExit) as error:
        raise ConfigError(f"the environment cannot be created: its function raised {described(error)}") from error
    if isinstance(env, gym.vector.VectorEnv):
        raise ConfigError(
            f"{env_name(env)} is a vector environment, which steps its members by itself: use env_workers: inline, and "
            "neither env_fresh nor wrappers (wrap its members instead)"
        )
    if not isinstance(env, gym.Env):
        raise ConfigError(f"the function that creates the environment returned {shown(env)}, which is not a gymnasium.Env")
    return env


def close_env(env: Env) -> None:
    """Closes an environment. If that fails, what has been done with it still stands, so it is only a warning."""
    try:
        env.close()
    except (Exception, SystemExit) as error:
        warnings.warn(f"closing the environment {env_name(env)} failed ({described(error)}); ignored", stacklevel=2)


def env_name(env: Env | AnyVectorEnv) -> str:
    """The id of an environment, or its class name if it has none."""
    return env.spec.id if env.spec is not None else type(env.unwrapped).__name__
