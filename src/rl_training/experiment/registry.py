"""Finds the available algorithms. Nothing is listed by hand:

- every concrete algorithm class in ``rl_training.algorithms`` that declares a ``name``,
- every entry point that an installed package declares in the group ``rl_training.algorithms``,
- any class as ``module:Class`` or ``path/to/file.py:Class``.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import warnings
from importlib import metadata
from typing import Any

from rl_training import algorithms as package
from rl_training.algorithms.base import Algorithm
from rl_training.envs.spaces import joinable, joint_actions
from rl_training.errors import ConfigError, SpaceError, did_you_mean, either
from rl_training.names import imported, split_name
from rl_training.types import ObservationSpec, SpaceSpec

ENTRY_POINTS = "rl_training.algorithms"
AlgorithmClass = type[Algorithm[Any, Any]]


def canonical_name(name: str) -> str:
    """The name of an algorithm as it is registered, if it is given in other letters or as its class: PPO, QR-DQN, DrQv2."""
    plain = name.lower().replace("-", "_")
    if ":" in name or plain in package.module_names():
        return name if ":" in name else plain
    for known, algorithm in algorithms().items():
        if plain in (known.lower(), algorithm.public_name.lower()):
            return known
    return name


def find_algorithm(name: str) -> AlgorithmClass | None:
    """The algorithm with this name, if there is one."""
    known = canonical_name(name)
    return get_algorithm(known) if ":" in known or known in algorithms() else None


def get_algorithm(name: str) -> AlgorithmClass:
    """The algorithm with this name or ``module:Class`` path, or an error with the nearest name."""
    name = canonical_name(name)
    if ":" in name:
        return _imported(name, f"algo '{name}'")
    found = _in_its_own_module(name)
    if found is not None:
        return found
    known = built_in() if name in built_in() else algorithms()
    if name not in known:
        raise ConfigError(f"unknown algorithm '{name}'{did_you_mean(name.lower(), known)}")
    return known[name]


@functools.cache
def built_in() -> dict[str, AlgorithmClass]:
    """The algorithms of this package, by name."""
    found: dict[str, AlgorithmClass] = {}
    for module in package.module_names():
        for name, algorithm in _declared_in(f"{package.__name__}.{module}").items():
            if name in found:
                raise ConfigError(f"two algorithms are called '{name}': {found[name].__module__} and {algorithm.__module__}")
            found[name] = algorithm
    return dict(sorted(found.items()))


def algorithms() -> dict[str, AlgorithmClass]:
    """All algorithms by name: those of this package, then those that installed packages announce."""
    found = dict(built_in())
    public = {algorithm.public_name for algorithm in found.values()}
    for entry in metadata.entry_points(group=ENTRY_POINTS):
        try:
            algorithm = _imported(entry.value, f"the entry point '{entry.name}'")
        except ConfigError as error:  # one broken package must not make the others unusable
            warnings.warn(str(error), stacklevel=2)
            continue
        if entry.name in found or algorithm.public_name in public:
            warnings.warn(
                f"the algorithm '{entry.name}' of {entry.value} is not registered, because its name or its class's name is "
                f"taken; use algo: {entry.value}",
                stacklevel=2,
            )
            continue
        found[entry.name] = algorithm
        public.add(algorithm.public_name)
    return found


def name_of(algorithm: AlgorithmClass) -> str:
    """The name of an algorithm in configs: its registered name, or else its ``module:Class`` path."""
    name = getattr(algorithm, "name", None)
    if name is not None and (_in_its_own_module(name) or built_in().get(name) or algorithms().get(name)) is algorithm:
        return str(name)
    return f"{algorithm.__module__}:{algorithm.__qualname__}"


def fitted(algorithm: AlgorithmClass, spec: SpaceSpec, env_id: str, recorded: ObservationSpec | None = None) -> SpaceSpec:
    """The spaces as the algorithm takes them: several choices may have to be one discrete action. The
    observation spec ``recorded`` in a checkpoint takes precedence over the one that this version would derive."""
    spec = spec.taken_as(recorded)
    if "multi_discrete" in algorithm.actions or "discrete" not in algorithm.actions:
        return spec
    return joint_actions(spec, env_id, algorithm.name)


def require_fit(algorithm: AlgorithmClass, spec: SpaceSpec, env_id: str) -> None:
    """Refuses an environment that the algorithm cannot use, and names the algorithms that can."""
    if _fits(algorithm, spec):
        return
    others = [name for name, other in algorithms().items() if _fits(other, spec)]
    instead = f"use one of: {', '.join(others)}" if others else "no available algorithm supports it"
    raise SpaceError(
        f"{algorithm.name} takes {either(algorithm.observations)} observations and {either(algorithm.actions)} "
        f"actions, but {env_id} has {spec.observation.kind} observations and {spec.action.kind} actions; {instead}"
    )


def _fits(algorithm: AlgorithmClass, spec: SpaceSpec) -> bool:
    kinds = {spec.action.kind, "discrete"} if joinable(spec.action) else {spec.action.kind}
    return spec.observation.kind in algorithm.observations and bool(kinds & set(algorithm.actions))


def _in_its_own_module(name: str) -> AlgorithmClass | None:
    """The algorithm in the module of its name: the usual case, in which the other algorithms need not be imported."""
    return _declared_in(f"{package.__name__}.{name}").get(name) if name in package.module_names() else None


def _declared_in(module_name: str) -> dict[str, AlgorithmClass]:
    """The algorithms that a module defines: the classes that declare a name or a summary."""
    found = {}
    for value in vars(importlib.import_module(module_name)).values():
        is_here = isinstance(value, type) and issubclass(value, Algorithm) and value.__module__ == module_name
        if is_here and {"name", "summary"} & vars(value).keys():
            _require_complete(value, f"{module_name}:{value.__name__}")
            found[value.name] = value
    return found


def _imported(path: str, what: str) -> AlgorithmClass:
    """Imports the class at ``module:Class`` and checks it."""
    module_name, attribute = split_name(path)
    module = imported(module_name or "", what)
    found = getattr(module, attribute, None)
    if found is None:
        classes = (name for name, value in vars(module).items() if isinstance(value, type))
        raise ConfigError(f"{what}: the module '{module_name}' has no '{attribute}'{did_you_mean(attribute, classes)}")
    if not (isinstance(found, type) and issubclass(found, Algorithm)):
        raise ConfigError(f"{what} is not an algorithm: it must be a subclass of rl_training.algorithms.base.Algorithm")
    _require_complete(found, what)
    return found


def _require_complete(algorithm: AlgorithmClass, what: str) -> None:
    """Refuses a class that does not declare everything, or that lacks a method."""
    declared = ("name", "summary", "observations", "actions", "config_class")
    missing = [name for name in declared if not hasattr(algorithm, name)]
    if inspect.isabstract(algorithm):
        missing += sorted(algorithm.__abstractmethods__)
    if missing:
        raise ConfigError(f"{what} is not a complete algorithm: it lacks {', '.join(missing)}")
