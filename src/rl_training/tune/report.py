"""The page of a tune: what was found and confirmed, how the search went, and which settings mattered."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rl_training.experiment.config import resolve_config
from rl_training.experiment.curves import RETURN, flat, read_curves
from rl_training.runtime.page import broad, curves, facts, figure, page, section, shell, table, wide_table, write_page
from rl_training.runtime.svg import Bar, Line, Route, Scale, bar_chart, number, parallel_chart
from rl_training.tune.search import Plan
from rl_training.tune.space import GROUP, Range
from rl_training.tune.study import Study

if TYPE_CHECKING:
    import optuna

#: Marks on an upright axis of numbers.
MARKS = 5
FOUND = 1  # the colour of the best trial


def write_tune_report(plan: Plan, study: Study, results: Mapping[str, Any], runs: Sequence[Path], output: Path) -> None:
    """Writes the page; ``runs`` are those that confirm the result."""
    config = resolve_config(plan.base)
    body = (
        _headline(plan, results),
        section("Settings", _settings(plan, results), "What the search found, and what it began with. Changes are bold."),
        section("Confirmed on fresh seeds", _confirmed(results, runs)),
        section("The search", _history(study), "The score of a trial is the mean return of its last evaluations."),
        section("The final", _final(results), "The best trials again, over the seeds of the search and three more."),
        section("Which settings mattered", _importances(study), "The share of each in reaching a high score (PED-ANOVA)."),
        section("Settings and scores", _parallel(plan, study, results["trial"])),
        section("Trials", _trials(plan, study)),
    )
    write_page(page(f"Tuning {config.algo} on {config.env_id}", "".join(body)), output)


def _headline(plan: Plan, results: Mapping[str, Any]) -> str:
    returns = [figures["return"] for figures in results["confirmed"].values()]
    count = results["trials"]
    shown = [("score in the search", f"{number(results['score'])} <small>trial {results['trial']}</small>")]
    if returns:
        few = f"<small>{len(returns)} fresh seeds, worst {number(min(returns))}</small>"
        shown.insert(0, ("confirmed return", f"{number(statistics.fmean(returns))} {few}"))
    ended = f"<small>{count['complete']} completed, {count['pruned']} pruned, {count['fail']} failed</small>"
    shown.append(("trials", f"{sum(count.values())} {ended}"))
    train = f"rl-training train --config {plan.folder / 'best.yaml'}"
    return f"{facts(shown)}<p>To train with what was found:</p>{shell(train)}"


def _settings(plan: Plan, results: Mapping[str, Any]) -> str:
    before = flat(resolve_config(plan.base).describe())
    found = results["settings"]
    rows = [(key, json.dumps(found[key]), json.dumps(before.get(key)), plan.space[key].text()) for key in found]
    return wide_table(("setting", "found", "before", "range"), rows, [before.get(key) != found[key] for key in found])


def _confirmed(results: Mapping[str, Any], runs: Sequence[Path]) -> str:
    if not runs:
        return ""
    _, points = read_curves(runs, RETURN)
    lines = [Line(run.name, *found) for run, found in zip(runs, points, strict=True)]
    rows = [(seed, number(one["return"]), f"{one['steps']:,}") for seed, one in results["confirmed"].items()]
    return curves("Return", lines) + wide_table(("seed", "return after training", "steps"), rows)


def _history(study: Study) -> str:
    done = [(trial.number, float(trial.value or 0.0)) for trial in study.trials("COMPLETE")]
    numbers, scores = zip(*done, strict=True)
    best = [max(scores[: k + 1]) for k in range(len(scores))]
    lines = [Line("trial", numbers, scores, joined=False), Line("best so far", numbers, best)]
    return curves("Score", lines, x_name="trial")


def _final(results: Mapping[str, Any]) -> str:
    rows = [(f"trial {number_}", number(score)) for number_, score in results["finals"].items()]
    return wide_table(("trial", "score"), rows) if rows else ""


def _importances(study: Study) -> str:
    found = study.importances()
    if not found:
        return ""
    title, bars = "Importance", [Bar(_short(key), share) for key, share in found.items()]
    rows = [(key, f"{share:.2f}") for key, share in found.items()]
    return figure(title, bar_chart(title, bars), table("", ("setting", "importance"), rows), level=0)


def _parallel(plan: Plan, study: Study, best: int) -> str:
    """All completed trials across the settings, ending at the score."""
    done = study.trials("COMPLETE")
    scores = [float(trial.value or 0.0) for trial in done]
    low, high = min(scores), max(scores)
    if len(done) < 2 or high <= low:
        return ""
    of_scores = Range("uniform", (low, high))
    scales = [*(_scale(_short(key), one) for key, one in plan.space.items()), _scale("score", of_scores)]
    routes = []
    for trial, score in zip(done, scores, strict=True):
        values = study.values_of(trial)
        heights = [*(_height(plan.space[key], value) for key, value in values.items()), _height(of_scores, score)]
        color = FOUND if trial.number == best else 0
        routes.append(Route(f"trial {trial.number}: {number(score)}", heights, (score - low) / (high - low), color))
    note = '<p class="soft">Each line is a completed trial, the stronger the better; the best has its own colour.</p>'
    return f"<figure>{broad(parallel_chart('Settings and scores', scales, routes))}{note}</figure>"


def _scale(name: str, values: Range) -> Scale:
    if values.kind == "choice":
        return Scale(name, [(_height(values, value), json.dumps(value)) for value in values.values])
    low, high = values.values
    shares = [k / (MARKS - 1) for k in range(MARKS)]
    if values.kind == "log":
        return Scale(name, [(share, number(low * (high / low) ** share)) for share in shares])
    return Scale(name, [(share, number(low + share * (high - low))) for share in shares])


def _height(values: Range, value: Any) -> float:
    """Where a value is on its axis, from 0 to 1."""
    if values.kind == "choice":
        return values.values.index(value) / (len(values.values) - 1)
    low, high = (math.log(bound) if values.kind == "log" else bound for bound in values.values)
    return ((math.log(value) if values.kind == "log" else value) - low) / (high - low)


def _trials(plan: Plan, study: Study) -> str:
    rows = [(trial.number, _outcome(trial), *_values(study, trial)) for trial in study.trials()]
    return wide_table(("trial", "score", *map(_short, plan.space)), rows)


def _values(study: Study, trial: optuna.trial.FrozenTrial) -> list[str]:
    complete = trial.params.keys() == study.space.keys()
    return [json.dumps(value) for value in study.values_of(trial).values()] if complete else []


def _outcome(trial: optuna.trial.FrozenTrial) -> str:
    state = trial.state.name.lower()
    if state == "complete" and trial.value is not None:
        return number(trial.value)
    problem = trial.user_attrs.get("problem")
    return f"{state}: {problem}" if problem else f"{state} after {len(trial.intermediate_values)} evaluations"


def _short(key: str) -> str:
    return key.removeprefix(GROUP)
