"""Several runs on one page: runs that differ only in their seed are a group, and the groups on a task are compared.

With rliable (extra ``bench``), curves and final returns are interquartile means with bootstrap intervals; without it, means.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from rl_training.experiment.aggregate import (
    FEWEST_FOR_AN_INTERVAL,
    Array,
    has_rliable,
    interquartile_mean,
    interquartile_mean_curve,
    matrix,
    performance_profile,
    probability_of_improvement,
)
from rl_training.experiment.curves import (
    Points,
    compare,
    config_of,
    differing_settings,
    on_common_steps,
    read_curves,
)
from rl_training.experiment.outcomes import final_return
from rl_training.runtime.page import curves, figure, section, table, wide_table
from rl_training.runtime.svg import Bar, Line, bar_chart, number

#: Returns for which sample efficiency is shown, from the lowest to the highest of the mean curves.
REACHED = (0.5, 0.75, 0.9)
#: Pairs of groups that are compared one by one, and points of a profile.
MOST_PAIRS, PROFILE_POINTS = 30, 101
WITHOUT = "Means with a band of one standard deviation; with pip install 'rl-training[bench]', interquartile means."
WITH = "Interquartile means over the seeds, with 95 % bootstrap intervals (rliable) where there are three seeds or more."


@dataclass(frozen=True)
class Runs:
    """The runs of a group, with what they have logged and reached."""

    label: str
    paths: list[Path]
    config: Mapping[str, Any]
    points: list[Points]
    finals: list[float]

    def line(self) -> Line:
        """The curve of the group."""
        steps, values = on_common_steps(self.points)
        low, high = np.empty(0), np.empty(0)
        if not has_rliable():
            middle, spread = values.mean(axis=0), values.std(axis=0)
            if len(values) > 1:
                low, high = middle - spread, middle + spread
        else:
            middle, bounds = interquartile_mean_curve(values)
            if len(values) >= FEWEST_FOR_AN_INTERVAL:
                low, high = bounds
        return Line(f"{self.label} ({len(self.paths)})", *(part.tolist() for part in (steps, middle, low, high)))


def compared(runs: Sequence[Path]) -> tuple[str, str]:
    """The title and the content of a page."""
    comparison = compare(runs)
    groups = []
    for group in comparison.groups:
        _, points = read_curves(group.runs)
        finals = [final for run in group.runs if (final := final_return(run)) is not None]
        groups.append(Runs(group.label, list(group.runs), config_of(group.runs[0]), points, finals))
    tasks: dict[str, list[Runs]] = {}
    for one in groups:
        tasks.setdefault(str(one.config["env_id"]), []).append(one)
    body = "".join(_task(f" on {task}" if len(tasks) > 1 else "", members) for task, members in tasks.items())
    differing = differing_settings([one.config for one in groups])
    rows = [(key, *values) for key, values in differing.items()]
    members = [(one.label, str(run)) for one in groups for run in one.paths]
    body += section(
        "Settings in which they differ", wide_table(("setting", *(one.label for one in groups)), rows) if rows else ""
    )
    return comparison.title, body + section("Runs", wide_table(("runs", "directory"), members))


def _task(where: str, groups: Sequence[Runs]) -> str:
    """The comparison on one task."""
    lines = [group.line() for group in groups]
    evaluated = [group for group in groups if group.finals]
    return "".join(
        (
            section(f"Learning curves{where}", curves("Return", lines), WITH if has_rliable() else WITHOUT),
            section(f"Final returns{where}", _finals(groups)),
            section(
                f"Sample efficiency{where}",
                _efficiency(groups, lines),
                "Environment steps until a run first reaches a return: the median of the runs that do, and how many do.",
            ),
            *(_comparisons(where, evaluated) if has_rliable() and len(evaluated) > 1 else ()),
        )
    )


def _finals(groups: Sequence[Runs]) -> str:
    rows = []
    for group in groups:
        finals = group.finals
        if not finals:
            rows.append((group.label, len(group.paths), "not evaluated", "", "", "", ""))
            continue
        middle = number(statistics.fmean(finals))
        if has_rliable():
            estimate = interquartile_mean(matrix([finals]))
            middle = number(estimate.value)
            if len(finals) >= FEWEST_FOR_AN_INTERVAL:
                middle += f" [{number(estimate.low)}, {number(estimate.high)}]"
        deviation = number(statistics.stdev(finals)) if len(finals) > 1 else ""
        extremes = number(min(finals)), number(max(finals))
        rows.append((group.label, len(group.paths), middle, number(statistics.median(finals)), deviation, *extremes))
    average = "IQM [95 % interval]" if has_rliable() else "mean"
    return wide_table(("runs", "seeds", average, "median", "standard deviation", "worst", "best"), rows)


def _efficiency(groups: Sequence[Runs], lines: Sequence[Line]) -> str:
    values = [value for line in lines for value in line.ys]
    low, high = min(values), max(values)
    if high <= low:
        return ""
    goals = [low + share * (high - low) for share in REACHED]
    rows = []
    for group in groups:
        cells = []
        for goal in goals:
            steps = [step for points in group.points if (step := _first_reached(points, goal)) is not None]
            count = f"{len(steps)} of {len(group.points)}"
            cells.append(f"{statistics.median(steps):,.0f} ({count})" if steps else f"- ({count})")
        rows.append((group.label, *cells))
    return wide_table(("runs", *(f"return {number(goal)}" for goal in goals)), rows)


def _first_reached(points: Points, goal: float) -> int | None:
    return next((step for step, value in zip(*points, strict=True) if value >= goal), None)


def _comparisons(where: str, groups: Sequence[Runs]) -> list[str]:
    """Comparisons between groups: which is better, and how often each reaches a return."""
    pairs = list(combinations(groups, 2))[:MOST_PAIRS]
    bars, rows = [], []
    for one, other in pairs:
        estimate = probability_of_improvement(*(matrix([group.finals]) for group in (one, other)))
        bars.append(Bar(f"{one.label} > {other.label}", estimate.value, estimate.low, estimate.high))
        rows.append((one.label, other.label, estimate.text(".2f")))
    title = "Probability of improvement"
    drawn = figure(
        title, bar_chart(title, bars), table("", ("runs", "against", "probability [95 % interval]"), rows), level=0
    )
    note = "The probability that a run of the first group ends above a run of the second; a tie counts half."
    finals = [final for group in groups for final in group.finals]
    at = np.linspace(min(finals), max(finals), PROFILE_POINTS)
    profiles = [_profile(group, at) for group in groups]
    shown = curves("Share of runs", profiles, x_name="final return") if min(finals) < max(finals) else ""
    return [
        section(f"{title}{where}", drawn, note),
        section(f"Performance profile{where}", shown, "The share of runs that end with at least this return."),
    ]


def _profile(group: Runs, at: Array) -> Line:
    shares, (low, high) = performance_profile(matrix([group.finals]), at)
    bounds = (low.tolist(), high.tolist()) if len(group.finals) >= FEWEST_FOR_AN_INTERVAL else ((), ())
    return Line(group.label, at.tolist(), shares.tolist(), *bounds)
