"""Plots the learning curves of runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from rl_training.errors import ConfigError
from rl_training.experiment.curves import (
    NAMES,
    RETURN,
    Points,
    compare,
    config_of,
    find_runs,
    on_common_steps,
    read_curves,
    smoothed,
    with_curves,
)
from rl_training.experiment.files import remove
from rl_training.runtime.svg import Line, standalone

#: Curves with at most this many points have a marker at each.
FEW_POINTS = 40


def plot_runs(
    paths: Sequence[Path], output: Path, *, metric: str = RETURN, smooth: int = 1, title: str | None = None
) -> list[str]:
    """Plots a metric against env steps, for the runs among these paths and below them. Runs that differ only in their seed
    become a mean with a band of one standard deviation. A run that has not logged the metric is left out, with a warning.
    Returns a line about each curve."""
    comparison = compare(with_curves(find_runs(paths), "plot", metric))
    read = [(group, *read_curves(group.runs, metric)) for group in comparison.groups]
    lines, about = [], []
    for group, name, curves in read:
        where = {"eval": "evaluation", "train": "training"}.get(name.partition("/")[0], name)
        count = f", {_counted(group.runs)}" if len(group.runs) > 1 else ""
        about.append(f"{group.label} ({where}{count})")
        label = f"{where}{count}" if group.label == comparison.title else about[-1]
        lines.append(_line(label, [(steps, smoothed(values, smooth)) for steps, values in curves]))
    names = list(dict.fromkeys(name for _, name, _ in read))
    shown = (NAMES.get(names[0], names[0]) if len(names) == 1 else "return") + _of(smooth)
    title = comparison.title if title is None else title
    if output.suffix.lower() == ".svg":
        _write(output, lambda path: path.write_text(standalone(title, [(f"{title}: {shown}", lines)], columns=1), "utf-8"))
    else:
        _draw(output, lines, title, shown)
    return about


def _counted(runs: Sequence[Path]) -> str:
    """How many runs there are. A seed that was trained twice is no second seed."""
    seeds = len({config_of(run).get("seed") for run in runs})
    if seeds == len(runs):
        return f"{seeds} seeds"
    return f"{len(runs)} runs" if seeds == 1 else f"{len(runs)} runs of {seeds} seeds"


def _line(label: str, curves: Sequence[Points]) -> Line:
    """The mean of some curves, with a band of one standard deviation."""
    steps, values = on_common_steps(curves)
    mean, spread = values.mean(axis=0), values.std(axis=0)
    band = ((mean - spread).tolist(), (mean + spread).tolist()) if len(curves) > 1 else ((), ())
    return Line(label, steps.tolist(), mean.tolist(), *band)


def _draw(output: Path, lines: Sequence[Line], title: str, shown: str) -> None:
    """Draws with matplotlib, in whatever format the name asks for."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 4.5), layout="constrained")
    for line in lines:
        marker = "o" if len(line.xs) <= FEW_POINTS else None
        (drawn,) = axes.plot(line.xs, line.ys, marker=marker, markersize=4, label=line.label)
        if line.low:
            axes.fill_between(line.xs, line.low, line.high, color=drawn.get_color(), alpha=0.2, linewidth=0)
    axes.set_title(title)
    axes.set_xlabel("environment steps")
    axes.set_ylabel(shown)
    axes.set_xlim(left=0)
    axes.grid(alpha=0.3)
    axes.legend(loc="best", fontsize="small")
    try:
        _write(output, lambda path: figure.savefig(path, dpi=150))
    finally:
        pyplot.close(figure)


def _write(output: Path, write: Callable[[Path], object]) -> None:
    """Writes a file as a whole, or not at all."""
    partial = output.with_name(f".writing-{output.name}")
    try:
        remove(partial)
        write(partial)
        partial.replace(output)  # a link that has this name is replaced, not followed
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot write the plot {output}: {error}") from error
    finally:
        partial.unlink(missing_ok=True)


def _of(smooth: int) -> str:
    return f" (mean of {smooth} points)" if smooth > 1 else ""
