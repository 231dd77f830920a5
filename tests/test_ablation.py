"""benchmarks/ablation.py: what is drawn is what the logs say."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

import ablation
import pytest

RECORDS: list[dict[str, Any]] = [
    {"kind": "train", "step": 10, "return_mean": 5.0, "loss": 2.0},
    {"kind": "train", "step": 20, "return_mean": 6.0, "loss": None},
    {"kind": "eval", "step": 20, "return_mean": 50.0},
]


def make_run(run: Path, finished: bool = True) -> Path:
    run.mkdir(parents=True)
    (run / "metrics.jsonl").write_text("\n".join(map(json.dumps, RECORDS)) + '\n{"kind": "tr')
    if finished:
        (run / "evaluation.json").write_text("{}")
    return run


def test_returns_are_those_of_evaluations_and_the_rest_of_training(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    assert ablation.curve(run, "return_mean") == {20: 50.0}
    loss = ablation.curve(run, "loss")
    assert (list(loss), loss[10], math.isnan(loss[20])) == ([10, 20], 2.0, True)


def test_the_mean_is_over_steps_that_all_have() -> None:
    assert ablation.mean_of([{10: 1.0, 20: 2.0, 30: 9.0}, {20: 4.0, 30: 1.0, 40: 7.0}]) == {20: 3.0, 30: 5.0}


def run_main(monkeypatch: pytest.MonkeyPatch, folder: Path, *given: str) -> str:
    monkeypatch.setattr(sys, "argv", ["ablation.py", *given, "--runs", str(folder), "--output", str(folder / "a.svg")])
    ablation.main()
    return (folder / "a.svg").read_text()


def test_a_figure_has_a_panel_for_each_metric_and_the_seeds_of_all_entries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for run in ("a/b/seed0", "a/b/seed1", "a/c/seed1"):
        make_run(tmp_path / run)
    make_run(tmp_path / "a/c/seed0", finished=False)
    assert list(ablation.finished(tmp_path / "a/c")) == ["seed1"]
    pytest.importorskip("matplotlib")
    drawn = run_main(monkeypatch, tmp_path, "a/b", "a/c", "--metrics", "return_mean", "loss", "--names", "one", "other")
    assert [drawn.count(f">{words}<") for words in ("return of the greedy policy", "loss", "one", "other")] == [1, 1, 1, 1]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (("a/b", "a/missing"), "has a finished run of each of a/b, a/missing"),
        (("a/b", "--metrics", "los"), "the logs have no los"),
        (("a/b", "--names", "one", "two"), "--names needs a different name for each entry"),
    ],
)
def test_what_cannot_be_drawn_is_said(
    given: tuple[str, ...], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    make_run(tmp_path / "a/b/seed0")
    with pytest.raises(SystemExit):
        run_main(monkeypatch, tmp_path, *given)
    assert words in capsys.readouterr().err
