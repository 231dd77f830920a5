"""Statistics over seeds and tasks, by rliable (Agarwal et al. 2021, "Deep RL at the Edge of the Statistical Precipice").

The interquartile mean drops the best and the worst quarter of the runs; intervals are percentiles of stratified
bootstrap resamples, which redraw the runs within each task.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rl_training.errors import MissingExtraError
from rl_training.experiment.files import replace_text

RESAMPLES = 2_000
CONFIDENCE = 0.95
#: Runs below which an interval would mean nothing.
FEWEST_FOR_AN_INTERVAL = 3
Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Estimate:
    """A point estimate and its confidence interval."""

    value: float
    low: float
    high: float

    def text(self, form: str) -> str:
        return f"{self.value:{form}} [{self.low:{form}}, {self.high:{form}}]"


def has_rliable() -> bool:
    """Whether the extra is installed."""
    return importlib.util.find_spec("rliable") is not None


def require_rliable() -> None:
    """Raises if rliable is missing; called before anything is trained."""
    if not has_rliable():
        raise MissingExtraError("rliable", "bench")


def interquartile_mean(scores: Array) -> Estimate:
    """The interquartile mean of scores (runs, tasks)."""
    values, intervals = _estimate(scores[:, :, None], _iqm_of_each)
    return Estimate(float(values[0]), float(intervals[0, 0]), float(intervals[1, 0]))


def point_interquartile_mean(scores: Sequence[float]) -> float:
    """The interquartile mean of some numbers, without an interval."""
    return float(_iqm_of_each(np.array(scores, np.float64)[:, None, None])[0])


def interquartile_mean_curve(returns: Array) -> tuple[Array, Array]:
    """The interquartile mean of curves (runs, points) at each point, and its bounds (2, points)."""
    return _estimate(returns[:, None, :], _iqm_of_each)


def probability_of_improvement(ours: Array, theirs: Array) -> Estimate:
    """The probability that one of our runs ends above one of theirs, averaged over the tasks. A tie counts half.

    Both matrices are (runs, tasks).
    """
    values, intervals = _estimate((ours, theirs), _share_of_wins)
    return Estimate(float(values[0]), float(intervals[0, 0]), float(intervals[1, 0]))


def performance_profile(scores: Array, at: Array) -> tuple[Array, Array]:
    """The share of scores (runs, tasks) that are at least as high as each of the values ``at``, and its bounds."""
    return _estimate((scores[:, :, None] >= at).astype(np.float64), _mean_of_each)


def matrix(by_task: Sequence[Sequence[float]]) -> Array:
    """Returns as (runs, tasks), with as many runs as every task has."""
    runs = min(len(returns) for returns in by_task)
    transposed: Array = np.array([list(returns)[:runs] for returns in by_task], np.float64).T
    return transposed


def normalised(returns: Mapping[str, Sequence[float]], scales: Mapping[str, tuple[float, float]]) -> Array:
    """Scores (runs, tasks), scaled so that a random policy scores 0 and the best known result 1."""
    columns: list[list[float]] = []
    for task, values in returns.items():
        zero, one = scales[task]
        columns.append([(value - zero) / (one - zero) for value in values])
    return matrix(columns)


def _iqm_of_each(scores: Array) -> Array:
    """The mean at each point of (runs, tasks, points): ``rliable.metrics.aggregate_iqm``, but for all points at once."""
    from scipy.stats import trim_mean

    means: Array = trim_mean(scores.reshape(-1, scores.shape[-1]), proportiontocut=0.25, axis=0)
    return means


def _mean_of_each(scores: Array) -> Array:
    """The mean at each point of (runs, tasks, points)."""
    means: Array = scores.mean(axis=(0, 1))
    return means


def _share_of_wins(ours: Array, theirs: Array) -> Array:
    """The share over all pairs of runs: ``rliable.metrics.probability_of_improvement`` without a rank test per resample."""
    difference = ours[:, None] - theirs[None, :]
    return np.array([np.mean((difference > 0) + 0.5 * (difference == 0))])


def _estimate(scores: Any, statistic: Any) -> tuple[Array, Array]:
    both = scores if isinstance(scores, tuple) else (scores,)
    key = _digest(statistic.__name__, *both)
    if key in _KEPT.found:
        points, intervals = _KEPT.found[key]
    else:
        points, intervals = _bootstrapped(scores, statistic)
    _KEPT.used[key] = points, intervals
    return np.atleast_1d(np.asarray(points)), np.asarray(intervals)


def _bootstrapped(scores: Any, statistic: Any) -> tuple[Any, Any]:
    from rliable.library import get_interval_estimates

    with _seeded_global_generator():
        points, intervals = get_interval_estimates(
            {"all": scores}, statistic, reps=RESAMPLES, confidence_interval_size=CONFIDENCE
        )
    return points["all"].tolist(), intervals["all"].tolist()


def _digest(name: str, *scores: Array) -> str:
    """A hash of everything that an estimate depends on."""
    shapes = [list(array.shape) for array in scores]
    digest = hashlib.sha256(json.dumps([name, RESAMPLES, CONFIDENCE, shapes]).encode())
    for array in scores:
        digest.update(np.ascontiguousarray(array, np.float64).tobytes())
    return digest.hexdigest()


class _Kept:
    """Estimates by the hash of their inputs: the stored ones, and those used since."""

    def __init__(self, found: dict[str, Any] | None = None) -> None:
        self.found: dict[str, Any] = found or {}
        self.used: dict[str, Any] = {}


_KEPT = _Kept()


@contextlib.contextmanager
def kept_in(file: Path) -> Iterator[None]:
    """Inside the block, an estimate whose inputs have not changed since the last time comes from this file. What is no longer
    used is dropped from it."""
    global _KEPT
    try:
        found = json.loads(file.read_text("utf-8"))
    except (OSError, ValueError):
        found = {}
    before, _KEPT = _KEPT, _Kept(found if isinstance(found, dict) else {})
    try:
        yield
        if _KEPT.used != _KEPT.found:
            file.parent.mkdir(parents=True, exist_ok=True)
            replace_text(file, json.dumps(_KEPT.used))
    finally:
        _KEPT = before


@contextlib.contextmanager
def _seeded_global_generator() -> Iterator[None]:
    """Seeds numpy's global generator, which rliable uses whatever ``random_state`` it is given, and restores it after."""
    state = np.random.get_state()  # noqa: NPY002
    np.random.seed(0)  # noqa: NPY002
    try:
        yield
    finally:
        np.random.set_state(state)  # noqa: NPY002
