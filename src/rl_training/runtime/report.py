"""``rl-training report``: one or more runs as a page to look at, in one HTML file that asks nobody for anything.

A run directory is data, whoever made it: everything that comes from it is escaped, and the page has no script.
"""

from __future__ import annotations

import contextlib
import math
import re
import shlex
import statistics
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
from typing import Any

from rl_training.errors import CheckpointError, ConfigError
from rl_training.experiment.config import resolve_config
from rl_training.experiment.curves import (
    Points,
    compare,
    config_of,
    find_runs,
    flat,
    metric_names,
    on_common_steps,
    points_of,
    read_curves,
)
from rl_training.experiment.files import parse_json, read_small, replace_text
from rl_training.experiment.layout import EVALUATION_FILE, METADATA_FILE
from rl_training.experiment.metrics import read_log
from rl_training.experiment.trust import Trust
from rl_training.runtime.svg import Line, Mark, bar_chart, line_chart, number
from rl_training.version import __version__

MOST_ROWS = 100
STYLE = """
:root{color-scheme:light dark;--back:#fff;--text:#1c1e21;--soft:#5c636b;--edge:#d8dce1;--panel:#f6f7f9}
:root{--c0:#1f6fb4;--c1:#c2570c;--c2:#24803a;--c3:#a4262c;--c4:#6b4fbb;--c5:#7a5230;--c6:#b0307d;--c7:#4d6370}
@media(prefers-color-scheme:dark){:root{--back:#15181c;--text:#e6e8eb;--soft:#a3abb5;--edge:#3a4149;--panel:#1e2227;
--c0:#6cb2f0;--c1:#f09a5a;--c2:#6ccb84;--c3:#f28b8f;--c4:#b3a1f2;--c5:#d0a27c;--c6:#ef8fca;--c7:#a3b8c4}}
*{box-sizing:border-box}body{margin:0 auto;max-width:72rem;padding:1rem;font:1rem/1.5 system-ui,sans-serif;
background:var(--back);color:var(--text)}h1{font-size:1.5rem;margin:.5rem 0}h2{font-size:1.15rem;margin:2rem 0 .5rem}
h3{font-size:1rem;margin:0 0 .3rem;font-weight:600}p{margin:.3rem 0}.soft{color:var(--soft)}
code{font-family:ui-monospace,monospace;font-size:.9em;overflow-wrap:anywhere}
pre{background:var(--panel);border:1px solid var(--edge);border-radius:6px;padding:.6rem;white-space:pre-wrap;margin:.5rem 0}
dl.facts{display:grid;grid-template-columns:repeat(auto-fit,minmax(9rem,1fr));gap:.6rem;margin:1rem 0}
dl.facts div{background:var(--panel);border:1px solid var(--edge);border-radius:6px;padding:.5rem .7rem}
dt{color:var(--soft);font-size:.85rem}dd{margin:0;font-size:1.25rem;font-weight:600}dd small{font-size:.8rem;font-weight:400}
.charts{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,20rem),1fr));gap:1.2rem}
figure{margin:0;min-width:0}svg{width:100%;height:auto;display:block}svg text{fill:var(--soft);font:12px system-ui,sans-serif}
.charts svg text{font-size:18px}main>figure{max-width:52rem}@media(max-width:40rem){svg text{font-size:19px}}
.grid{stroke:var(--edge)}.line{fill:none;stroke-width:2}.band{opacity:.18;stroke:none}.dot{stroke:none}.hidden{opacity:0}
.hidden:hover{opacity:1}.mark{stroke:var(--c3);stroke-dasharray:4 3}.bar{fill:var(--c0)}
table{border-collapse:collapse;font-size:.9rem;font-variant-numeric:tabular-nums}
th,td{padding:.2rem .7rem .2rem 0;text-align:left;border-bottom:1px solid var(--edge);vertical-align:top}
.wide{overflow-x:auto}td{overflow-wrap:anywhere}
caption{text-align:left;color:var(--soft)}summary{cursor:pointer;color:var(--soft);font-size:.9rem}
.changed td,.changed th{font-weight:700}.key{display:inline-block;width:.9em;height:.9em;border-radius:2px;margin-right:.4em}
ul.legend{list-style:none;padding:0;margin:.3rem 0;display:flex;flex-wrap:wrap;gap:.2rem 1.2rem;font-size:.9rem}
""" + "".join(
    f".line.c{k}{{stroke:var(--c{k})}}.dot.c{k},.band.c{k}{{fill:var(--c{k})}}.key.c{k}{{background:var(--c{k})}}"
    for k in range(8)
)


