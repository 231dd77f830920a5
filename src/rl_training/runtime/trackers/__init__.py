"""Trackers (``log.trackers``), to which a run sends its config, metrics and results: TensorBoard, W&B and MLflow.

Each is a hook that training does not depend on: a tracker that fails is reported once, and training goes on without it. A
run that was killed and is resumed stays one run of a tracker: records that the tracker already has are left out, and those
that it lost in the kill are sent again from the log.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import json
import uuid
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

from rl_training.errors import FOREIGN, CheckpointError, ConfigError, MissingExtraError, described
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.files import parse_json, read_small, replace_text
from rl_training.experiment.layout import TRACKERS_FILE
from rl_training.experiment.metrics import read_log
from rl_training.experiment.run import Run
from rl_training.runtime.evaluation import EvaluationResult
from rl_training.runtime.hooks import Training
from rl_training.runtime.result import TrainResult

#: The kinds of records that a tracker gets.
KINDS = ("train", "eval", "final")


class Tracker(Protocol):
    """A run of a tracker that is open. ``kind`` is one of ``KINDS``, and a record of a kind is known by its step."""

    def log(self, kind: str, step: int, values: Mapping[str, float]) -> None: ...

    def finish(self, status: str, best: str | None, report: str | None) -> None:
        """Closes it: ``finished``, ``stopped`` or ``failed``, with the path of the best checkpoint and the report as HTML."""


class Tracking:
    """The hook of one tracker."""

    def __init__(self, name: str, open_run: Callable[[Training], Tracker]) -> None:
        self._name, self._open = name, open_run
        self._tracker: Tracker | None = None

    def on_start(self, training: Training) -> None:
        self._training = training
        with self._trying():
            self._tracker = self._open(training)

    def on_update(self, metrics: Mapping[str, float]) -> None:
        self._log("train", metrics)

    def on_evaluation(self, result: EvaluationResult) -> None:
        self._log("eval", result.summary())

    def on_stop(self, result: TrainResult) -> None:
        if result.evaluation is not None:
            self._log("final", result.evaluation.summary())
        over = result.interrupted_by is None and result.stopped_by is None
        self._finish("finished" if over else "stopped")

    def on_fault(self, error: BaseException) -> None:
        self._finish("failed")

    def _log(self, kind: str, values: Mapping[str, float]) -> None:
        if self._tracker is not None:
            with self._trying():
                self._tracker.log(kind, self._training.env_steps, values)

    def _finish(self, status: str) -> None:
        tracker, self._tracker = self._tracker, None
        if tracker is not None:
            assert self._training.run_dir is not None
            best = self._training.run_dir / "checkpoints" / "best"
            with self._trying():
                tracker.finish(status, str(best.resolve()) if best.exists() else None, _report(self._training.run_dir))

    @contextlib.contextmanager
    def _trying(self) -> Iterator[None]:
        """A block whose failure is the tracker's, not the run's."""
        try:
            yield
        except FOREIGN as error:
            self._tracker = None
            warnings.warn(f"the tracker {self._name} failed ({described(error)}); training goes on without it", stacklevel=4)


def _report(run_dir: Path) -> str | None:
    """The page of a run, if it has logged anything."""
    from rl_training.runtime.report import page_of  # only runs with a tracker need it

    with contextlib.suppress(CheckpointError):
        return page_of(run_dir)
    return None


def require_trackers(config: TrainConfig) -> None:
    """Refuses trackers whose packages are not installed."""
    for name in config.log.trackers:
        if importlib.util.find_spec(name) is None:
            raise MissingExtraError(name, name, f"log.trackers: {name}")


def make_trackers(config: TrainConfig, run: Run | None) -> list[Tracking]:
    """The hooks of the trackers that a config names."""
    chosen = [name for name in config.log.trackers if name != "tensorboard" or config.log.tensorboard]
    if run is None:
        far = [name for name in chosen if name != "tensorboard"]
        if far:
            raise ConfigError(f"log.trackers: {far[0]} needs a run directory, where its run is noted; set output_dir")
        return []
    return [Tracking(name, _opener(name)) for name in chosen]


def _opener(name: str) -> Callable[[Training], Tracker]:
    def open_run(training: Training) -> Tracker:
        module = importlib.import_module(f"{__name__}.{name}_tracker")
        tracker: Tracker = module.TrackedRun(training)
        return tracker

    return open_run


def identity(run_dir: Path) -> str:
    """The name of a run in its trackers: the same for as long as the run exists."""
    file = run_dir / TRACKERS_FILE
    if not file.exists():
        replace_text(file, json.dumps({"id": uuid.uuid4().hex}) + "\n")
    name = parse_json(read_small(file), file).get("id")
    if not isinstance(name, str) or not name.isalnum():
        raise ValueError(f"{file} is damaged; remove it to begin a new run in the trackers")
    return name


def logged_before(run_dir: Path) -> Iterator[tuple[str, int, dict[str, Any]]]:
    """The records of the log as it is when a session begins: kind, step and values. Changes of settings are not sent."""
    for record in read_log(run_dir):
        if record["kind"] in KINDS:
            yield record.pop("kind"), record.pop("step"), record


def flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, bool | int | float | str]:
    """Nested settings as one level, ``algo_kwargs.learning_rate``; whatever is not a number, as text."""
    found: dict[str, bool | int | float | str] = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            found |= flat(value, f"{prefix}{key}.")
        else:
            found[f"{prefix}{key}"] = value if isinstance(value, bool | int | float | str) else json.dumps(value)
    return found


def numbers(kind: str, values: Mapping[str, Any]) -> dict[str, float]:
    """The values that are numbers, under the names that they have in a tracker."""
    return {f"{kind}/{key}": float(value) for key, value in values.items() if isinstance(value, int | float)}
