"""``rl-training report``: one or more runs on one self-contained HTML page, which makes no requests."""

from __future__ import annotations

import base64
import contextlib
import math
import re
import shlex
import statistics
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

from rl_training.errors import CheckpointError, ConfigError
from rl_training.experiment.config import resolve_config
from rl_training.experiment.curves import Points, config_of, find_runs, flat, log_of, metric_names, points_of, with_curves
from rl_training.experiment.layout import EVALUATION_FILE, METADATA_FILE
from rl_training.experiment.outcomes import numbers_in, read_part
from rl_training.experiment.overview import step_of
from rl_training.experiment.trust import Trust
from rl_training.runtime.cadence import PhaseTimer
from rl_training.runtime.comparison import compared
from rl_training.runtime.page import (
    MOST_ROWS,
    charts,
    curves,
    facts,
    figure,
    page,
    section,
    shell,
    table,
    wide_table,
    write_page,
)
from rl_training.runtime.svg import Bar, Line, Mark, bar_chart, histogram, number

#: The subjects of training metrics, by a part of their names; the first that fits is used.
PANELS = {
    "Losses": ("loss",),
    "Values": ("q_value", "target", "td_error", "value", "advantage", "explained"),
    "Exploration and policy": ("epsilon", "entropy", "alpha", "kl", "clip", "noise", "std"),
    "Replay": ("priorit", "beta", "replay"),
    "Optimiser": ("learning_rate", "grad", "updates"),
    "Episodes": ("",),
}
#: The one setting that can change without changing what came before it.
TOTAL = "total_timesteps"
#: Metrics that other figures show.
SHOWN_ELSEWHERE = ("return_mean", "time/")


def write_report(paths: Sequence[Path], output: Path, video: Path | None = None) -> list[Path]:
    """Writes the page for the runs among these paths and below them; returns those that are on it. ``video`` is a GIF of an
    episode, for the page of one run."""
    if output.suffix.lower() not in (".html", ".htm"):
        raise ConfigError(f"cannot write the report {output}: its name must end in .html")
    found = find_runs(paths)
    if len(found) == 1:
        write_page(page_of(found[0], video), output)
        return found
    runs = with_curves(found, "report")
    write_page(page(*compared(runs)), output)
    return runs


def page_of(run: Path, video: Path | None = None) -> str:
    """The page of one run."""
    config, log = config_of(run), log_of(run)
    evaluation, about = read_part(run / EVALUATION_FILE), read_part(run / METADATA_FILE)
    points = {name: found for name in metric_names(log) if (found := points_of(log, name))[0]}
    if not points:
        raise CheckpointError(
            f"{run} has logged nothing yet, so there is nothing to report; train it with: rl-training resume {run}"
        )
    marks = _marks(run)
    returns = [
        Line(label, *points[name])
        for name, label in (("eval/return_mean", "evaluation"), ("train/return_mean", "training"))
        if name in points
    ]
    events = "".join(f"<li>{escape(mark.label)}</li>" for mark in marks)
    named = about.get("versions")
    versions: dict[str, Any] = named if isinstance(named, dict) else {}
    rows = [("Python", about.get("python")), ("platform", about.get("platform")), *sorted(versions.items())]
    body = (
        _headline(run, config, step_of(run, log), points, evaluation, about),
        section("Learning curve", curves("Return", returns, marks) if returns else ""),
        section("Faults and resumes", f"<ul>{events}</ul>" if events else ""),
        section("An episode", _embedded(video)),
        section("Evaluation after training", charts(_distribution(name, evaluation) for name in ("Returns", "Lengths"))),
        *_panels(points),
        section("Where the time went", _time(points)),
        section("Settings", _settings(run, config)),
        section("Versions", wide_table(("package", "version"), rows)),
    )
    return page(f"{config['algo']} on {config['env_id']}, seed {config.get('seed')}", "".join(body))


def _headline(
    run: Path,
    config: dict[str, Any],
    step: int,
    points: dict[str, Points],
    evaluation: dict[str, Any],
    about: dict[str, Any],
) -> str:
    total = config.get(TOTAL)
    shown = [("steps", f"{step:,}" + (f" <small>of {total:,}</small>" if isinstance(total, int) and total != step else ""))]
    returns = numbers_in(evaluation.get("returns"))
    if returns:
        spread = 1.96 * statistics.stdev(returns) / math.sqrt(len(returns)) if len(returns) > 1 else 0.0
        interval = f" <small>± {number(spread)} (95 %), {len(returns)} episodes</small>"
        shown.insert(0, ("final return", number(statistics.fmean(returns)) + interval))
    if "eval/return_mean" in points:
        shown.append(("best evaluation", number(max(points["eval/return_mean"][1]))))
    for key, name in (("cpu_seconds", "CPU time"), ("steps_per_second", "steps per second")):
        last = [found[1][-1] for kind in ("train", "eval") if (found := points.get(f"{kind}/time/{key}"))]
        if last:
            shown.append((name, _duration(last[0]) if key == "cpu_seconds" else number(last[0])))
    return f'<p class="soft"><code>{escape(str(run))}</code></p>{facts(shown)}{_commands(run, about)}'


