"""The charts of the benchmarks page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rl_training.errors import ConfigError
from rl_training.experiment.aggregate import Array, interquartile_mean_curve
from rl_training.runtime.svg import Line, standalone, thinned

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass(frozen=True)
class Curve:
    """Returns (seeds, points) at these env steps. Curves in the same ``group`` share a colour; those of others are dashed."""

    label: str
    group: str
    steps: Array
    returns: Array
    of_others: bool = False


@contextmanager
def figure(path: Path, width: float, height: float, **layout: Any) -> Iterator[tuple[Any, Any]]:
    """A figure with its axes, saved on exit. The same data always gives the same file."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    with matplotlib.rc_context({"svg.hashsalt": "rl-training", "svg.fonttype": "none", "font.size": 9}):
        drawing, axes = pyplot.subplots(figsize=(width, height), layout="constrained", squeeze=False, **layout)
        try:
            yield drawing, axes
            path.parent.mkdir(parents=True, exist_ok=True)
            drawing.savefig(path, dpi=150, metadata={"Date": None} if path.suffix == ".svg" else None)
        except (OSError, ValueError) as error:
            raise ConfigError(f"cannot write the chart {path}: {error}") from error
        finally:
            pyplot.close(drawing)


def draw_learning_curves(panels: Mapping[str, Sequence[Curve]], path: Path) -> None:
    """Draws a panel for each task, with interquartile means over the seeds and their 95 % intervals."""
    drawn = []
    for task, curves in panels.items():
        colors = {group: k for k, group in enumerate(dict.fromkeys(curve.group for curve in curves))}
        drawn.append((task, [thinned(_line(curve, colors[curve.group])) for curve in curves]))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(
            standalone("Learning curves: the return by environment steps, with the number of seeds", drawn), "utf-8"
        )
    except OSError as error:
        raise ConfigError(f"cannot write the chart {path}: {error}") from error


def _line(curve: Curve, color: int) -> Line:
    mean, bounds = interquartile_mean_curve(curve.returns)
    xs, ys, low, high = (part.tolist() for part in (curve.steps, mean, *bounds))
    label = f"{curve.label} ({len(curve.returns)})"
    return Line(label, xs, ys, low, high, dashed=curve.of_others, color=color)
