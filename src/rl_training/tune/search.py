"""Runs the trials of a tune as jobs of the bench: one run after the other for the seeds of a trial, several trials at a time.

A trial is pruned when an evaluation is worse than those of other trials at the same point: the same seed and the same step.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import yaml

from rl_training.bench.jobs import Job
from rl_training.bench.references import Reference
from rl_training.bench.runner import Runner
from rl_training.bench.runners import MakeRunner
from rl_training.errors import ConfigError, DivergenceError
from rl_training.experiment.config import resolve_config
from rl_training.experiment.layout import CHECKPOINTS
from rl_training.experiment.metrics import METRICS_FILE, read_metrics
from rl_training.tune.space import Space, overrides, with_values
from rl_training.tune.study import Study

if TYPE_CHECKING:
    import optuna

#: Seeds of the search, and of the runs that confirm its result; they never meet.
SEARCH_SEEDS, FRESH_SEEDS = 100, 200
#: Further runs of each finalist: the best of many trials on one seed or two is often only the luckiest.
FINAL_RUNS = 3
#: With more seeds for the search, those of the final would be among the fresh ones.
MOST_SEEDS = FRESH_SEEDS - SEARCH_SEEDS - FINAL_RUNS
#: Evaluations in this last part of training count for the score, besides the one after it.
LAST_PART = 0.25
#: Trials that may fail before one is completed; then the fault is not in the settings.
MOST_FAILURES = 3
BASE_FILE, TRIALS, FINALS, CONFIRMED = "base.yaml", "trials", "finals", "confirmed"


@dataclass(frozen=True)
class Plan:
    """The plan of a search: its config and ranges, its options, and its directory."""

    base: Mapping[str, Any]  # the data of a config
    space: Space
    folder: Path
    trials: int
    seeds: int
    jobs: int
    pruner: str
    finalists: int  # the best trials, which are compared once more
    confirm: int  # number of fresh seeds
    ray: str | None = None  # the address of a Ray cluster; "local" starts an instance

    @property
    def evaluations(self) -> int:
        """A number of evaluations that no run exceeds."""
        config = resolve_config(self.base)
        return config.total_timesteps // config.eval.interval + 1 if config.eval.interval else 0

    def made_from(self) -> dict[str, Any]:
        """Everything that decides which settings are tried, and what they reach."""
        ranges = {key: range_.text() for key, range_ in self.space.items()}
        return {"config": dict(self.base), "ranges": ranges, "seeds": self.seeds, "pruner": self.pruner}

    def job(self, number: int, values: Mapping[str, Any], seed: int, folder: str = TRIALS) -> Job:
        """A run of a trial's settings."""
        entry = Reference(seeds=1, config=str(self.folder / BASE_FILE), set=overrides(values), source="tune")
        return Job(f"trial-{number:04d}", seed, self.folder / folder, reference=entry)

    def write_base(self) -> None:
        (self.folder / BASE_FILE).write_text(yaml.safe_dump(dict(self.base), sort_keys=False), "utf-8")


@dataclass
class Attempt:
    """A trial that is going on."""

    trial: optuna.Trial
    jobs: list[Job]  # one for each seed
    at: int = 0  # which of them is running
    pruned_at: int | None = None  # the number of the evaluation

    @property
    def job(self) -> Job:
        return self.jobs[self.at]


