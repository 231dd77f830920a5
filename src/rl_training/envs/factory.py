"""Creates environments from a Gymnasium id, a factory or an object, always with the same guarantees."""

from __future__ import annotations

import copy
import functools
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gymnasium as gym

from rl_training.envs.known import extra_of, nearest_ids, package_of, register
from rl_training.errors import FOREIGN, ConfigError, RLTrainingError, UserCodeError, described, did_you_mean, shown
from rl_training.names import imported, is_file, split_name
from rl_training.tracebacks import frames_of

Env = gym.Env[Any, Any]
AnyVectorEnv = gym.vector.VectorEnv[Any, Any, Any]
EnvFactory = Callable[[], Env]


@dataclass(frozen=True)
class RegisteredEnv:
    """Creates an environment from its name: a Gymnasium id; ``module:id``, which imports the module first; or ``module:name``
    of a class or function. A file (``path/to/file.py``) may take the place of the module. It is plain data, so it can be sent
    to a worker process."""

    env_id: str
    kwargs: dict[str, Any] = field(default_factory=dict)

    def __call__(self) -> Env:
        make = self._find()
        try:
            return make(**self.kwargs)
        except gym.error.DependencyNotInstalled as error:
            extra = extra_of(self.env_id)
            advice = "" if extra is None else f"; install it with: pip install 'rl-training[{extra}]'"
            raise ConfigError(f"environment {self.env_id} needs a package that is not installed: {error}{advice}") from error
        except gym.error.Error as error:
            path = _file_called(self.env_id)
            if path is not None:
                raise ConfigError(
                    f"unknown environment '{self.env_id}'; {path} is a file: name the class in it too, as in {path}:MyEnv, "
                    "or a function that makes the environment"
                ) from error
            reason = f" ({error})" if isinstance(error, gym.error.NamespaceNotFound) else ""
            raise ConfigError(
                f"unknown environment '{self.env_id}'{nearest_ids(split_name(self.env_id)[1])}{reason} Give your own "
                "environment as module:id, module:Class or file.py:Class, or from Python as env="
            ) from error
        except RLTrainingError:
            raise
        except FOREIGN as error:
            if isinstance(error, TypeError) and not frames_of(error):
                raise UserCodeError(
                    f"environment {self.env_id} does not take env_kwargs {shown(self.kwargs)}: {error}"
                ) from error
            given = f" with env_kwargs {shown(self.kwargs)}" if self.kwargs else ""
            raise UserCodeError(f"environment {self.env_id} cannot be created{given} ({described(error)})") from error

    def _find(self) -> Callable[..., Env]:
        """The function that creates the environment: from the user's module, or else Gymnasium's."""
        module, name = split_name(self.env_id)
        package = package_of(self.env_id)
        if package is not None:
            register(package, self.env_id)
        elif module is not None:
            found = getattr(imported(module, f"env_id '{self.env_id}'"), name, None)
            if callable(found):
                return found  # type: ignore[no-any-return]
            if name.isidentifier() and name not in gym.registry:
                raise ConfigError(
                    f"env_id '{self.env_id}': the module '{module}' has no class or function '{name}', and there is no "
                    f"Gymnasium id of this name{did_you_mean(name, _own_environments(module))}"
                )
        # Gymnasium's checker would repeat, on every step, what EnvPool checks anyway.
        return functools.partial(gym.make, name, disable_env_checker=True)


def _file_called(name: str) -> Path | None:
    """The file in the current directory that a name without a class means, if there is one."""
    path = Path(name if is_file(name) else f"{name}.py")
    try:
        return path if path.is_file() else None
    except (OSError, ValueError):  # no name that a file could have
        return None


def _own_environments(module: str) -> list[str]:
    """The environments that a module defines or registers."""
    code = imported(module, "env_id")
    classes = {name: value for name, value in vars(code).items() if isinstance(value, type) and issubclass(value, gym.Env)}
    own = [spec.id for spec in gym.registry.values() if str(spec.entry_point).startswith(f"{code.__name__}:")]
    return own + [name for name, value in classes.items() if value is not gym.Env and not issubclass(value, gym.Wrapper)]


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
    except FOREIGN as error:
        raise UserCodeError(f"the environment cannot be created: its function raised {described(error)}") from error
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
    except FOREIGN as error:
        warnings.warn(f"closing the environment {env_name(env)} failed ({described(error)}); ignored", stacklevel=2)


def env_name(env: Env | AnyVectorEnv) -> str:
    """The id of an environment, or its class name if it has none."""
    return env.spec.id if env.spec is not None else type(env.unwrapped).__name__
