"""Learning curves of runs: which runs belong together, what distinguishes the groups, and the points to draw."""

from __future__ import annotations

import contextlib
import math
import statistics
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rl_training.errors import CheckpointError, ConfigError, did_you_mean
from rl_training.experiment.config import rename_old
from rl_training.experiment.metrics import EPISODES_FILE, METRICS_FILE, read_log
from rl_training.experiment.overview import runs_below
from rl_training.experiment.run import is_run, read_run_config
from rl_training.experiment.trust import Trust

Points = tuple[list[int], list[float]]
Record = dict[str, Any]
#: The metric that is drawn if none is chosen: the return in evaluations, or in training if a run has too few evaluations.
RETURN = "return"
#: Metrics as people call them.
NAMES = {"eval/return_mean": "return in evaluations", "train/return_mean": "return in training"}
FEWEST_EVALUATIONS = 3
#: Settings in which the runs of one group may differ, and how many differences a label names.
OF_A_RUN = ("seed", "output_dir")
MOST_NAMED = 3


@dataclass(frozen=True)
class Group:
    """Runs that differ only in their seed."""

    label: str
    runs: list[Path]


@dataclass(frozen=True)
class Comparison:
    """Groups of runs, and what they have in common."""

    title: str
    groups: list[Group]


def find_runs(paths: Sequence[Path]) -> list[Path]:
    """The runs among some paths and below them, each once."""
    found: dict[Path, None] = {}
    for path in paths:
        if not path.is_dir():
            raise CheckpointError(f"{path} is not a run directory, nor a directory with runs below it")
        found.update(dict.fromkeys([path] if is_run(path) else runs_below(path)))
    for run in found:
        if not (run / METRICS_FILE).exists():
            raise CheckpointError(f"{run} is not a run directory with a {METRICS_FILE}")
    return list(found)


def compare(runs: Sequence[Path]) -> Comparison:
    """Groups runs by their settings. A label names the settings that differ between groups, the title what is the same."""
    configs: list[dict[str, Any]] = []
    members: list[list[Path]] = []
    for run in runs:
        config = {key: value for key, value in flat(config_of(run)).items() if key not in OF_A_RUN}
        if config not in configs:
            configs.append(config)
            members.append([])
        members[configs.index(config)].append(run)
    tasks = [(config["algo"], config["env_id"]) for config in configs]
    algos, envs = (list(dict.fromkeys(names)) for names in zip(*tasks, strict=True))
    labels = []
    for config, task in zip(configs, tasks, strict=True):
        same_task = [other for other, its_task in zip(configs, tasks, strict=True) if its_task == task]
        shown = [name for name, names in zip(task, (algos, envs), strict=True) if len(names) > 1]
        labels.append(", ".join([*shown, *_differences(config, same_task)]) or " on ".join(task))
    title = f"{algos[0] if len(algos) == 1 else 'Learning curves'} on {', '.join(envs[:2])}{' and others' * (len(envs) > 2)}"
    return Comparison(title, [Group(*pair) for pair in zip(_unique(labels), members, strict=True)])


def config_of(path: Path) -> dict[str, Any]:
    """The settings of a run, under current names unless that needs a module that is not trusted."""
    data = read_run_config(path)
    with contextlib.suppress(ConfigError):
        Trust(path).require_algo(data)
        return rename_old(data)
    return data


def flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings by their dotted names."""
    settings: dict[str, Any] = {}
    for key, value in values.items():
        inner = value if isinstance(value, dict) and value else None
        settings.update({f"{prefix}{key}": value} if inner is None else flat(inner, f"{prefix}{key}."))
    return settings


def _differences(config: Mapping[str, Any], others: Sequence[Mapping[str, Any]]) -> list[str]:
    """The settings of this config that are not the same in all of the others."""
    differing = [*_differing(others)]
    named = [f"{key.removeprefix('algo_kwargs.')}={_short(config.get(key))}" for key in differing[:MOST_NAMED]]
    return [*named, f"and {len(differing) - MOST_NAMED} more"] if len(differing) > MOST_NAMED else named


def _differing(configs: Sequence[Mapping[str, Any]]) -> list[str]:
    """The settings that are not the same in all configs."""
    keys = dict.fromkeys(key for config in configs for key in config)
    return [key for key in keys if any(config.get(key) != configs[0].get(key) for config in configs)]


def differing_settings(configs: Sequence[Mapping[str, Any]]) -> dict[str, list[str]]:
    """The settings that are not the same in all configs, with their values in each."""
    settings = [{key: value for key, value in flat(config).items() if key not in OF_A_RUN} for config in configs]
    return {key: [_short(one.get(key)) for one in settings] for key in _differing(settings)}


def _short(value: Any) -> str:
    if isinstance(value, list) and value and all(isinstance(one, dict) and "name" in one for one in value):
        text = ", ".join(map(_wrapper, value))
    else:
        text = f"{value:g}" if isinstance(value, float) else str(value)
    return text if len(text) <= 40 else f"{text[:37]}..."


def _wrapper(values: Mapping[str, Any]) -> str:
    """A wrapper as a call, because what differs is often at its end."""
    arguments = [f"{key}={_short(value)}" for key, value in values.items() if key != "name"]
    return str(values["name"]).rpartition(":")[2] + (f"({', '.join(arguments)})" if arguments else "")


def _unique(labels: Sequence[str]) -> list[str]:
    """Labels that shortening has made equal are numbered."""
    return [
        label if labels.count(label) == 1 else f"{label} #{labels[: k + 1].count(label)}" for k, label in enumerate(labels)
    ]


def log_of(run: Path) -> list[Record]:
    """The log of a run. One that ended before it logged a return has the returns of its episodes instead."""
    log = read_log(run)
    if any("return_mean" in record for record in log) or not (run / EPISODES_FILE).exists():
        return log
    ended: dict[int, list[Record]] = {}
    for record in read_log(run, EPISODES_FILE):
        if {"episode/return", "episode/length"} <= {*_numbers(record)}:
            ended.setdefault(record["step"], []).append(record)
    return [*log, *(_mean_of(step, episodes) for step, episodes in sorted(ended.items()))]


def _mean_of(step: int, episodes: Sequence[Record]) -> Record:
    means = {f"{key}_mean": statistics.fmean(episode[key] for episode in episodes) for key in ("return", "length")}
    return {"kind": "train", "step": step, **means}


def with_curves(runs: Sequence[Path], where: str, metric: str = RETURN) -> list[Path]:
    """The runs that have logged a metric. The others are left out of the plot or report, with a warning."""
    kept, missing = [], []
    for run in runs:
        try:
            read_curves([run], metric)
        except CheckpointError as error:
            missing.append(error)
        else:
            kept.append(run)
    if not kept and (len(runs) == 1 or metric != RETURN):
        raise missing[0]
    if not kept:
        raise CheckpointError(f"none of these {len(runs)} runs has logged any returns yet, so there is nothing to {where}")
    for problem in missing:
        warnings.warn(f"{problem}; it is left out of the {where}", stacklevel=3)
    return kept


def read_curves(runs: Sequence[Path], metric: str = RETURN) -> tuple[str, list[Points]]:
    """The points (steps, values) of a metric in each run, and the full name of the metric, such as ``train/loss``."""
    logs = {run: log_of(run) for run in runs}
    known = {name for log in logs.values() for name in metric_names(log)}
    kinds = ("eval", "train", *sorted({kind for name in known if (kind := name.partition("/")[0]) not in ("eval", "train")}))
    wanted = "return_mean" if metric == RETURN else metric
    names = [wanted] if wanted in known else [f"{kind}/{wanted}" for kind in kinds]
    curves = {name: [points_of(log, name) for log in logs.values()] for name in names}
    fewest = {name: min(len(steps) for steps, _ in points) for name, points in curves.items()}
    for enough in (FEWEST_EVALUATIONS if metric == RETURN else 1, 1):
        for name in names:
            if fewest[name] >= enough:
                return name, curves[name]
    for run, log in logs.items():
        if not any(points_of(log, name)[0] for name in names):
            if metric == RETURN:
                raise CheckpointError(f"{run} has logged no returns yet")
            near = did_you_mean(metric, {name.partition("/")[2] for name in known})
            raise CheckpointError(f"{run} has logged no '{metric}'{near}")
    raise CheckpointError(f"'{metric}' is not in one part of the log in all of these runs; choose one of: {', '.join(names)}")


def metric_names(log: Sequence[Record]) -> list[str]:
    """The full names of the numbers in a log, such as ``train/loss``."""
    return list(dict.fromkeys(name for record in log for name in _numbers(record)))


def _numbers(record: Record) -> Iterable[str]:
    """The full names of the finite numbers in a record of a log."""
    for key, value in record.items():
        if (
            key not in ("kind", "step")
            and isinstance(value, int | float)
            and not isinstance(value, bool)
            and _is_finite(value)
        ):
            yield f"{record['kind']}/{key}"


def points_of(log: Sequence[Record], name: str) -> Points:
    """The steps and values of a metric."""
    _, _, key = name.partition("/")
    records = [record for record in log if name in _numbers(record)]
    return [record["step"] for record in records], [float(record[key]) for record in records]


def _is_finite(value: int | float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # a whole number beyond any float
        return False


def smoothed(values: Sequence[float], window: int) -> list[float]:
    """Each value averaged with up to ``window - 1`` values before it."""
    return [float(np.mean(values[max(0, end - window) : end])) for end in range(1, len(values) + 1)]


def on_common_steps(curves: Sequence[Points]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Interpolates all curves linearly at the steps of the shortest one. Returns (steps,) and (curve, steps)."""
    steps = np.asarray(min((curve[0] for curve in curves), key=lambda points: points[-1]))
    return steps, np.stack([np.interp(steps, *curve) for curve in curves])
