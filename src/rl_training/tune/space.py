"""Where ``tune`` searches: the ranges of a config file, or those that the settings of an algorithm declare.

```yaml
tune:
  algo_kwargs.learning_rate: {log: [1e-5, 1e-2]}
  algo_kwargs.exploration_final_eps: {uniform: [0.01, 0.2]}
  algo_kwargs.hidden_sizes: {choice: [[64, 64], [256, 256]]}
```
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rl_training.algorithms.strict_model import search_ranges
from rl_training.errors import ConfigError, did_you_mean, shown
from rl_training.experiment.config import apply_overrides, resolve_config
from rl_training.experiment.curves import flat

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

KINDS = ("log", "uniform", "choice")
#: What can be searched, besides the settings of the algorithm.
OTHERS = ("num_envs",)
GROUP = "algo_kwargs."
#: Digits of a number that is tried, so that people can read it.
DIGITS = 4


@dataclass(frozen=True)
class Range:
    """The values that one setting is searched in: two bounds, or a choice."""

    kind: str
    values: tuple[Any, ...]
    whole: bool = False  # numbers

    def distribution(self) -> BaseDistribution:
        from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

        if self.kind == "choice":
            return CategoricalDistribution([json.dumps(value) for value in self.values])
        low, high = self.values
        return (IntDistribution if self.whole else FloatDistribution)(low, high, log=self.kind == "log")

    def from_optuna(self, value: Any) -> Any:
        """The value of the setting."""
        if self.kind == "choice":
            return json.loads(value)
        return int(value) if self.whole else float(f"{value:.{DIGITS}g}")

    def to_optuna(self, value: Any) -> Any:
        """A value of the setting as Optuna represents it; None if it is not in the range."""
        if self.kind == "choice":
            return json.dumps(value) if value in self.values else None
        low, high = self.values
        number = isinstance(value, int | float) and not isinstance(value, bool)
        return value if number and low <= value <= high else None

    def text(self) -> str:
        """The range as people write it."""
        return json.dumps({self.kind: list(self.values)})


Space = Mapping[str, Range]


def make_space(base: Mapping[str, Any], given: Any) -> dict[str, Range]:
    """The ranges around a config: the given ones, or by default those that its algorithm declares."""
    config = resolve_config(base)
    if given is not None:
        if not isinstance(given, Mapping) or not given:
            raise ConfigError(f"tune must be a mapping from settings to ranges, such as {EXAMPLE}, not {shown(given)}")
        return {str(key): _checked(base, str(key), how) for key, how in given.items()}
    set_now, space = flat(config.describe()), {}
    for name, how in search_ranges(type(config.algo_kwargs)).items():
        if f"{GROUP}{name}" in set_now:  # a schedule is not one number, so it is kept
            try:
                space[f"{GROUP}{name}"] = _checked(base, f"{GROUP}{name}", how)
            except ConfigError:  # another setting of this config takes its place
                continue
    if not space:
        raise ConfigError(
            f"the algorithm {config.algo} declares no ranges to search; give some in the config, such as {EXAMPLE}"
        )
    return space


EXAMPLE = "tune: {algo_kwargs.learning_rate: {log: [1.0e-5, 1.0e-2]}}"


def with_values(base: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """The data of a config with these settings."""
    return apply_overrides(base, overrides(values))


def overrides(values: Mapping[str, Any]) -> tuple[str, ...]:
    """Settings in the form of ``--set``."""
    return tuple(f"{key}={json.dumps(value)}" for key, value in values.items())


def _checked(base: Mapping[str, Any], key: str, how: Any) -> Range:
    """A range all of whose values, or both of whose bounds, the config accepts."""
    where = f"tune: {key}"
    _require_setting(base, key)
    if not isinstance(how, Mapping) or len(how) != 1 or next(iter(how)) not in KINDS:
        raise ConfigError(
            f"{where}: a range is one of log: [low, high], uniform: [low, high] or choice: [...], not {shown(how)}"
        )
    ((kind, values),) = how.items()
    if not isinstance(values, list) or len(values) < 2 or (kind != "choice" and len(values) > 2):
        wanted = "a list of at least two values" if kind == "choice" else "two numbers, [low, high]"
        raise ConfigError(f"{where}: {kind} takes {wanted}, not {shown(values)}")
    accepted = tuple(_accepted(base, key, value) for value in values)
    if kind == "choice":
        if any(value in accepted[:k] for k, value in enumerate(accepted)):
            raise ConfigError(f"{where}: the choice has the same value twice, {shown(values)}")
        return Range(kind, accepted)
    low, high = accepted
    if any(isinstance(bound, bool) or not isinstance(bound, int | float) or not math.isfinite(bound) for bound in accepted):
        raise ConfigError(f"{where}: {kind} is for settings that are numbers; use choice: [...]")
    if low >= high:
        raise ConfigError(f"{where}: the range [{low}, {high}] is empty; its first number must be below its second")
    if kind == "log" and low <= 0:
        raise ConfigError(f"{where}: a logarithmic range must be above 0, but begins at {low}; use uniform: [{low}, {high}]")
    return Range(kind, accepted, whole=all(isinstance(bound, int) for bound in accepted))


def _require_setting(base: Mapping[str, Any], key: str) -> None:
    config = resolve_config(base)
    known = [*(f"{GROUP}{name}" for name in type(config.algo_kwargs).model_fields), *OTHERS]
    if key not in known:
        near = did_you_mean(key if "." in key else f"{GROUP}{key}", known) if len(key) < 100 else ""
        raise ConfigError(f"tune: {shown(key)} is not a setting that can be searched{near}")


def _accepted(base: Mapping[str, Any], key: str, value: Any) -> Any:
    """A value as the config has it after checking, as plain data."""
    try:
        data = resolve_config(with_values(base, {key: value})).describe()
    except ConfigError as error:
        raise ConfigError(f"tune: {error}") from error
    return data["algo_kwargs"][key.removeprefix(GROUP)] if key.startswith(GROUP) else data[key]
