"""The statistics of the learning proof, by worked numbers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rl_training.experiment import aggregate
from rl_training.experiment.aggregate import (
    interquartile_mean,
    interquartile_mean_curve,
    kept_in,
    matrix,
    normalised,
    performance_profile,
    probability_of_improvement,
)


@pytest.fixture(autouse=True)
def _few_resamples(monkeypatch: pytest.MonkeyPatch) -> None:
    """Enough for what these tests look at, and forty times cheaper."""
    monkeypatch.setattr(aggregate, "RESAMPLES", 50)


@pytest.mark.parametrize(
    ("returns", "mean"),
    [
        ([1, 2, 3, 4, 100], 3.0),  # one of five is dropped on either side
        ([7, 0, 1, 6, 2, 5, 3, 4], 3.5),  # two of eight
        ([10, 20], 15.0),
        ([5], 5.0),
    ],
)
def test_the_best_and_the_worst_quarter_do_not_count(returns: list[float], mean: float) -> None:
    estimate = interquartile_mean(matrix([returns]))
    assert estimate.value == pytest.approx(mean)
    assert min(returns) <= estimate.low <= estimate.value <= estimate.high <= max(returns)


def test_resamples_stay_within_a_task() -> None:
    """Each task always gives the same return, so there is no uncertainty; resampling across tasks would introduce some."""
    estimate = interquartile_mean(np.array([[0.0, 10.0]] * 4))
    assert (estimate.value, estimate.low, estimate.high) == (5.0, 5.0, 5.0)


def test_a_curve_is_the_mean_at_every_point() -> None:
    from rliable.metrics import aggregate_iqm

    returns = np.random.default_rng(3).normal(size=(7, 5))
    mean, bounds = interquartile_mean_curve(returns)
    np.testing.assert_allclose(mean, [aggregate_iqm(returns[:, point]) for point in range(5)])
    assert bounds.shape == (2, 5)
    assert (bounds[0] <= mean).all()
    assert (mean <= bounds[1]).all()


@pytest.mark.parametrize(
    ("ours", "theirs", "probability"),
    [
        ([[1], [3]], [[2], [2]], 0.5),
        ([[2], [3]], [[2], [1]], 0.875),  # three wins and a tie in four pairs
        ([[5, 1], [6, 1]], [[1, 5], [2, 6]], 0.5),  # always on one task, never on the other
    ],
)
def test_the_probability_of_improvement(ours: list[list[float]], theirs: list[list[float]], probability: float) -> None:
    from rliable.metrics import probability_of_improvement as by_rank_test

    estimate = probability_of_improvement(np.array(ours, float), np.array(theirs, float))
    assert by_rank_test(np.array(ours), np.array(theirs)) == pytest.approx(probability)
    assert estimate.value == pytest.approx(probability)
    assert 0 <= estimate.low <= estimate.value <= estimate.high <= 1


def test_scores_are_scaled_by_task_and_cut_to_the_seeds_that_all_have() -> None:
    scores = normalised({"a": [22, 500, 261], "b": [-200, -100]}, {"a": (22, 500), "b": (-200, -100)})
    np.testing.assert_allclose(scores, [[0, 0], [1, 1]])


def test_the_same_figures_give_the_same_interval_and_leave_the_global_generator_alone() -> None:
    returns = np.random.default_rng(1).normal(size=(6, 1))
    np.random.seed(5)  # noqa: NPY002
    before = np.random.get_state()[1].tolist()  # type: ignore[index]  # noqa: NPY002
    first = interquartile_mean(returns)
    np.random.random(3)  # noqa: NPY002
    assert interquartile_mean(returns) == first
    np.random.seed(5)  # noqa: NPY002
    interquartile_mean(returns)
    assert np.random.get_state()[1].tolist() == before  # type: ignore[index]  # noqa: NPY002


def test_a_profile_is_the_share_of_runs_that_are_at_least_as_good() -> None:
    shares, bounds = performance_profile(matrix([[10, 20, 30, 40]]), np.array([0.0, 20.0, 20.5, 41.0]))
    assert shares.tolist() == [1.0, 0.75, 0.5, 0.0]
    assert (bounds[0] <= shares).all()
    assert (shares <= bounds[1]).all()
    assert bounds[:, 0].tolist() == [1.0, 1.0]


def test_only_estimates_of_new_inputs_are_computed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    computed: list[Any] = []
    bootstrapped = aggregate._bootstrapped

    def counted(scores: Any, statistic: Any) -> tuple[Any, Any]:
        computed.append(statistic.__name__)
        return bootstrapped(scores, statistic)

    monkeypatch.setattr(aggregate, "_bootstrapped", counted)
    file = tmp_path / "runs" / "kept.json"
    ours, theirs = matrix([[1, 2, 3, 4]]), matrix([[2, 2, 2, 9]])
    fresh = interquartile_mean(ours), probability_of_improvement(ours, theirs)
    for _ in range(2):
        with kept_in(file):
            assert (interquartile_mean(ours), probability_of_improvement(ours, theirs)) == fresh
    assert computed == 2 * ["_iqm_of_each", "_share_of_wins"], "without the file, and once with it"
    with kept_in(file):
        interquartile_mean(theirs)
        probability_of_improvement(theirs, ours)
        interquartile_mean(ours.T)
    assert computed[4:] == ["_iqm_of_each", "_share_of_wins", "_iqm_of_each"], (
        "another order and another shape are other inputs"
    )
    assert len(json.loads(file.read_text())) == 3, "what is no longer used is dropped"
    file.write_text("damaged")
    with kept_in(file):
        assert interquartile_mean(ours) == fresh[0]
    monkeypatch.setattr(aggregate, "RESAMPLES", 51)
    with kept_in(file):
        interquartile_mean(ours)
    assert len(computed) == 9, "after the damage, and for another number of resamples"
