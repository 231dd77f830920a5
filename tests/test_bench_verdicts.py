"""Verdicts of ``rl-training bench``: which final returns satisfy the rule of an entry."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from rl_training.bench.command import make_plan
from rl_training.bench.references import Reference, load_entries
from rl_training.bench.report import learning_table, overview_table
from rl_training.errors import ConfigError
from rl_training.experiment import aggregate

REFERENCE = {"seeds": 2, "threshold": 5, "passing": 2, "source": "unpublished"}
RUN = {"steps": 9, "seconds": 1.0}
MEMORY = {"seeds": 3, "above": "control", "source": "unpublished"}


@pytest.fixture(autouse=True)
def _few_resamples(monkeypatch: pytest.MonkeyPatch) -> None:
    """Enough for what these tests look at, and forty times cheaper."""
    monkeypatch.setattr(aggregate, "RESAMPLES", 50)


@pytest.mark.parametrize(
    ("rule", "returns", "verdict"),
    [
        ({"seeds": 3, "threshold": 475, "passing": 2}, [500, 475, 100], "pass: 2 of 3"),
        ({"seeds": 3, "threshold": 475, "passing": 2}, [500, 474.9, 100], "FALLS SHORT: 1 of 3"),
        ({"seeds": 3, "threshold": 475, "passing": 2}, [500, 500], "incomplete: 2 of 3 seeds"),
        ({"seeds": 2, "threshold": 475, "passing": 1}, [500, 500, 0, 0], "pass: 2 of 4"),
        ({"seeds": 2, "threshold": 475, "passing": 1}, [500, 0, 0, 0], "FALLS SHORT: 1 of 4"),
        ({"seeds": 3, "threshold": -85, "median": True}, [-500, -85, -70], "pass"),
        ({"seeds": 3, "threshold": -85, "median": True}, [-500, -86, -70], "FALLS SHORT"),
        ({"seeds": 4, "threshold": 480, "iqm": True}, [0, 470, 490, 500], "pass"),
        ({"seeds": 4, "threshold": 480, "iqm": True}, [0, 460, 490, 500], "FALLS SHORT"),
        ({"seeds": 4, "threshold": 480, "iqm": True, "none_below": 400}, [400, 470, 490, 500], "pass"),
        ({"seeds": 4, "threshold": 480, "iqm": True, "none_below": 400}, [399, 470, 490, 500], "FALLS SHORT"),
        ({"seeds": 3, "below": 100}, [40, 50, 500], "as expected"),
        ({"seeds": 3, "below": 100}, [40, 100, 500], "UNEXPECTED"),
        ({"seeds": 3, "below": 100}, [], "incomplete: 0 of 3 seeds"),
        ({"seeds": 1}, [7], "for comparison"),
        (
            {"seeds": 3, "threshold": -130, "median": True, "published": -100.8},
            [-111.7, -90, -120],
            "pass, 10.9 below published",
        ),
        ({"seeds": 2, "threshold": 9, "passing": 2, "published": 9.9}, [9.89, 9.89], "pass: 2 of 2"),
        ({"seeds": 2, "threshold": 9, "passing": 2, "published": 9.9}, [9, 8], "FALLS SHORT: 1 of 2, 1.4 below published"),
        ({"seeds": 2, "threshold": 9, "passing": 2, "published": 9.9}, [9], "incomplete: 1 of 2 seeds"),
    ],
)
def test_verdicts(rule: dict[str, Any], returns: list[float], verdict: str) -> None:
    assert Reference.model_validate({**rule, "source": "x"}).verdict(returns) == verdict


def test_a_passing_seed_must_have_begun_below_the_given_return() -> None:
    entry = Reference.model_validate({"seeds": 2, "threshold": -300, "passing": 1, "begins_below": -1000, "source": "x"})
    assert entry.verdict([-200, -400], [-1200, -1100]) == "pass: 1 of 2"
    assert entry.verdict([-200, -400], [-1200, -900]) == "pass: 1 of 2"  # the seed that passes began low
    assert entry.verdict([-200, -400], [-1000, -1200]) == "FALLS SHORT: 0 of 2"  # it did not
    assert entry.verdict([-200, -200], [-900, -1200]) == "pass: 1 of 2"
    assert entry.verdict([-200, -200], [None, None]) == entry.verdict([-200, -200]) == "FALLS SHORT: 0 of 2"
    assert entry.bar == "-300 from below -1000 (1 of 2)"


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ({**REFERENCE, "median": True}, "either threshold with passing"),
        ({"seeds": 2, "threshold": 3, "source": "x"}, "either threshold with passing"),
        ({**REFERENCE, "below": 3}, "either threshold with passing"),
        ({**REFERENCE, "passing": 3}, "more than seeds"),
        ({**REFERENCE, "none_below": 3}, "none_below goes with iqm"),
        ({"seeds": 2, "below": 3, "begins_below": 1, "source": "x"}, "begins_below applies to passing seeds"),
        ({**REFERENCE, "above": "control"}, "either threshold with passing"),
        ({"seeds": 3, "below": 3, "above": "control", "source": "x"}, "either threshold with passing"),
        ({"seeds": 2, "above": "control", "source": "x"}, "at least 3 seeds"),
        ({**REFERENCE, "treshold": 3}, "treshold"),
        ({**REFERENCE, "seeds": 0}, "seeds"),
        (None, "tiny"),
    ],
)
def test_a_reference_that_makes_no_sense_is_refused(tmp_path: Path, entry: Any, words: str) -> None:
    (tmp_path / "bad.yaml").write_text(yaml.safe_dump({"tiny": entry}))
    with pytest.raises(ConfigError, match=words):
        load_entries(tmp_path / "bad.yaml", Reference)


@pytest.mark.parametrize(
    ("returns", "control", "verdict"),
    [
        ([7, 8, 9], [1, 2, 3], "pass"),
        ([7, 8, 9], [6, 7, 8], "FALLS SHORT"),  # better, but the intervals overlap
        ([7.5, 8.5, 9.5], [6, 7, 8], "FALLS SHORT"),  # even of its mean
        ([3, 3, 3], [3, 3, 3], "FALLS SHORT"),
        ([1, 2, 3], [7, 8, 9], "FALLS SHORT"),
        ([7, 8], [1, 2, 3], "incomplete: 2 of 3 seeds"),
        ([7, 8, 9], [1, 2], "incomplete: seeds of control are missing"),
        ([7, 8, 9], [], "incomplete: seeds of control are missing"),
    ],
)
def test_a_memory_must_lie_above_its_control(returns: list[float], control: list[float], verdict: str) -> None:
    assert verdict_beside_control(returns, control) == verdict


def verdict_beside_control(returns: list[float], control: list[float], seeds: int = 3, **settings: str) -> str:
    """The verdict in the table and in the overview; the control needs so many seeds and was run with these settings."""
    references = {
        "memory": Reference.model_validate({**MEMORY, "overview": True}),
        "control": Reference.model_validate({"seeds": seeds, "source": "control"}),
    }
    results: dict[str, dict[str, Any]] = {
        "memory": {str(seed): {**RUN, "return": value} for seed, value in enumerate(returns)},
        "control": {str(seed): {**RUN, **settings, "return": value} for seed, value in enumerate(control)},
    }
    long, short = (
        [cell.strip() for cell in table(references, results).splitlines()[2].split("|")[1:-1]]
        for table in (learning_table, overview_table)
    )
    assert long[6:8] == short[4:6]
    assert long[6] == "interval above control's"
    return long[7]


def test_a_control_must_be_complete_and_of_today() -> None:
    assert verdict_beside_control([7, 8, 9], [1, 2, 3], seeds=4) == "incomplete: seeds of control are missing"
    assert verdict_beside_control([7, 8, 9], [1, 2, 3], config="old") == "OUTDATED, the config has changed: pass"


def test_a_control_that_has_no_entry_is_refused(tmp_path: Path) -> None:
    (tmp_path / "references.yaml").write_text(yaml.safe_dump({"memory": MEMORY}))
    with pytest.raises(ConfigError, match=r"memory\.above: there is no other entry 'control'"):
        make_plan(
            (), seeds=None, jobs=1, runs=tmp_path, references=tmp_path / "references.yaml", peers=None, results=None,
            page=None, with_peers=False, race=False,
        )  # fmt: skip
