"""The benchmarks as charts that can be read at a glance. They are HTML: they follow the theme and fit a phone."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from html import escape
from statistics import median

import speed
from charts import Group, groups
from report import PHASES, Series, microseconds
from site_algorithms import BENCHMARKS, number, results
from site_markdown import fold, html
from workloads import COMPILED, OURS, WORKLOADS

from rl_training.bench.report import returns_of, task_of


@functools.cache
def measurements() -> Mapping[str, Mapping[str, Series]]:
    """The stored speed measurements, by workload and candidate."""
    known = speed.in_order(speed.load_measurements(BENCHMARKS / "results" / "speed.json"))
    return {name: speed.series_of(fields["candidates"], WORKLOADS[name].threads) for name, fields in known.items()}


def row(label: str, track: str, value: str) -> str:
    """A row of a chart; its parts are HTML."""
    return f'<div class="row"><span>{label}</span><span class="track">{track}</span><span>{value}</span></div>'


def chart(title: str, rows: Iterable[str]) -> str:
    """Rows below each other, with a title for those who cannot see them."""
    return html(f'<div class="bars" role="group" aria-label="{escape(title)}">{"".join(rows)}</div>')


def bar(share: float, kind: str, title: str) -> str:
    """A bar that takes this share of its track."""
    return f'<i class="{kind}" style="width:{100 * share:.1f}%" title="{escape(title)}"></i>'


# ------------------------------------------------------------------------------------------------------------- speed


def speed_chart() -> str:
    """Our best rate in every workload as a multiple of the fastest peer's; behind it, all candidates."""
    found = list(groups(measurements()))
    best = {group.title: max(one.ratio.median for one in group.bars if one.label in (OURS, COMPILED)) for group in found}
    most = max(best.values())
    rows = []
    for group in found:
        name, _, rate = group.title.partition(": ")
        value = best[group.title]
        is_limit = WORKLOADS[name].candidates[group.unit].is_limit
        kind = "no-bar" if is_limit else "ours" if value >= 1 else "behind"
        what = f"<b>{escape(name)}</b> {escape(WORKLOADS[name].title)} ({escape(rate)})"
        against = f'<small class="soft">against {escape(group.unit)}</small>'
        drawn = bar(value / most, kind, group.title) + f'<b class="one" style="left:{100 / most:.1f}%"></b>'
        rows.append(row(f"{what} {against}", drawn, f"{value:.2f} &times;"))
    caption = (
        "Our rate per CPU second as a multiple of the fastest peer's, whose rate is the black line; compiled, where that is "
        "faster. Blue: no peer has this workload, and the black line is bare PyTorch, the limit."
    )
    everything = "\n\n".join(_candidates(group) for group in found)
    behind = fold("All candidates of every workload", everything)
    return f"{caption}\n\n{chart('Speed against the fastest peer', rows)}\n\n{behind}"


def _candidates(group: Group) -> str:
    most = max(one.ratio.median for one in group.bars)
    rows = [
        row(
            escape(one.label),
            bar(one.ratio.median / most, one.kind.replace(" ", "-"), str(one.ratio)),
            f"{one.ratio.median:.2f}",
        )
        for one in group.bars
    ]
    return f"**{group.title}**, 1 = {group.unit}\n\n{chart(group.title, rows)}"


def profile_chart() -> str:
    """Where the time of our candidates goes, phase by phase."""
    rows = []
    for name, series in measurements().items():
        for key in (OURS, COMPILED):
            rounds = [phases for one in (series[key].rounds if key in series else ()) if (phases := microseconds(one))]
            if not rounds:
                continue
            parts = {phase: median(one.get(phase, 0.0) for one in rounds) for phase in PHASES}
            total = sum(parts.values())
            drawn = "".join(
                bar(part / total, f"c{k}", f"{phase}: {part:,.0f} us") for k, (phase, part) in enumerate(parts.items())
            )
            rows.append(row(f"<b>{name}</b> {escape(key)}", drawn, f"{total:,.0f} us"))
    keys = " ".join(f'<span class="key"><i class="c{k}"></i>{phase}</span>' for k, phase in enumerate(PHASES))
    legend = f'<p class="legend">{keys}</p>'
    return f"{legend}\n\n{chart('Where the time goes', rows)}"


# ---------------------------------------------------------------------------------------------------------- learning


def learning_chart() -> str:
    """The final returns of every config by task: a dot for each seed, and the return to reach."""
    references, known = results()
    by_task: dict[str, list[str]] = {}
    for key in (*references, *(key for key in known if key not in references)):
        task = task_of(key, references.get(key)) if key in known else None
        if task is not None:
            by_task.setdefault(task, []).append(key)
    caption = (
        "Final returns by task: a dot for each seed, their median on the right, and a black line at the return to reach."
    )
    return "\n\n".join([caption, *(_task_chart(task, keys) for task, keys in by_task.items())])


def _task_chart(task: str, keys: list[str]) -> str:
    references, known = results()
    returns = {key: returns_of(known[key]) for key in keys}
    goals = {key: references[key].threshold for key in keys if key in references}
    every = [value for values in returns.values() for value in values] + [goal for goal in goals.values() if goal is not None]
    low, high = min(every), max(every)
    size = (high - low) or 1.0

    def place(value: float) -> str:
        return f"left:{3 + 94 * (value - low) / size:.1f}%"

    rows = []
    for key, values in returns.items():
        goal = goals.get(key)
        mark = "" if goal is None else f'<b class="one" style="{place(goal)}" title="to reach: {goal:g}"></b>'
        short = goal is not None and median(values) < goal
        dots = "".join(
            f'<i class="dot {"behind" if short else "ours"}" style="{place(value)}" title="{number(value)}"></i>'
            for value in values
        )
        algorithm = key.partition("/")[0]
        link = f'<a href="algorithms/{algorithm}.html">{escape(key)}</a>'
        rows.append(row(link, f"{mark}{dots}", f"{number(median(values))}"))
    return f"**{task}**\n\n{chart(f'Final returns on {task}', rows)}"