def write_report(paths: Sequence[Path], output: Path) -> list[Path]:
    """Writes the page for the runs among these paths and below them; returns the runs."""
    if output.suffix.lower() not in (".html", ".htm"):
        raise ConfigError(f"cannot write the report {output}: its name must end in .html")
    runs = find_runs(paths)
    title, body = _one_run(runs[0]) if len(runs) == 1 else _several_runs(runs)
    policy = "default-src 'none'; style-src 'unsafe-inline'"
    page = (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, '
        f'initial-scale=1"><meta http-equiv="Content-Security-Policy" content="{policy}"><title>{escape(title)}</title>'
        f"<style>{STYLE}</style></head><body><main><h1>{escape(title)}</h1>{body}</main>"
        f'<footer class="soft"><p>Written by rl-training {__version__}.</p></footer></body></html>\n'
    )
    try:
        replace_text(output, page)
    except CheckpointError as error:
        raise ConfigError(f"cannot write the report {output}: {error.__cause__}") from error
    return runs


# ----------------------------------------------------------------------------------------------------------- one run


def _one_run(run: Path) -> tuple[str, str]:
    config, log = config_of(run), read_log(run)
    evaluation, about = _json(run / EVALUATION_FILE), _json(run / METADATA_FILE)
    curves = {name: points for name in metric_names(log) if (points := points_of(log, name))[0]}
    if not curves:
        raise CheckpointError(
            f"{run} has logged nothing yet, so there is nothing to report; train it with: rl-training resume {run}"
        )
    marks = _marks(run)
    returns = [
        Line(label, *curves[name])
        for name, label in (("eval/return_mean", "evaluation"), ("train/return_mean", "training"))
        if name in curves
    ]
    sections = [_headline(run, config, curves, evaluation, about)]
    if returns:
        sections.append(f"<h2>Learning curve</h2>{_figure('Return', returns, marks)}")
    if marks:
        items = "".join(f"<li>{escape(mark.label)}</li>" for mark in marks)
        sections.append(f"<h2>Faults and resumes</h2><ul>{items}</ul>")
    bars = [_bars(name, evaluation.get(name.lower())) for name in ("Returns", "Lengths")]
    if any(bars):
        sections.append(f'<h2>Evaluation after training</h2><div class="charts">{"".join(bars)}</div>')
    others = [name for name in curves if name.startswith("train/") and "return_mean" not in name and "/time/" not in name]
    figures = "".join(_figure(name.removeprefix("train/"), [Line(name, *curves[name])], level=3) for name in others)
    sections.append(f'<h2>Training</h2><div class="charts">{figures}</div>' if others else "")
    sections.append(_time(curves))
    sections.append(f"<h2>Settings</h2>{_settings(run, config)}")
    found = about.get("versions")
    versions: dict[str, Any] = found if isinstance(found, dict) else {}
    rows = [("Python", about.get("python")), ("platform", about.get("platform")), *sorted(versions.items())]
    sections.append(f"<h2>Versions</h2>{_table('', ('package', 'version'), rows)}")
    return f"{config['algo']} on {config['env_id']}, seed {config.get('seed')}", "".join(sections)


