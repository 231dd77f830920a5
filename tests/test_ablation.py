"""benchmarks/ablation.py: what is drawn is what the logs say."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import ablation
import pytest

LINES = [
    {"kind": "train", "step": 10, "return_mean": 5.0, "loss": 2.0},
    {"kind": "train", "step": 20, "return_mean": 6.0},
    {"kind": "eval", "step": 20, "return_mean": 50.0},
]


def test_returns_are_those_of_evaluations_and_the_rest_of_training(tmp_path: Path) -> None:
    log = tmp_path / "metrics.jsonl"
    log.write_text("\n".join(map(json.dumps, LINES)) + "\n")
    assert ablation.curve(log, "return_mean") == {20: 50.0}
    assert ablation.curve(log, "loss") == {10: 2.0}


def test_only_seeds_of_all_entries_are_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for run in ("a/b/seed0", "a/b/seed1", "a/c/seed1"):
        (tmp_path / run).mkdir(parents=True)
        (tmp_path / run / "metrics.jsonl").write_text("\n".join(map(json.dumps, LINES)) + "\n")
    drawn: list[dict[str, list[Path]]] = []
    monkeypatch.setattr(ablation, "draw", lambda logs, metrics, path: drawn.append(logs))
    given = ["ablation.py", "a/b", "a/c", "--runs", str(tmp_path), "--output", str(tmp_path / "a.svg")]
    monkeypatch.setattr(sys, "argv", given)
    ablation.main()
    assert [[log.parent.name for log in logs] for logs in drawn[0].values()] == [["seed1"], ["seed1"]]
    monkeypatch.setattr(sys, "argv", [*given[:2], "a/missing", *given[3:]])
    with pytest.raises(SystemExit):
        ablation.main()
    assert "no seed in" in capsys.readouterr().err


def test_a_figure_has_a_panel_for_each_metric(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    log = tmp_path / "metrics.jsonl"
    log.write_text("\n".join(map(json.dumps, LINES)) + "\n")
    ablation.draw({"mine": [log]}, ["return_mean", "loss"], tmp_path / "a.svg")
    drawn = (tmp_path / "a.svg").read_text()
    assert [drawn.count(title) for title in (">return of the greedy policy<", ">loss<")] == [1, 1]