def _commands(run: Path, about: dict[str, Any]) -> str:
    """How the run was started and how to repeat it. A config does not repeat a run whose settings were changed on the way."""
    changes = about.get("changes")
    changed = [
        entry
        for entry in (changes if isinstance(changes, list) else [])
        if isinstance(entry, dict) and isinstance(settings := entry.get("settings"), dict) and settings.keys() - {TOTAL}
    ]
    repeat = f"rl-training train --config {shlex.quote(str(run / 'config.yaml'))} --output-dir NEW"
    shown = [
        ("It was started with", about.get("command")),
        *((f"Settings were changed at step {entry.get('step')} with", entry.get("command")) for entry in changed),
        ("To repeat it exactly, with the same versions:", None if changed else repeat),
    ]
    return "".join(f"<p>{escape(text)}</p>{shell(command)}" for text, command in shown if isinstance(command, str))


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s" if minutes else f"{seconds:.1f} s"


def _marks(run: Path) -> list[Mark]:
    """Faults, which have files of their own, and resumes, after which new events for TensorBoard begin."""
    found = []
    for kind, pattern, expression in (
        ("fault", "fault-step-*.json", r"fault-step-(\d{1,15})\.json"),
        ("resumed", "tensorboard/events.out.tfevents.*", r"events\.out\.tfevents\..*\.step(\d{1,15})"),
    ):
        for path in run.glob(pattern):
            match = re.fullmatch(expression, path.name)
            if match and (kind == "fault" or int(match[1])):
                problem = f": {read_part(path).get('problem')}" if kind == "fault" else ""
                found.append(Mark(int(match[1]), f"{kind} at step {int(match[1]):,}{problem}"[:300]))
    return sorted(found, key=lambda mark: mark.step)


def _embedded(video: Path | None) -> str:
    """A GIF inside the page."""
    if video is None:
        return ""
    data = base64.b64encode(video.read_bytes()).decode()
    return f'<figure><img alt="The first episode of an evaluation" src="data:image/gif;base64,{data}"></figure>'


def _distribution(name: str, evaluation: dict[str, Any]) -> str:
    values = numbers_in(evaluation.get(name.lower()))
    if not values:
        return ""
    title = f"{name} of {len(values)} episodes"
    rows = [(k + 1, number(value)) for k, value in enumerate(values[:MOST_ROWS])]
    return figure(title, histogram(title, values, name.lower()), table(title, ("episode", name.lower()), rows))


def _panels(points: dict[str, Points]) -> list[str]:
    """Charts of the training metrics, grouped by subject."""
    groups: dict[str, list[str]] = {title: [] for title in PANELS}
    for name in points:
        key = name.removeprefix("train/")
        if name.startswith("train/") and not any(key.startswith(other) for other in SHOWN_ELSEWHERE):
            groups[next(title for title, parts in PANELS.items() if any(part in key for part in parts))].append(name)
    return [
        section(title, charts(curves(name.removeprefix("train/"), [Line(name, *points[name])], level=3) for name in names))
        for title, names in groups.items()
    ]


def _time(points: dict[str, Points]) -> str:
    """The time of each phase of training, and the speed."""
    last = {phase: found[1][-1] for phase in PhaseTimer.PHASES if (found := points.get(f"train/time/{phase}_seconds"))}
    whole = {name: points.get(f"train/time/{key}") for key, name in (("seconds", "in all"), ("cpu_seconds", "CPU time"))}
    rows = [(name, _duration(found[1][-1])) for name, found in whole.items() if found]
    bars = [Bar(phase, seconds) for phase, seconds in last.items() if seconds > 0]
    title, shown = "Seconds by phase", []
    if bars:
        behind = table("", ("phase", "time"), [*((bar.label, _duration(bar.value)) for bar in bars), *rows])
        shown.append(figure(title, bar_chart(title, bars, " s"), behind))
    speed = points.get("train/time/steps_per_second")
    if speed:
        shown.append(curves("Steps per second", [Line("steps per second", *speed)], level=3))
    return charts(shown)


def _settings(run: Path, config: dict[str, Any]) -> str:
    values, defaults = flat(config), _defaults(run, config)
    rows, changed = [], []
    for key, value in values.items():
        known = defaults is not None and key in defaults and key not in ("algo", "env_id", "seed", "output_dir")
        differs = known and defaults is not None and defaults[key] != value
        rows.append((key, value, defaults[key] if differs and defaults is not None else ""))
        changed.append(differs)
    note = "Settings that differ from the defaults are bold." if defaults is not None else "The defaults are not known here."
    return f'<p class="soft">{note}</p>{wide_table(("setting", "value", "default"), rows, changed)}'


def _defaults(run: Path, config: dict[str, Any]) -> dict[str, Any] | None:
    """The default settings of the run's algorithm, unless that needs a module that is not trusted."""
    with contextlib.suppress(ConfigError):
        Trust(run).require_algo(config)
        defaults = resolve_config({"algo": config["algo"], "env_id": config["env_id"]})
        return flat(defaults.model_dump(mode="json"))
    return None
