"""Packages of environments that are found by their ids alone, and the extra that installs each."""

from __future__ import annotations

import difflib
from typing import NamedTuple

import gymnasium as gym

from rl_training.errors import MOST_SHOWN, ConfigError, MissingExtraError
from rl_training.names import imported, split_name


class Package(NamedTuple):
    """Environments whose ids begin with ``prefix`` are registered when ``module`` is imported."""

    prefix: str
    module: str
    extra: str


PACKAGES = (
    Package("ALE/", "ale_py", "atari"),
    Package("BabyAI-", "minigrid", "minigrid"),
    Package("MinAtar/", "rl_training.envs.minatar", "minatar"),
    Package("MiniGrid-", "minigrid", "minigrid"),
    Package("dm_control/", "shimmy", "dmc"),
    Package("popgym-", "popgym", "popgym"),
)
#: Gymnasium's own environments that need a further package, by the module that they are in
EXTRAS = {"gymnasium.envs.box2d": "box2d", "gymnasium.envs.mujoco": "mujoco"}
MOST_NEAR = 3


def package_of(env_id: str) -> Package | None:
    """The known package that has an id, or that the module of ``module:id`` is."""
    module, name = split_name(env_id)
    for package in PACKAGES:
        if module == package.module or (module is None and name.startswith(package.prefix) and name not in gym.registry):
            return package
    return None


def module_of(env_id: str) -> str | None:
    """The module that creating an environment imports, if there is one."""
    package = package_of(env_id)
    return split_name(env_id)[0] if package is None else package.module


def register(package: Package, env_id: str) -> None:
    """Imports a package, which registers its environments."""
    try:
        imported(package.module, f"env_id '{env_id}'")
    except (ConfigError, MissingExtraError) as error:
        cause = error.__cause__
        if isinstance(cause, ImportError):
            raise MissingExtraError(cause.name or package.module, package.extra, f"environment {env_id}") from cause
        raise


def extra_of(env_id: str) -> str | None:
    """The extra that an environment needs, if it is a known one."""
    package = package_of(env_id)
    if package is not None:
        return package.extra
    spec = gym.registry.get(env_id)
    entry = spec.entry_point if spec is not None and isinstance(spec.entry_point, str) else ""
    return next((extra for module, extra in EXTRAS.items() if entry.startswith(module)), None)


def nearest_ids(name: str) -> str:
    """The end of an error message: the registered ids that are nearest to a name."""
    by_lower = {spec_id.lower(): spec_id for spec_id in gym.registry}
    matches = difflib.get_close_matches(name[:MOST_SHOWN].lower(), by_lower, n=MOST_NEAR, cutoff=0.0)
    *others, last = (f"'{by_lower[match]}'" for match in matches)
    return f"; did you mean {', '.join(others)} or {last}?"
