"""The judgement of the long experiments: what they count as wrong, and what they do not."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from moments import PATIENCE
from reliability import cpus, margins, verdicts
from reliability.fuzz_runs import mutated
from reliability.fuzz_words import rows_in, wrong_actions
from reliability.kills import difference, summary
from reliability.prepared import PREPARED
from reliability.results import without_places
from reliability.verdicts import ask, not_finite


def answer_of(code: int, errors: str, monkeypatch: pytest.MonkeyPatch) -> str | None:
    def main(arguments: list[str]) -> int:
        print(errors, file=sys.stderr, end="")
        return code

    monkeypatch.setattr(verdicts, "main", main)
    return ask([]).wrong


def test_a_refusal_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    assert answer_of(0, "", monkeypatch) is None
    assert answer_of(2, "warning: a\nerror: b\n", monkeypatch) is None
    assert "not one sentence" in str(answer_of(2, "error: a\nb\n", monkeypatch))
    assert "not one sentence" in str(answer_of(2, "", monkeypatch))
    assert "traceback" in str(answer_of(0, "Traceback (most recent call last):", monkeypatch))
    assert "exit code" in str(answer_of(-9, "error: a\n", monkeypatch))


def test_an_exception_and_a_hang_are_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verdicts, "main", lambda arguments: 1 // 0)
    assert "ZeroDivisionError" in str(ask([]).wrong)

    def wait_for_ever(arguments: list[str]) -> int:
        while True:
            pass

    monkeypatch.setattr(verdicts, "main", wait_for_ever)
    monkeypatch.setattr(verdicts, "PATIENCE", 0.05)
    assert str(ask([]).wrong).startswith("hangs")


def test_results_that_cannot_be(tmp_path: Path) -> None:
    one = PREPARED["values"]
    assert rows_in("[0, 0, 0, 0]", one.shape) == 1
    assert rows_in('{"obs": [[0, 0, 0, 0], [1, 1, 1, 1]]}', one.shape) == 2
    for line in ("[0, 0, 0]", "[0, 0, 0, NaN]", '["0", 0, 0, 0]', "{}", "[", "null", "[[[0, 0, 0, 0]]]"):
        assert rows_in(line, one.shape) is None, line
    assert wrong_actions("1\n", ["[0, 0, 0, 0]"], one) is None
    for printed in ("2\n", "NaN\n", "", "1\n0\n", "[1]\n"):
        assert wrong_actions(printed, ["[0, 0, 0, 0]"], one) is not None, printed
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "loss": NaN}\n')
    assert "loss is nan" in str(not_finite(tmp_path))
    (tmp_path / "metrics.jsonl").write_text("{\n")
    assert "damaged" in str(not_finite(tmp_path))
    assert not_finite(tmp_path, said="line 1 of metrics.jsonl cannot be read") is None


def test_values_are_changed_somewhere() -> None:
    value = {"a": [1, {"b": 2}], "c": "x"}
    changed = [mutated(random.Random(seed), value)[0] for seed in range(50)]
    assert sum(one != value for one in changed) > 40
    assert value == {"a": [1, {"b": 2}], "c": "x"}


def test_findings_name_no_place_of_this_machine() -> None:
    tree, elsewhere = Path(__file__).parents[1], Path(tempfile.gettempdir())
    said = (
        f'  File "{tree}/src/rl_training/cli.py", line 3\n  File "{os.__file__}", line 4\n'
        f"error: {elsewhere}/fuzz-1/tmp2/run is damaged; see '{Path.home()}/x.yaml' and /etc/passwd"
    )
    assert without_places(said) == (
        '  File "src/rl_training/cli.py", line 3\n  File "os.py", line 4\n'
        "error: run is damaged; see 'x.yaml' and /etc/passwd"
    )


def test_the_figures() -> None:
    kill = {"saving": True, "orphans": False}
    records = [
        {"kills": [kill, {**kill, "saving": False}], "outcome": "identical"},
        {"kills": [kill], "outcome": "exit code 2"},
    ]
    assert summary(records) == ("3 kills, 2 of them while a checkpoint was written; identical: 2; processes left behind: 0")
    lines = [{"step": 1}, {"step": 2}]
    found = difference({"files": {"a": 1}, "metrics": lines}, {"files": {"a": 2}, "metrics": [{"step": 1}, {"step": 3}]})
    assert found == "files ['a'], lines of the log [1], 2 of 2 lines"
    measured = [{"task": "t", "cpu": "c", "bound": 1.0, "above": True, "value": value} for value in (0.5, 2.0, 3.0)]
    assert margins.table(measured) == [["t", "c", "> 1", "2 of 3", "0.5", "2"]]
    runs = [{"variant": "A=b", "scope": "all", "result": result, "failed": ["t.py::u"]} for result in ("old", "1 failed")]
    assert cpus.table(runs) == [["`A=b`", "all", "1 failed", "t.py::u"]]


def test_variants_of_the_cpu_reach_the_libraries() -> None:
    """What a variant sets is what torch and NumPy then compute with."""
    code = (
        "import json, torch; from numpy._core._multiarray_umath import __cpu_features__ as f; "
        "print(json.dumps([torch.backends.cpu.get_cpu_capability(), [name for name, found in f.items() if found]]))"
    )
    features = cpus.numpy_features()
    env = {**os.environ, **margins.NARROW, "NPY_DISABLE_CPU_FEATURES": features}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=PATIENCE, check=True)
    capability, found = json.loads(done.stdout)
    assert capability == "DEFAULT"
    assert not set(features.split()) & set(found)
