"""Plots the learning curves of one or more runs."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rl_training.errors import CheckpointError, ConfigError
from rl_training.experiment.config import rename_old
from rl_training.experiment.files import remove
from rl_training.experiment.metrics import METRICS_FILE, read_log
from rl_training.experiment.run import is_run, read_run_config
from rl_training.experiment.trust import Trust

Curve = tuple[list[int], list[float]]


def plot_runs(paths: Sequence[Path], output: Path) -> list[str]:
    """Plots returns against env steps; runs that differ only in their seed become a mean with a band. Returns the labels."""
    groups = _group_by_config(paths)
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 4.5), layout="constrained")
    labels = []
    for label, members in groups.items():
        logs = {path: read_log(path) for path in members}
        evaluated = all(any(record["kind"] == "eval" for record in log) for log in logs.values())
        kind = "eval" if evaluated else "train"
        curves = [_curve(path, [record for record in log if record["kind"] == kind]) for path, log in logs.items()]
        steps, returns = on_common_steps(curves)
        count = f", {len(members)} seeds" if len(members) > 1 else ""
        text = f"{label} ({'evaluation' if evaluated else 'training'}{count})"
        labels.append(text)
        (line,) = axes.plot(steps, returns.mean(axis=0), label=text)
        if len(members) > 1:
            mean, spread = returns.mean(axis=0), returns.std(axis=0)
            axes.fill_between(steps, mean - spread, mean + spread, color=line.get_color(), alpha=0.2, linewidth=0)
    axes.set_xlabel("environment steps")
    axes.set_ylabel("return")
    axes.grid(alpha=0.3)
    axes.legend(loc="best", fontsize="small")
    partial = output.with_name(f".writing-{output.name}")
    try:
        remove(partial)
        figure.savefig(partial, dpi=150)
        partial.replace(output)  # a link that has this name is replaced, not followed
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot write the plot {output}: {error}") from error
    finally:
        pyplot.close(figure)
        partial.unlink(missing_ok=True)
    return labels


def _group_by_config(paths: Sequence[Path]) -> dict[str, list[Path]]:
    """Groups runs by label. Runs with the same label differ only in seed and output directory; different configs of the same
    algorithm and environment are numbered."""
    members: dict[str, list[Path]] = {}
    names: dict[str, str] = {}
    for path in paths:
        if not is_run(path) or not (path / METRICS_FILE).exists():
            raise CheckpointError(f"{path} is not a run directory with a {METRICS_FILE}")
        config = _config_of(path)
        key = repr({name: value for name, value in config.items() if name not in ("seed", "output_dir")})
        members.setdefault(key, []).append(path)
        names[key] = f"{config['algo']} {config['env_id']}"
    groups: dict[str, list[Path]] = {}
    for key, runs in members.items():
        same = [other for other in members if names[other] == names[key]]
        groups[names[key] if len(same) == 1 else f"{names[key]} #{same.index(key) + 1}"] = runs
    return groups


def _config_of(path: Path) -> dict[str, Any]:
    """The settings of a run, under current names unless that needs a module that is not trusted."""
    data = read_run_config(path)
    with contextlib.suppress(ConfigError):
        Trust(path).require_algo(data)
        return rename_old(data)
    return data


def _curve(path: Path, log: Sequence[dict[str, Any]]) -> Curve:
    records = [record for record in log if record.get("return_mean") is not None]
    if not records:
        raise CheckpointError(f"{path} has logged no returns yet")
    return [record["step"] for record in records], [record["return_mean"] for record in records]


def on_common_steps(curves: Sequence[Curve]) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Interpolates all curves linearly at the steps of the shortest one. Returns (steps,) and (curve, steps)."""
    steps = np.asarray(min((curve[0] for curve in curves), key=lambda points: points[-1]))
    return steps, np.stack([np.interp(steps, *curve) for curve in curves])
