"""The speed measurements as a bar chart: every candidate's rate divided by that of the fastest peer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from report import Ratio, Results, Series, bar_of
from workloads import COMPILED, OURS, WORKLOADS

from rl_training.bench.charts import figure

COLORS = {"reached": "#2a7f62", "missed": "#b3402a", "no bar": "#4c72b0", "peer": "#9aa5b1", "limit": "#d9d3c3"}


@dataclass(frozen=True)
class Bar:
    """One bar: a ratio with its smallest and largest round, and the length that one of our bars should reach."""

    label: str
    ratio: Ratio
    kind: str  # a key of COLORS
    target: float | None = None


@dataclass(frozen=True)
class Group:
    """The bars for one rate of one workload, all divided by the ``unit``: the fastest peer, or the limit if there is none."""

    title: str
    unit: str
    bars: list[Bar]


def groups(results: Results) -> Iterator[Group]:
    """One group for each rate that was measured both for us and for another candidate."""
    for name, series in results.items():
        candidates = WORKLOADS[name].candidates
        measured = {key: series[key] for key in candidates if key in series and series[key].measured}
        others = [key for key in measured if key not in (OURS, COMPILED)]
        peers = [key for key in others if not candidates[key].is_limit]
        if len(measured) > len(others) > 0:
            for rate in WORKLOADS[name].bars:
                unit = max(peers or others, key=lambda key: median(measured[key].cpu_rates(rate)))
                yield Group(f"{name}: {rate}", unit, [_bar(name, rate, key, measured, unit) for key in measured])


def _bar(name: str, rate: str, key: str, measured: Mapping[str, Series], unit: str) -> Bar:
    workload = WORKLOADS[name]
    ratio = _ratio(measured, key, unit, rate)
    if key not in (OURS, COMPILED):
        return Bar(key, ratio, "limit" if workload.candidates[key].is_limit else "peer")
    targets, missed = [], False
    for other in measured:
        wanted = None if other in (OURS, COMPILED) else bar_of(workload, key, other, rate)
        if wanted is not None:
            targets.append(wanted * _ratio(measured, other, unit, rate).median)
            missed = missed or _ratio(measured, key, other, rate).median < wanted
    return Bar(key, ratio, "no bar" if not targets else "missed" if missed else "reached", max(targets, default=None))


def _ratio(measured: Mapping[str, Series], one: str, other: str, rate: str) -> Ratio:
    ratio = Ratio.of(measured[one], measured[other], rate)
    assert ratio is not None
    return ratio


def draw_speed(results: Results, path: Path) -> bool:
    """Draws the chart. Returns False if there is nothing to draw."""
    drawn = list(groups(results))
    if not drawn:
        return False
    height = 0.7 + sum(0.24 * len(group.bars) + 0.3 for group in drawn)
    with figure(path, 9, height) as (_, axes):
        axis = axes[0, 0]
        position, ticks, labels = 0.0, [], []
        for group in drawn:
            axis.text(0.0, position, f"{group.title} (1 = {group.unit})", fontsize="small", weight="bold", va="center")
            for bar in group.bars:
                position += 1
                low, high = min(bar.ratio.by_round), max(bar.ratio.by_round)
                middle = bar.ratio.median
                axis.barh(position, middle, 0.78, color=COLORS[bar.kind], hatch="///" if bar.kind == "limit" else None)
                axis.errorbar(middle, position, xerr=[[middle - low], [high - middle]], color="black", linewidth=1, capsize=2)
                axis.text(high, position, f"  {middle:.2f}", va="center", fontsize="x-small")
                if bar.target is not None:
                    axis.plot([bar.target] * 2, [position - 0.45, position + 0.45], color="black", linewidth=2.5)
                ticks.append(position)
                labels.append(bar.label)
            position += 1.3
        axis.set_yticks(ticks, labels, fontsize="small")
        axis.axvline(1.0, color="black", linewidth=0.7, linestyle=":")
        axis.set_ylim(position - 0.5, -0.8)
        axis.margins(x=0.08)
        axis.set_xlabel(
            "rate per CPU second, divided by that of the fastest peer; whiskers: smallest and largest round; | bar"
        )
        axis.spines[["top", "right"]].set_visible(False)
    return True
