"""The signatures of the managed classes, derived from the models of their settings, and the sorting of keyword arguments
into a config.

``inspect.signature``, ``help()`` and interactive completion read what ``with_signature`` makes; type checkers and editors
read ``rl_training/__init__.pyi``, which ``make stubs`` writes from ``parameters_of``.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from types import MethodType
from typing import Any

from rl_training.algorithms.strict_model import old_names
from rl_training.errors import ConfigError, did_you_mean
from rl_training.experiment.config import TrainConfig, rename_old
from rl_training.experiment.registry import AlgorithmClass, name_of
from rl_training.experiment.settings import Setting, groups_of, settings_of

#: Settings of ``TrainConfig`` that are not arguments: the class and ``env`` determine them.
IMPLIED = frozenset({"algo", "env_id", "env_from_python", "env_vector", "algo_kwargs"})
#: The arguments of every constructor that are not settings.
FURTHER = (
    Setting(
        "init_from",
        "str | Path | None",
        None,
        "",
        "a run or checkpoint of the same algorithm on the same spaces, whose weights training starts from",
    ),
    Setting("overwrite", "bool", False, "", "replace the run in output_dir, if it holds one"),
)
_ENV = "name of an environment, an environment, or a function that makes one"


def parameters_of(algorithm: AlgorithmClass) -> list[Setting]:
    """The keyword arguments of an algorithm's managed class: the algorithm's settings, the run's, the groups of the run's."""
    own = settings_of(algorithm.config_class)
    common = [setting for setting in settings_of(TrainConfig) if setting.name not in IMPLIED]
    groups = {name: group for name, group in groups_of(TrainConfig).items() if name not in IMPLIED}
    meanings = {name: ", ".join(setting.name for setting in settings_of(group)) for name, group in groups.items()}
    grouped = [Setting(name, "Mapping[str, Any]", {}, "", f"settings {names}") for name, names in meanings.items()]
    return [*own, *common, *grouped, *FURTHER]


def with_signature(init: Callable[..., None], algorithm: AlgorithmClass) -> Callable[..., None]:
    """A constructor that does what ``init`` does, with the signature and the documentation of an algorithm's."""

    def constructor(self: Any, *args: Any, **settings: Any) -> None:
        if not args and "env" not in settings:
            name = algorithm.public_name
            raise TypeError(f"{name} needs an environment, its name, or a function that makes it: {name}('CartPole-v1')")
        init(self, *args, **settings)

    parameters = parameters_of(algorithm)
    kind = inspect.Parameter.KEYWORD_ONLY
    given = [
        inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD),
        inspect.Parameter("env", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation="EnvLike"),
        *(inspect.Parameter(one.name, kind, default=one.default, annotation=one.annotation) for one in parameters),
    ]
    constructor.__name__, constructor.__qualname__ = "__init__", f"{algorithm.public_name}.__init__"
    constructor.__signature__ = inspect.Signature(given, return_annotation=None)  # type: ignore[attr-defined]
    constructor.__doc__ = "\n".join([f"env: {_ENV}", *(one.python_line() for one in parameters)])
    return constructor


class MadeWhenUsed:
    """A method of a class that is made when it is first asked for: a signature takes time, which an agent that is loaded
    need not spend."""

    def __init__(self, make: Callable[[], Callable[..., None]]) -> None:
        self._make = make

    def __set_name__(self, owner: type, name: str) -> None:
        self._owner, self._name = owner, name

    def __get__(self, instance: object, owner: type) -> Any:
        made = self._make()
        setattr(self._owner, self._name, made)  # in place of this
        return made if instance is None else MethodType(made, instance)


def sorted_settings(algorithm: AlgorithmClass, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Keyword arguments as values of a config, under their current names: the run's settings at the top level, the
    algorithm's under ``algo_kwargs``."""
    config_class = algorithm.config_class
    common = set(TrainConfig.model_fields) - IMPLIED
    own = set(config_class.model_fields)
    on_top = common | {old for old, new in old_names(TrainConfig).items() if new in common and old not in own}
    below = own | (set(old_names(config_class)) - common)
    for name in settings:
        if name not in on_top | below:
            raise ConfigError(f"{algorithm.public_name} has no setting '{name}'{did_you_mean(name, common | own)}")
    top = {name: value for name, value in settings.items() if name in on_top}
    algo_kwargs = {name: value for name, value in settings.items() if name in below}
    values = rename_old({"algo": name_of(algorithm), **top, "algo_kwargs": algo_kwargs})
    del values["algo"]
    return values
