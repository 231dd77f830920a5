"""Plots the learning curves of runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rl_training.errors import ConfigError
from rl_training.experiment.curves import RETURN, compare, find_runs, on_common_steps, read_curves, smoothed
from rl_training.experiment.files import remove

#: Curves with at most this many points have a marker at each.
FEW_POINTS = 40
NAMES = {"eval/return_mean": "return in evaluations", "train/return_mean": "return in training"}


def plot_runs(
    paths: Sequence[Path], output: Path, *, metric: str = RETURN, smooth: int = 1, title: str | None = None
) -> list[str]:
    """Plots a metric against env steps, for the runs among these paths and below them. Runs that differ only in their seed
    become a mean with a band of one standard deviation. Returns a line about each curve."""
    comparison = compare(find_runs(paths))
    drawn = [(group, *read_curves(group.runs, metric)) for group in comparison.groups]
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 4.5), layout="constrained")
    lines = []
    for group, name, curves in drawn:
        where = {"eval": "evaluation", "train": "training"}.get(name.partition("/")[0], name)
        count = f", {len(group.runs)} seeds" if len(group.runs) > 1 else ""
        lines.append(f"{group.label} ({where}{count})")
        label = f"{where}{count}" if group.label == comparison.title else lines[-1]
        steps, values = on_common_steps([(steps, smoothed(values, smooth)) for steps, values in curves])
        mean, spread = values.mean(axis=0), values.std(axis=0)
        marker = "o" if len(steps) <= FEW_POINTS else None
        (line,) = axes.plot(steps, mean, marker=marker, markersize=4, label=label)
        if len(group.runs) > 1:
            axes.fill_between(steps, mean - spread, mean + spread, color=line.get_color(), alpha=0.2, linewidth=0)
    names = list(dict.fromkeys(name for _, name, _ in drawn))
    axes.set_title(comparison.title if title is None else title)
    axes.set_xlabel("environment steps")
    axes.set_ylabel((NAMES.get(names[0], names[0]) if len(names) == 1 else "return") + _of(smooth))
    axes.set_xlim(left=0)
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
    return lines


def _of(smooth: int) -> str:
    return f" (mean of {smooth} points)" if smooth > 1 else ""
