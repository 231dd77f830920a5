"""The simulation of many collectors, where its answer is known."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from scale_simulation import CASES, Case, simulate

CASE = Case("case", step=1e-3, steps=50, insert=1e-5, update=2e-3, per_update=25, step_bytes=1e3, weights_bytes=1e5, link=1e7)
#: of the learner for one message: two updates, the steps, the message itself
COST = CASE.message + 50 * 1e-5 + 2 * 2e-3


def test_a_single_collector_takes_turns_with_the_learner() -> None:
    case = replace(CASE, per_node=1)
    assert simulate(case, 1).rate == pytest.approx(50 / (50e-3 + 50e3 / 1e7 + COST + 1e5 / 1e7), rel=1e-3)


def test_many_collectors_fill_the_learner() -> None:
    case = replace(CASE, link=1e12)
    found = simulate(case, 64)
    assert found.rate == pytest.approx(50 / COST, rel=1e-3)
    assert found.learner == pytest.approx(1.0, abs=1e-3)


def test_many_collectors_fill_the_link() -> None:
    case = replace(CASE, insert=0.0, update=0.0, message=0.0, weights_bytes=0.0)
    found = simulate(case, 64)
    assert found.rate == pytest.approx(1e7 / 1e3, rel=1e-3)
    assert found.link == pytest.approx(1.0, abs=1e-3)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_more_collectors_are_never_slower(case: Case) -> None:
    rates = [simulate(case, count, messages=1000).rate for count in (1, 4, 16, 64)]
    assert all(later >= 0.99 * earlier for earlier, later in pairwise(rates))
