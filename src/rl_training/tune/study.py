"""The trials of a tune, which Optuna keeps in an SQLite file: what was tried, what it reached, and what to try next.

Only the process that holds the lock of the directory writes the file, so a trial that is found running was left by a tune
that was killed. With one job at a time, a tune that is killed and continued tries the same settings as one that is not.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rl_training.errors import ConfigError, MissingExtraError, described
from rl_training.tune.space import Space

if TYPE_CHECKING:
    import optuna

STUDY_FILE = "study.db"
NAME = "tune"
#: The number of first trials with random settings, and of first trials that are not pruned.
RANDOM_TRIALS, UNPRUNED_TRIALS = 10, 5
#: No trial is pruned in the first evaluations of a run, one in this many: early returns mean little.
UNPRUNED_PART = 4


def require_optuna() -> None:
    """Raises if Optuna is missing; called before anything else."""
    if importlib.util.find_spec("optuna") is None:
        raise MissingExtraError("optuna", "tune", "tune")


class Study:
    """The trials in a directory. ``made_from`` is what must be the same when a tune is continued."""

    def __init__(
        self, folder: Path, space: Space, made_from: Mapping[str, Any], pruner: str, evaluations: int, runs: int
    ) -> None:
        """A trial that is not pruned has ``runs`` runs with ``evaluations`` evaluations each."""
        import optuna

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self.space = space
        self.file = folder / STUDY_FILE
        try:
            with quiet():
                storage = optuna.storages.RDBStorage(_address(self.file))
                self.optuna = optuna.create_study(
                    storage=storage,
                    study_name=NAME,
                    direction="maximize",
                    load_if_exists=True,
                    pruner=_make_pruner(pruner, evaluations, runs),
                )
        except Exception as error:  # SQLite, SQLAlchemy, Alembic and Optuna have their own
            raise ConfigError(
                f"{self.file} is not a study that can be read ({described(error)}); choose another --output-dir"
            ) from error
        self._require_same(json.loads(json.dumps(made_from)))

    def _require_same(self, made_from: Mapping[str, Any]) -> None:
        before = self.optuna.user_attrs.get("made_from")
        if before is None:
            self.optuna.set_user_attr("made_from", made_from)
        elif before != made_from:
            keys = sorted(key for key in {*before, *made_from} if before.get(key) != made_from.get(key))
            raise ConfigError(
                f"{self.file.parent} holds a tune that differs in: {', '.join(keys)}; choose another --output-dir, or go "
                "back to what it was begun with"
            )

    def trials(self, *states: str) -> list[optuna.trial.FrozenTrial]:
        """The trials in these states, such as COMPLETE; all of them if none is named."""
        found = self.optuna.get_trials(deepcopy=False)
        return [trial for trial in found if not states or trial.state.name in states]

    def left_running(self) -> Iterator[optuna.Trial]:
        """Trials that a killed tune was at. One that had not got all its settings is given up."""
        import optuna

        for trial in self.trials("RUNNING"):
            if trial.params.keys() == self.space.keys():
                yield optuna.Trial(self.optuna, trial._trial_id)
            else:
                self.optuna.tell(trial.number, state=optuna.trial.TrialState.FAIL)

    def begin_with(self, values: Mapping[str, Any]) -> None:
        """Makes settings the first that are tried, if they are in the ranges and nothing was tried before."""
        known = {key: self.space[key].to_optuna(value) for key, value in values.items()}
        if not self.trials("WAITING", "RUNNING", "COMPLETE", "PRUNED") and None not in known.values():
            self.optuna.enqueue_trial(known)

    def ask(self) -> optuna.Trial:
        """The next trial. Which it is depends only on the trials before it."""
        import optuna

        self.optuna.sampler = optuna.samplers.TPESampler(
            seed=len(self.trials("RUNNING", "COMPLETE", "PRUNED", "FAIL")), n_startup_trials=RANDOM_TRIALS, constant_liar=True
        )
        with quiet():
            return self.optuna.ask({key: range_.distribution() for key, range_ in self.space.items()})

    def values_of(self, trial: optuna.Trial | optuna.trial.FrozenTrial) -> dict[str, Any]:
        """The settings that a trial tries."""
        return {key: self.space[key].from_optuna(trial.params[key]) for key in self.space}

    def reports(self, trial: optuna.Trial, number: int, value: float) -> bool:
        """Notes an evaluation of a trial, unless it was noted before. Returns whether the trial should be pruned now."""
        with quiet():
            trial.report(value, number)
            return bool(trial.should_prune())

    def tell(self, trial: optuna.Trial, state: str, score: float | None = None, problem: str | None = None) -> None:
        """Ends a trial: COMPLETE with a score, PRUNED if its settings are not worth more, FAIL if that is not known."""
        import optuna

        if problem is not None:
            trial.set_user_attr("problem", problem)
        self.optuna.tell(trial, score, state=optuna.trial.TrialState[state])

    def ranked(self) -> list[optuna.trial.FrozenTrial]:
        """The completed trials, the highest score first; of several, the first."""
        done = [trial for trial in self.trials("COMPLETE") if trial.value is not None]
        if not done:
            problems = [trial.user_attrs["problem"] for trial in self.trials() if "problem" in trial.user_attrs]
            reason = f"; the first problem was: {problems[0]}" if problems else ""
            raise ConfigError(f"no trial was completed, so there is nothing to recommend{reason}")
        return sorted(done, key=lambda trial: (-(trial.value or 0.0), trial.number))

    def importances(self) -> dict[str, float]:
        """How much each setting matters for a high score (PED-ANOVA, Watanabe et al. 2023); empty with too few trials."""
        import optuna

        done = self.trials("COMPLETE")
        if len(done) < 4 or len({trial.value for trial in done}) < 2:
            return {}
        with quiet():
            evaluator = optuna.importance.PedAnovaImportanceEvaluator()
            return dict(optuna.importance.get_param_importances(self.optuna, evaluator=evaluator))


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Without Optuna's warnings, for instance that an evaluation was noted before."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _address(file: Path) -> str:
    from sqlalchemy.engine import URL

    return str(URL.create("sqlite", database=str(file.resolve())).render_as_string())


def _make_pruner(name: str, evaluations: int, runs: int) -> optuna.pruners.BasePruner:
    import optuna

    if name == "median":
        return optuna.pruners.MedianPruner(n_startup_trials=UNPRUNED_TRIALS, n_warmup_steps=evaluations // UNPRUNED_PART)
    if name == "hyperband":
        return optuna.pruners.HyperbandPruner(min_resource=1, max_resource=max(evaluations * runs, 1))
    return optuna.pruners.NopPruner()