def _headline(
    run: Path, config: dict[str, Any], curves: dict[str, Points], evaluation: dict[str, Any], about: dict[str, Any]
) -> str:
    step = max(points[0][-1] for points in curves.values())
    total = config.get("total_timesteps")
    facts = [("steps", f"{step:,}" + (f" <small>of {total:,}</small>" if isinstance(total, int) and total != step else ""))]
    returns = _numbers(evaluation.get("returns"))
    if returns:
        spread = 1.96 * statistics.stdev(returns) / math.sqrt(len(returns)) if len(returns) > 1 else 0.0
        interval = f" <small>± {number(spread)} (95 %), {len(returns)} episodes</small>"
        facts.insert(0, ("final return", number(statistics.fmean(returns)) + interval))
    if "eval/return_mean" in curves:
        facts.append(("best evaluation", number(max(curves["eval/return_mean"][1]))))
    for key, name in (("cpu_seconds", "CPU time"), ("steps_per_second", "steps per second")):
        last = [points[1][-1] for kind in ("train", "eval") if (points := curves.get(f"{kind}/time/{key}"))]
        if last:
            facts.append((name, _duration(last[0]) if key == "cpu_seconds" else number(last[0])))
    shown = "".join(f"<div><dt>{name}</dt><dd>{value}</dd></div>" for name, value in facts)
    repeat = f"rl-training train --config {shlex.quote(str(run / 'config.yaml'))} --output-dir NEW"
    made_by = about.get("command")
    began = f"<p>It was started with</p><pre><code>{escape(made_by)}</code></pre>" if isinstance(made_by, str) else ""
    return f'<p class="soft"><code>{escape(str(run))}</code></p><dl class="facts">{shown}</dl>{began}' + (
        f"<p>To repeat it exactly, with the same versions:</p><pre><code>{escape(repeat)}</code></pre>"
    )


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s" if minutes else f"{seconds:.1f} s"


def _marks(run: Path) -> list[Mark]:
    """Faults, which have files of their own, and resumes, after which the events for TensorBoard begin anew."""
    found = []
    for kind, pattern, expression in (
        ("fault", "fault-step-*.json", r"fault-step-(\d{1,15})\.json"),
        ("resumed", "tensorboard/events.out.tfevents.*", r"events\.out\.tfevents\.\d+\.step(\d{1,15})"),
    ):
        for path in run.glob(pattern):
            match = re.fullmatch(expression, path.name)
            if match and (kind == "fault" or int(match[1])):
                problem = f": {_json(path).get('problem')}" if kind == "fault" else ""
                found.append(Mark(int(match[1]), f"{kind} at step {int(match[1]):,}{problem}"[:300]))
    return sorted(found, key=lambda mark: mark.step)


def _bars(name: str, values: Any) -> str:
    numbers = _numbers(values)
    if not numbers:
        return ""
    title = f"{name} of {len(numbers)} episodes"
    table = _table(title, ("episode", name.lower()), [(k + 1, number(value)) for k, value in enumerate(numbers[:MOST_ROWS])])
    return f"<figure><h3>{title}</h3>{bar_chart(title, numbers, name.lower())}{_details(table)}</figure>"


def _time(curves: dict[str, Points]) -> str:
    """Where the time went."""
    last = {key: curves[f"train/time/{key}"][1][-1] for key in _TIMES if f"train/time/{key}" in curves}
    if "seconds" not in last:
        return ""
    rows = [(_TIMES[key], _duration(value)) for key, value in last.items()]
    speed = curves.get("train/time/steps_per_second")
    drawn = _figure("steps per second", [Line("steps per second", *speed)], level=3) if speed else ""
    return f'<h2>Time</h2><div class="charts"><div class="wide">{_table("", ("what", "time"), rows)}</div>{drawn}</div>'


_TIMES = {"seconds": "in all", "cpu_seconds": "of the processor", "evaluation_seconds": "in evaluations"}


def _settings(run: Path, config: dict[str, Any]) -> str:
    values, defaults = flat(config), _defaults(run, config)
    rows, changed = [], []
    for key, value in values.items():
        known = defaults is not None and key in defaults and key not in ("algo", "env_id", "seed", "output_dir")
        differs = known and defaults is not None and defaults[key] != value
        rows.append((key, value, defaults[key] if differs and defaults is not None else ""))
        changed.append(differs)
    note = "Settings that differ from the defaults are bold." if defaults is not None else "The defaults are not known here."
    return f'<p class="soft">{note}</p><div class="wide">{_table("", ("setting", "value", "default"), rows, changed)}</div>'


