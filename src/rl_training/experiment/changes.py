"""Which settings may change when a run is resumed, and which have changed.

A setting that may change declares it: ``Field(..., json_schema_extra=MAY_CHANGE)``. All others determine the weights, the
replay and the episodes of the run, and stay.
"""

from __future__ import annotations

import itertools
import json
import shlex
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from rl_training.algorithms.config import AlgorithmConfig
from rl_training.algorithms.strict_model import may_change
from rl_training.errors import ConfigError, shown
from rl_training.experiment.collectors import CollectorsConfig
from rl_training.experiment.config import TrainConfig, apply_overrides
from rl_training.experiment.sections import EvalConfig
from rl_training.experiment.settings import groups_of

GROUPS = groups_of(TrainConfig)
#: Not part of a run's path: a run that was extended is the run that had this length from the start.
LENGTH = "total_timesteps"


class Change(NamedTuple):
    """The values of a setting in two configs."""

    before: Any
    after: Any


def changeable(settings: type[AlgorithmConfig]) -> list[str]:
    """The keys of the settings that may change in a run of an algorithm; ``eval.*`` is a whole group."""
    whole = [f"{name}.*" if name in GROUPS else name for name in TrainConfig.model_fields if may_change(TrainConfig, name)]
    parts = [f"collectors.{name}" for name in CollectorsConfig.model_fields if may_change(CollectorsConfig, name)]
    return whole + parts + [f"algo_kwargs.{name}" for name in settings.model_fields if may_change(settings, name)]


def differences(before: TrainConfig, after: TrainConfig) -> dict[str, Change]:
    """The settings in which two configs of one algorithm differ, by their keys."""
    old, new = _by_key(before), _by_key(after)
    return {key: Change(old[key], new[key]) for key in new if old[key] != new[key]}


def _by_key(config: TrainConfig) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for name, value in config.describe().items():
        values.update({f"{name}.{inner}": one for inner, one in value.items()} if name in GROUPS else {name: value})
    return values


def with_overrides(config: TrainConfig, overrides: Iterable[str]) -> TrainConfig:
    """The config of a run with ``key=value`` overrides; what may not change is refused."""
    given, before = list(overrides), config.model_dump(mode="json")
    keys = {override.partition("=")[0] for override in given}
    values = apply_overrides(before, given)
    for name in GROUPS.keys() & keys:
        if isinstance(values[name], Mapping):  # in part, as below
            keys |= {f"{name}.{inner}" for inner in values[name]}
            values[name] = {**before[name], **values[name]}
    return _changed(config, values, keys)


def with_settings(config: TrainConfig, settings: Mapping[str, Any]) -> TrainConfig:
    """The config of a run with these values, of which a group may be given in part; what may not change is refused."""
    values = config.model_dump(mode="json")
    keys: set[str] = set()
    for name, value in settings.items():
        parted = name in GROUPS and isinstance(value, Mapping)
        keys |= {f"{name}.{inner}" for inner in value} if parted else {name}
        values[name] = {**values[name], **value} if parted else value
    return _changed(config, values, keys)


def _changed(config: TrainConfig, values: dict[str, Any], keys: set[str]) -> TrainConfig:
    fixed = [name for name in ("algo", "output_dir") if values[name] != getattr(config, name)]
    if fixed:
        raise ConfigError(_refusal(config, fixed))
    own = values["algo_kwargs"]
    if isinstance(own, Mapping):
        given = {name for name, value in own.items() if f"algo_kwargs.{name}" in keys and value is not None}
        replaced = config.algo_kwargs.replaced_by(given)
        values["algo_kwargs"] = {name: value for name, value in own.items() if name not in replaced}
    if keys & {f"eval.{name}" for name in EvalConfig.CHOSEN} and "eval.budget" not in keys:
        values["eval"] = {name: value for name, value in values["eval"].items() if name != "budget"}
    changed = config.with_values(**values)
    refused = [key for key in differences(config, changed) if not _may_change(config, key)]
    if refused:
        raise ConfigError(_refusal(config, refused))
    if config.collectors.step_by_step != changed.collectors.step_by_step:
        raise ConfigError(
            "collectors.kind cannot change in this run, which learns after every single step; it can in runs that are "
            "started with a collectors.stretch or collectors.count above 1"
        )
    return changed


def _may_change(config: TrainConfig, key: str) -> bool:
    group, _, name = key.rpartition(".")
    if group == "algo_kwargs":
        return may_change(type(config.algo_kwargs), name)
    return may_change(TrainConfig, group or name) or (group in GROUPS and may_change(GROUPS[group], name))


def _refusal(config: TrainConfig, keys: list[str]) -> str:
    return (
        f"{' and '.join(keys)} cannot change in a run that has begun; what can: "
        f"{', '.join(changeable(type(config.algo_kwargs)))}; for anything else start a new run, with --init-from (in Python "
        "init_from=) if it should start from these weights"
    )


def as_left(trained: TrainConfig, recorded: Iterable[Mapping[str, Any]]) -> TrainConfig:
    """The config that a run was left with: that of its checkpoint with the recorded changes, some of which came later."""
    values = trained.model_dump(mode="json")
    for key, value in itertools.chain.from_iterable(changes.items() for changes in recorded):
        group, _, name = key.rpartition(".")
        if _may_change(trained, key) and (not group or (group in GROUPS and name in values[group])):
            (values[group] if group else values)[name] = value
    return trained.with_values(**values)


def require_unedited(run: Path, written: TrainConfig, trained: TrainConfig, left: TrainConfig, wanted: TrainConfig) -> None:
    """Refuses a ``config.yaml`` that does not hold what its run was left with, unless what it holds is wanted anyway."""
    found, ours, asked = _by_key(written), (_by_key(trained), _by_key(left)), _by_key(wanted)
    edited = [key for key in found if found[key] not in (*(values[key] for values in ours), asked[key])]
    if not edited:
        return
    named = ", ".join(f"{key} is {shown(found[key])} there and {shown(ours[1][key])} in the run" for key in edited)
    options = " ".join(shlex.quote(f"--set={key}={json.dumps(found[key])}") for key in edited if _may_change(written, key))
    fixed = [key for key in edited if not _may_change(written, key)]
    advice = [f"change it with: rl-training resume {shlex.quote(str(run))} {options}"] if options else []
    advice += [f"put back {' and '.join(fixed)}, which cannot change in a run that has begun"] if fixed else []
    raise ConfigError(f"{run / 'config.yaml'} was edited: {named}; {', and '.join(advice)}")


def forgotten(run: Path, written: TrainConfig, left: TrainConfig, wanted: TrainConfig) -> list[str]:
    """A sentence for each value of ``config.yaml`` that gives way to the one that the run was left with, unasked."""
    asked = differences(left, wanted)
    return [
        f"{key} is {shown(change.before)} in {run / 'config.yaml'}, but the run was left with {shown(change.after)}, as "
        "metadata.json records, and continues with that; change it with --set"
        for key, change in differences(written, left).items()
        if key not in asked
    ]


def note_of(changes: Mapping[str, Change]) -> dict[str, dict[str, Any]]:
    """Changes as they are recorded."""
    return {key: {"from": change.before, "to": change.after} for key, change in changes.items()}


def recorded_in(metadata: object) -> list[dict[str, Any]] | None:
    """The new values of each change that the metadata of a run hold; None if they were written before changes were recorded,
    or by somebody else."""
    try:
        return [{str(key): one["to"] for key, one in note["settings"].items()} for note in metadata["changes"]]  # type: ignore[index]
    except (LookupError, TypeError, AttributeError):
        return None
