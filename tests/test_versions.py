"""The comparison of two versions' speed: their processes take turns, and none stays behind."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import versions

COUNTING = "import sys, time\nfor i in range(int(sys.argv[1])): print(sys.argv[2], flush=True); time.sleep(0.005)"


def start(steps: int, name: str, output: Path) -> subprocess.Popen[str]:
    with output.open("a") as file:
        command = [sys.executable, "-S", "-c", COUNTING, str(steps), name]
        return subprocess.Popen(command, stdout=file, text=True, start_new_session=True)


def test_processes_take_turns_until_all_have_ended(tmp_path: Path) -> None:
    output = tmp_path / "lines"
    processes = [start(100, "a", output), start(100, "b", output)]
    versions.take_turns(processes)
    lines = output.read_text().split()
    assert [process.returncode for process in processes] == [0, 0]
    assert lines.count("a") == lines.count("b") == 100
    assert lines != sorted(lines)  # not one after the other


def test_an_interruption_leaves_no_process_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(seconds: float) -> None:
        raise KeyboardInterrupt

    processes = [start(100_000, name, tmp_path / "lines") for name in "ab"]
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr("time.sleep", interrupt)
        versions.take_turns(processes)
    assert [process.wait(60) for process in processes] == [-9, -9]
