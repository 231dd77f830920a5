"""A model of settings, and what a setting can declare: its old names, that it may change in a run that is resumed, and the
range that ``tune`` searches."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, JsonValue, model_validator

_RENAMED_FROM = "renamed_from"


def renamed_from(*old: str) -> dict[str, JsonValue]:
    """Declares a setting's old names, which still work: ``Field(0.99, json_schema_extra=renamed_from("discount"))``."""
    return {_RENAMED_FROM: [*old]}


_MAY_CHANGE = "may_change"
#: Declares a setting that may change in a run that is resumed: ``Field(1e-3, json_schema_extra=MAY_CHANGE)``. A subclass that
#: redefines it keeps this.
MAY_CHANGE: dict[str, JsonValue] = {_MAY_CHANGE: True}


def may_change(model: type[BaseModel], name: str) -> bool:
    """Whether a setting may change in a run that is resumed."""
    fields = (base.model_fields.get(name) for base in model.__mro__ if issubclass(base, BaseModel))
    extras = (None if field is None else field.json_schema_extra for field in fields)
    return any(isinstance(extra, dict) and _MAY_CHANGE in extra for extra in extras)


_SEARCHED = "searched"


def searched(**how: list[float | int]) -> dict[str, JsonValue]:
    """Declares the range in which ``tune`` searches by default: ``searched(log=[1e-5, 1e-2])``,
    ``searched(uniform=[0.01, 0.2])`` or ``searched(choice=[32, 64])``. A subclass that redefines the setting keeps it."""
    return {_SEARCHED: {kind: [*values] for kind, values in how.items()}}


def search_ranges(model: type[BaseModel]) -> dict[str, dict[str, JsonValue]]:
    """The declared ranges of a model's settings, each by the class that comes first."""
    ranges: dict[str, dict[str, JsonValue]] = {}
    for base in model.__mro__:
        for name, field in base.model_fields.items() if issubclass(base, BaseModel) else ():
            extra = field.json_schema_extra
            found = extra.get(_SEARCHED) if isinstance(extra, dict) else None
            if isinstance(found, dict):
                ranges.setdefault(name, found)
    return ranges


def old_names(model: type[BaseModel]) -> dict[str, str]:
    """Maps the old names of a model's settings to their current names. A subclass that redefines a setting keeps them."""
    names: dict[str, str] = {}
    for base in model.__mro__:
        if issubclass(base, BaseModel):
            for name, field in base.model_fields.items():
                extra = field.json_schema_extra
                former = extra.get(_RENAMED_FROM) if isinstance(extra, dict) else None
                for old in former if isinstance(former, list) else ():
                    if names.setdefault(str(old), name) != name:
                        raise TypeError(f"{model.__name__}: '{old}' is the old name of both '{names[str(old)]}' and '{name}'")
    return names


def current_name(model: type[BaseModel], name: str) -> str:
    """The current name of a setting. An old name gives a warning; any other name is returned unchanged."""
    return _renamed(old_names(model), name)


def _renamed(names: Mapping[str, str], name: str) -> str:
    current = names.get(name, name)
    if current != name:
        warnings.warn(f"the setting '{name}' is now called '{current}'; use that name", UserWarning, stacklevel=3)
    return current


def with_current_names(model: type[BaseModel], data: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a model's settings under their current names."""
    values: dict[str, Any] = {}
    given_as: dict[str, str] = {}
    names = old_names(model)
    for name, value in data.items():
        current = _renamed(names, name)
        if current in values:
            raise ValueError(f"'{current}' is given twice: as '{given_as[current]}' and as '{name}'; keep only '{current}'")
        values[current], given_as[current] = value, name
    return values


class StrictModel(BaseModel):
    """Rejects unknown keys and NaN, accepts old names of settings, and is immutable after validation."""

    # Checks are built when they are first used: a command needs those of one algorithm, not of all.
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, validate_default=True, defer_build=True)

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        for old, new in old_names(cls).items():
            if old in cls.model_fields:
                raise TypeError(f"{cls.__name__}: '{old}' is both an old name of '{new}' and a setting")

    @model_validator(mode="before")
    @classmethod
    def _take_old_names(cls, data: Any) -> Any:
        return with_current_names(cls, data) if isinstance(data, Mapping) else data