class Search:
    """The trials that are left of a plan."""

    def __init__(self, plan: Plan, study: Study, stream: TextIO, make_runner: MakeRunner = Runner) -> None:
        self._plan, self._study = plan, study
        self._attempts: dict[Job, Attempt] = {}  # by the running job
        self._failures = 0
        self._runner = make_runner([], plan.jobs, stream, expected=self._left() * plan.seeds)

    def run(self) -> None:
        """Runs trials until there are as many as planned."""
        config = resolve_config(self._plan.base).describe()
        group = config.pop("algo_kwargs")
        self._study.begin_with({key: {**config, **_dotted(group)}[key] for key in self._plan.space})
        for trial in self._study.left_running():
            self._start(trial)
        while len(self._attempts) < self._plan.jobs and self._start_next():
            pass
        self._runner.run(self._finished, self._failed, self._watch)

    def _left(self) -> int:
        return self._plan.trials - len(self._study.trials("COMPLETE", "PRUNED", "FAIL"))

    def _start_next(self) -> bool:
        """Starts another trial, unless there are enough."""
        while self._left() > len(self._attempts):
            if self._start(self._study.ask()):
                return True
        return False

    def _start(self, trial: optuna.Trial) -> bool:
        """Starts a trial, or continues it. Settings that no config can have together end it at once."""
        values = self._study.values_of(trial)
        try:
            resolve_config(with_values(self._plan.base, values))
        except ConfigError as error:
            self._study.tell(trial, "PRUNED", problem=str(error))
            return False
        seeds = range(SEARCH_SEEDS, SEARCH_SEEDS + self._plan.seeds)
        attempt = Attempt(trial, [self._plan.job(trial.number, values, seed) for seed in seeds])
        self._run(attempt)
        return True

    def _run(self, attempt: Attempt) -> None:
        self._attempts[attempt.job] = attempt
        self._runner.add(attempt.job)

    def _watch(self) -> None:
        for job, attempt in self._attempts.items():
            if attempt.pruned_at is None and self._is_hopeless(attempt):
                self._runner.end(job)

    def _is_hopeless(self, attempt: Attempt) -> bool:
        """Tells the study about evaluations that it does not know yet, one by one, until it wants to prune."""
        if not (attempt.job.path / METRICS_FILE).exists():
            return False
        known = self._study.trials()[attempt.trial.number].intermediate_values
        begun = attempt.at * self._plan.evaluations
        for number, record in enumerate(read_metrics(attempt.job.path, "eval"), begun):
            if number not in known and self._study.reports(attempt.trial, number, record["return_mean"]):
                attempt.pruned_at = number - begun + 1
                return True
        return False

    def _finished(self, job: Job) -> str:
        attempt = self._attempts.pop(job)
        if attempt.pruned_at is None:
            self._is_hopeless(attempt)  # if its last evaluations came since the last look
        if attempt.pruned_at is not None:
            self._end(attempt, "PRUNED")
            return f"pruned after evaluation {attempt.pruned_at}"
        shown = f"{score_of(job):.1f}"
        if attempt.at + 1 < len(attempt.jobs):
            attempt.at += 1
            self._run(attempt)
            return shown
        score = sum(map(score_of, attempt.jobs)) / len(attempt.jobs)
        self._end(attempt, "COMPLETE", score)
        return f"{shown}, so the trial's score is {score:.1f}"

    def _failed(self, job: Job, problem: str) -> None:
        """Gives up a trial that has failed. If it diverged, its settings are bad. Other failures may have any cause; if no
        trial succeeds, it is not the settings."""
        diverged = DivergenceError.__name__ in problem
        self._failures += not diverged
        if self._failures >= MOST_FAILURES and not self._study.trials("COMPLETE"):
            raise ConfigError(f"{MOST_FAILURES} trials have failed and none was completed; the last one with {problem}")
        self._end(self._attempts.pop(job), "PRUNED" if diverged else "FAIL", problem=problem)

    def _end(self, attempt: Attempt, state: str, score: float | None = None, problem: str | None = None) -> None:
        """Notes the outcome and starts the next trial. The logs stay; checkpoints are no longer needed."""
        self._study.tell(attempt.trial, state, score, problem)
        for job in attempt.jobs:
            shutil.rmtree(job.path / CHECKPOINTS, ignore_errors=True)
        self._start_next()


def final_scores(plan: Plan, study: Study, stream: TextIO, make_runner: MakeRunner = Runner) -> dict[int, float]:
    """The scores of the finalists, over the seeds of the search and as many further ones as a final has."""
    best = study.ranked()[: plan.finalists]
    if plan.finalists < 2 or len(best) < 2:
        return {}
    first = SEARCH_SEEDS + plan.seeds
    jobs = {
        trial.number: [
            plan.job(trial.number, study.values_of(trial), seed, FINALS) for seed in range(first, first + FINAL_RUNS)
        ]
        for trial in best
    }
    everything = [job for of_trial in jobs.values() for job in of_trial]
    failures = make_runner(everything, plan.jobs, stream).run(lambda job: f"{score_of(job):.1f}")
    if failures:
        raise ConfigError(f"the best trials could not be compared: {failures[0]}; the same command tries it again")
    runs = plan.seeds + FINAL_RUNS
    return {
        trial.number: ((trial.value or 0.0) * plan.seeds + sum(map(score_of, jobs[trial.number]))) / runs for trial in best
    }


def score_of(job: Job) -> float:
    """The mean return of the evaluations in the last part of a run, with the one after training."""
    outcome = job.outcome()
    late = [value for step, value in outcome["curve"] if step > (1 - LAST_PART) * outcome["steps"]]
    returns = [*late, outcome["return"]]
    return float(sum(returns) / len(returns))


def _dotted(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {f"algo_kwargs.{key}": value for key, value in settings.items()}