def _defaults(run: Path, config: dict[str, Any]) -> dict[str, Any] | None:
    """The default settings of the run's algorithm, unless that needs a module that is not trusted."""
    with contextlib.suppress(ConfigError):
        Trust(run).require_algo(config)
        defaults = resolve_config({"algo": config["algo"], "env_id": config["env_id"]})
        return flat(defaults.model_dump(mode="json"))
    return None


# ------------------------------------------------------------------------------------------------------ several runs


def _several_runs(runs: Sequence[Path]) -> tuple[str, str]:
    comparison = compare(runs)
    lines, scores = [], []
    for group in comparison.groups:
        _, curves = read_curves(group.runs)
        steps, values = on_common_steps(curves)
        spread = values.std(axis=0).tolist() if len(group.runs) > 1 else ()
        lines.append(Line(group.label, steps.tolist(), values.mean(axis=0).tolist(), spread))
        finals = [
            statistics.fmean(returns)
            for run in group.runs
            if (returns := _numbers(_json(run / EVALUATION_FILE).get("returns")))
        ]
        deviation = number(statistics.stdev(finals)) if len(finals) > 1 else ""
        mean = number(statistics.fmean(finals)) if finals else "not evaluated"
        best = number(max(finals)) if finals else ""
        scores.append((group.label, len(group.runs), mean, deviation, best))
    head = ("runs", "seeds", "final return, mean", "standard deviation", "best")
    members = [(group.label, str(run)) for group in comparison.groups for run in group.runs]
    body = (
        f"<h2>Learning curves</h2><p class='soft'>Means over the seeds, with a band of one standard deviation.</p>"
        f"{_figure('Return', lines)}<h2>Final returns</h2><div class='wide'>{_table('', head, scores)}</div>"
        f"<h2>Runs</h2><div class='wide'>{_table('', ('runs', 'directory'), members)}</div>"
    )
    return comparison.title, body


# ------------------------------------------------------------------------------------------------------------- pieces


def _figure(title: str, lines: Sequence[Line], marks: Sequence[Mark] = (), level: int = 0) -> str:
    heading = f"<h{level}>{escape(title)}</h{level}>" if level else ""
    keys = "".join(f'<li><span class="key c{k % 8}"></span>{escape(line.label)}</li>' for k, line in enumerate(lines))
    legend = f'<ul class="legend">{keys}</ul>' if len(lines) > 1 else ""
    tables = "".join(_line_table(title, line) for line in lines)
    return f"<figure>{heading}{line_chart(title, lines, marks)}{legend}{_details(tables)}</figure>"


def _line_table(title: str, line: Line) -> str:
    every = -(-len(line.steps) // MOST_ROWS)
    kept = sorted({*range(0, len(line.steps), every), len(line.steps) - 1})
    rows = [(f"{line.steps[k]:,.0f}", number(line.values[k])) for k in kept]
    return _table(line.label, ("step", title), rows)


def _details(content: str) -> str:
    return f'<details><summary>as a table</summary><div class="wide">{content}</div></details>'


def _table(caption: str, head: Sequence[str], rows: Iterable[Sequence[Any]], marked: Sequence[bool] = ()) -> str:
    lines = []
    for k, (first, *others) in enumerate(rows):
        cells = "".join(f"<td>{escape(str(cell))}</td>" for cell in others)
        shown = ' class="changed"' if k < len(marked) and marked[k] else ""
        lines.append(f'<tr{shown}><th scope="row">{escape(str(first))}</th>{cells}</tr>')
    named = f"<caption>{escape(caption)}</caption>" if caption else ""
    columns = "".join(f'<th scope="col">{escape(name)}</th>' for name in head)
    return f"<table>{named}<thead><tr>{columns}</tr></thead><tbody>{''.join(lines)}</tbody></table>"


def _json(path: Path) -> dict[str, Any]:
    """A file of a run that may be missing or damaged, in which case the page does without it."""
    with contextlib.suppress(OSError, CheckpointError):
        found = parse_json(read_small(path), path)
        return found if isinstance(found, dict) else {}
    return {}


def _numbers(values: Any) -> list[float]:
    if not isinstance(values, list):
        return []
    return [
        float(value)
        for value in values
        if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e300
    ]
