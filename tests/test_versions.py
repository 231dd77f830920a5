"""The comparison of two versions' speed: their processes take turns, and none stays behind."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import versions

COUNTING = """
import sys, time
for i in range(int(sys.argv[1])):
    print(time.monotonic(), flush=True)
    time.sleep(0.005)
"""


def start(steps: int, output: Path) -> subprocess.Popen[str]:
    with output.open("w") as file:
        command = [sys.executable, "-S", "-c", COUNTING, str(steps)]
        return subprocess.Popen(command, stdout=file, text=True, start_new_session=True)


def test_processes_take_turns_until_all_have_ended(tmp_path: Path) -> None:
    outputs = [tmp_path / name for name in "ab"]
    processes = [start(100, output) for output in outputs]
    versions.take_turns(processes)
    assert [process.returncode for process in processes] == [0, 0]
    first, second = ([float(line) for line in output.read_text().split()] for output in outputs)
    assert len(first) == len(second) == 100
    assert first[0] < second[-1], "one after the other"
    assert second[0] < first[-1], "one after the other"


def test_an_interruption_leaves_no_process_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(seconds: float) -> None:
        raise KeyboardInterrupt

    processes = [start(100_000, tmp_path / name) for name in "ab"]
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr("time.sleep", interrupt)
        versions.take_turns(processes)
    assert [process.wait(60) for process in processes] == [-9, -9]
