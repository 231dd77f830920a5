"""Stopping a run in another process at a moment of its own progress, however fast or slow the machine is.

``rl_training_test_envs:Waiting-v0`` holds a run at a known step or while it writes a checkpoint, so that a test which gets no
CPU time for seconds still finds the run there.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from forked import ForkedPython
from holding import FREEZE_AT, FREEZE_IN, WAIT_AT

#: Seconds after which a process is taken to hang; no busy machine comes near it.
PATIENCE = 600.0


def start(*arguments: str | Path, **options: Any) -> subprocess.Popen[str]:
    """The command line in a process of its own; the options are those of ``ForkedPython``."""
    return start_python("-m", "rl_training", *arguments, **options)


def finish(*arguments: str | Path, **options: Any) -> subprocess.CompletedProcess[str]:
    """The command line from beginning to end."""
    return finish_python("-m", "rl_training", *arguments, **options)


def start_python(*arguments: str | Path, **options: Any) -> subprocess.Popen[str]:
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return ForkedPython([str(argument) for argument in arguments], **{**pipes, **options})


def finish_python(*arguments: str | Path, stdin: Any = None, **options: Any) -> subprocess.CompletedProcess[str]:
    with start_python(*arguments, stdin=subprocess.PIPE, **options) as process:
        output, errors = process.communicate(stdin, timeout=PATIENCE)
    return subprocess.CompletedProcess(process.args, process.returncode, output, errors)


def waiting_at(step: int) -> dict[str, str]:
    """Environment variables of a process whose run does not pass this step until it is killed or asked to stop."""
    return {**os.environ, WAIT_AT: str(step)}


def frozen_while_saving(run: Path, step: int) -> dict[str, str]:
    """Environment variables of a process that freezes as soon as it writes a checkpoint at this step or later."""
    return {**os.environ, FREEZE_AT: str(step), FREEZE_IN: str(run / "checkpoints")}


def wait_until(condition: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    """Waits for progress of a process, which must not end before that."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert process.poll() is None, "the process ended first"
        assert time.monotonic() < deadline, "the process hangs"
        time.sleep(0.002)


def wait_for_checkpoint(run: Path, process: subprocess.Popen[str]) -> None:
    wait_until((run / "checkpoints" / "latest").exists, process)


def froze(process: subprocess.Popen[str]) -> bool:
    """Waits until a process freezes; False if it has ended, because it was never seen writing a checkpoint."""
    _, status = os.waitpid(process.pid, os.WUNTRACED)
    return os.WIFSTOPPED(status)


def logged_step(run: Path) -> int:
    """The last step in the log of a run; 0 without one."""
    log = run / "metrics.jsonl"
    lines = log.read_text().split("\n")[:-1] if log.exists() else []
    return int(json.loads(lines[-1])["step"]) if lines else 0


def kill(process: subprocess.Popen[str]) -> None:
    """Kills a process that is still running."""
    process.kill()
    process.communicate()
    assert process.returncode == -signal.SIGKILL, "the process ended before the kill"
