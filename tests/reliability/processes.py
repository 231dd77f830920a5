"""Work in a forked process. The parent must have started no threads; it has imported what takes long to import."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import traceback
import types
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from moments import PATIENCE


@dataclass(frozen=True)
class Ended:
    """How a process ended, what it reported, what it printed, and whether processes of its own outlived it."""

    code: int
    reported: list[Any]
    printed: str
    orphans: bool


class Teller:
    """Reports to the parent, at once."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def __call__(self, value: Any) -> None:
        line = json.dumps(value).encode() + b"\n"
        while line:
            line = line[os.write(self._descriptor, line) :]


def in_a_process(work: Callable[[Teller], int], log: Path, patience: float = PATIENCE) -> Ended:
    """Runs the work in a process with a session of its own; its result is the exit code. Waits until all of its processes
    have ended. A process that reports nothing is killed (its exit code is -9) when it has not computed anything within the
    patience, or for as long as that: however busy the machine is, one that still makes progress is left alone."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reader)
        _child(work, log, writer)
    os.close(writer)
    reported, status = _listen(pid, reader, patience)
    orphans = _wait_for_group(pid)
    return Ended(os.waitstatus_to_exitcode(status), reported, log.read_text(errors="replace"), orphans)


def _child(work: Callable[[Teller], int], log: Path, descriptor: int) -> None:
    code = 70
    try:
        os.setsid()
        file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(file, 1)
        os.dup2(file, 2)
        sys.modules["__main__"] = types.ModuleType("__main__")  # what worker processes would import again
        code = work(Teller(descriptor))
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _listen(pid: int, reader: int, patience: float) -> tuple[list[Any], int]:
    os.set_blocking(reader, False)
    heard, deadline, computed = b"", time.monotonic() + patience, _cpu_seconds(pid)
    while True:
        ended, status = os.waitpid(pid, os.WNOHANG)
        piece = _read(reader)
        while piece:
            heard += piece
            deadline = time.monotonic() + patience
            piece = _read(reader)
        if ended:
            os.close(reader)
            return [json.loads(line) for line in heard.splitlines()], status
        if time.monotonic() > deadline:
            before, computed = computed, _cpu_seconds(pid)
            if not before < computed < patience:
                os.killpg(pid, signal.SIGKILL)
            deadline = time.monotonic() + patience
        time.sleep(0.002)


def _cpu_seconds(pid: int) -> float:
    """What a process has computed so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _read(reader: int) -> bytes:
    try:
        return os.read(reader, 2**16)
    except BlockingIOError:
        return b""


def _wait_for_group(group: int, patience: float = 60.0) -> bool:
    """Waits for the processes that a process started. Those that outlive it by a minute are ended here."""
    deadline = time.monotonic() + patience
    while time.monotonic() < deadline:
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return False
        time.sleep(0.005)
    os.killpg(group, signal.SIGKILL)
    return True
