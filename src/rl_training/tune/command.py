"""``rl-training tune``: searches, then confirms what it has found, and writes it down.

<output-dir>/base.yaml      the config that the search began with
<output-dir>/study.db       the trials, as Optuna keeps them
<output-dir>/trials/        the runs of the search
<output-dir>/finals/        the runs that decide between the best trials
<output-dir>/confirmed/     the runs of the best settings on fresh seeds
<output-dir>/best.yaml      a config for ``train``
<output-dir>/results.json   the figures
<output-dir>/tune.html      the same to look at
"""

from __future__ import annotations

import contextlib
import json
import math
import re
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from rl_training.bench.jobs import Job
from rl_training.bench.machine import machine, today, versions
from rl_training.bench.runners import MakeRunner, require_usable_ray, runners
from rl_training.errors import ConfigError
from rl_training.experiment.config import RANGES, apply_overrides, load_config_file, resolve_config
from rl_training.experiment.files import replace_text
from rl_training.experiment.lock import Lock
from rl_training.tune.report import write_tune_report
from rl_training.tune.search import CONFIRMED, FRESH_SEEDS, MOST_SEEDS, SEARCH_SEEDS, Plan, Search, final_scores
from rl_training.tune.space import make_space, with_values
from rl_training.tune.study import STUDY_FILE, Study, require_optuna

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial

LOCK_FILE, BEST_FILE, RESULTS_FILE, PAGE = ".lock", "best.yaml", "results.json", "tune.html"
#: Settings of one run, which a search chooses itself.
OF_A_RUN = ("seed", "output_dir")


def make_plan(
    config: str,
    *,
    set_values: Sequence[str],
    trials: int,
    seeds: int,
    jobs: int,
    pruner: str,
    finalists: int,
    confirm: int,
    output_dir: Path | None,
    ray: str | None = None,
) -> Plan:
    """Fills in the defaults and rejects what cannot work, before anything is trained."""
    require_optuna()
    if ray is not None:
        require_usable_ray(ray)
    data = load_config_file(config)
    ranges = data.pop(RANGES, None)
    base = {key: value for key, value in apply_overrides(data, set_values).items() if key not in OF_A_RUN}
    resolved = resolve_config(base)
    if seeds > MOST_SEEDS:
        raise ConfigError(
            f"--seeds can be up to {MOST_SEEDS}, because the final and the confirmation need the seeds after that"
        )
    if pruner != "none" and not resolved.eval.interval:
        raise ConfigError(
            "pruning needs evaluations during training, but eval.interval is 0; set it, or choose --pruner none"
        )
    folder = output_dir or Path("runs") / f"tune-{resolved.algo.rpartition(':')[2]}-{_file_name(resolved.env_id)}"
    return Plan(base, make_space(base, ranges), folder, trials, seeds, jobs, pruner, finalists, confirm, ray)


def _file_name(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9.-]+", "-", text)


def run_tune(plan: Plan) -> int:
    """Runs the plan, or what is left of it."""
    folder = plan.folder
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not (folder / STUDY_FILE).exists() and any(path.name != LOCK_FILE for path in folder.iterdir()):
            raise ConfigError(f"{folder} is not empty and holds no tune; choose another --output-dir")
        lock = Lock(folder / LOCK_FILE)
    except OSError as error:
        raise ConfigError(f"cannot write in {folder}: {error.strerror}; choose another --output-dir") from error
    with contextlib.closing(lock):
        if not lock.take():
            raise ConfigError(f"another tune is at work in {folder}; wait until it ends, or choose another --output-dir")
        study = Study(folder, plan.space, plan.made_from(), plan.pruner, plan.evaluations, plan.seeds)
        plan.write_base()
        with runners(plan.ray) as make_runner:
            Search(plan, study, sys.stderr, make_runner).run()
            finals = final_scores(plan, study, sys.stderr, make_runner)
            ranked = study.ranked()
            best = max(ranked, key=lambda trial: finals.get(trial.number, -math.inf)) if finals else ranked[0]
            jobs = _confirm(plan, study.values_of(best), best.number, make_runner)
        results = {**_results(plan, study, best, jobs), "finals": {str(number): score for number, score in finals.items()}}
        replace_text(folder / RESULTS_FILE, json.dumps(results, indent=1) + "\n")
        write_tune_report(plan, study, results, [job.path for job in jobs], folder / PAGE)
    sys.stdout.write(_summary(plan, results) + "\n")
    return 0


def _confirm(plan: Plan, values: Mapping[str, Any], number: int, make_runner: MakeRunner) -> list[Job]:
    """Trains with the best settings on seeds that the search never saw. Their figures are the ones to believe."""
    replace_text(plan.folder / BEST_FILE, _best_yaml(plan, values, number))
    seeds = range(FRESH_SEEDS, FRESH_SEEDS + plan.confirm)
    jobs = [plan.job(number, values, seed, CONFIRMED) for seed in seeds]
    failures = make_runner(jobs, plan.jobs, sys.stderr).run(lambda job: f"{job.outcome()['return']:.1f}")
    if failures:
        raise ConfigError(f"the best settings could not be confirmed: {failures[0]}; the same command tries it again")
    return jobs


def _results(plan: Plan, study: Study, best: FrozenTrial, jobs: Sequence[Job]) -> dict[str, Any]:
    """Everything that was measured, and what with."""
    states = [trial.state.name for trial in study.trials()]
    return {
        "trial": best.number,
        "score": best.value,
        "settings": study.values_of(best),
        "trials": {state.lower(): states.count(state) for state in ("COMPLETE", "PRUNED", "FAIL")},
        "search_seeds": [*range(SEARCH_SEEDS, SEARCH_SEEDS + plan.seeds)],
        "confirmed": {str(job.seed): _figures(job) for job in jobs},
        "date": today(),
        "versions": versions(("optuna",)),
        "machine": machine(),
    }


def _figures(job: Job) -> dict[str, Any]:
    outcome = job.outcome()
    return {key: outcome[key] for key in ("return", "steps", "seconds")}


def _best_yaml(plan: Plan, values: Mapping[str, Any], number: int) -> str:
    data = with_values(plan.base, values)
    found = ", ".join(values)
    return f"# found by rl-training tune, trial {number}, which searched: {found}\n" + yaml.safe_dump(data, sort_keys=False)


def _summary(plan: Plan, results: Mapping[str, Any]) -> str:
    count, best = results["trials"], plan.folder / BEST_FILE
    lines = [
        f"trials: {count['complete']} completed, {count['pruned']} pruned, {count['fail']} failed",
        f"best: trial {results['trial']} with a score of {results['score']:.1f} in the search",
        *(f"  final: trial {number} scores {score:.1f}" for number, score in results["finals"].items()),
        *(f"  {key}: {json.dumps(value)}" for key, value in results["settings"].items()),
    ]
    returns = [figures["return"] for figures in results["confirmed"].values()]
    if returns:
        shown = ", ".join(f"{value:.1f}" for value in returns)
        lines.append(f"confirmed on fresh seeds {FRESH_SEEDS} to {FRESH_SEEDS + len(returns) - 1}: {shown}")
        lines.append(f"return: {statistics.fmean(returns):.1f} on average, which is the figure to expect")
    return "\n".join([*lines, f"written to {plan.folder / PAGE}", f"next:\n  rl-training train --config {best}"])
