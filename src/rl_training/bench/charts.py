"""The charts of the benchmarks page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rl_training.bench.aggregate import Array, interquartile_mean_curve
from rl_training.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator

COLUMNS = 2


@dataclass(frozen=True)
class Curve:
    """Returns (seeds, points) at the given env steps. Curves in the same ``group`` share a colour; a peer's is dashed."""

    label: str
    group: str
    steps: Array
    returns: Array
    is_peer: bool = False


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
    rows = -(-len(panels) // COLUMNS)
    with figure(path, 11, 3.4 * rows, nrows=rows, ncols=COLUMNS) as (_, axes):
        for axis, (task, curves) in zip(axes.flat, panels.items(), strict=False):
            colors: dict[str, str] = {}
            for curve in curves:
                color = colors.setdefault(curve.group, f"C{len(colors) % 10}")
                mean, bounds = interquartile_mean_curve(curve.returns)
                style = "--" if curve.is_peer else "-"
                axis.plot(curve.steps, mean, style, color=color, linewidth=1.4, label=f"{curve.label} ({len(curve.returns)})")
                axis.fill_between(curve.steps, *bounds, color=color, alpha=0.07 if curve.is_peer else 0.18, linewidth=0)
            axis.set_title(task, fontsize="medium")
            axis.set_xlabel("environment steps")
            axis.set_ylabel("return")
            axis.grid(alpha=0.3)
            axis.legend(fontsize="x-small", title="(seeds)", title_fontsize="x-small")
        for axis in axes.flat[len(panels) :]:
            axis.set_axis_off()
