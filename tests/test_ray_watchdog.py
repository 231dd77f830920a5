"""What a killed trainer leaves of Ray is ended, and nothing else."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from moments import PATIENCE

PROGRAM = """
import os, signal, subprocess
from rl_training.runtime.ray_watchdog import watchdog

with watchdog(grace=1) as mark:
    for name, given in (("ray::Agent", mark), ("ray::Agent", {}), ("other", mark)):
        command = ["bash", "-c", f"exec -a {name} sleep 600"]
        pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        print(subprocess.Popen(command, env={**os.environ, **given}, **pipes).pid, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def runs(pid: int) -> bool:
    status = Path(f"/proc/{pid}/status")
    return status.exists() and "\nState:\tZ" not in status.read_text()


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="the watchdog is for Linux")
def test_only_processes_of_its_own_instance_are_ended() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, text=True, check=False, timeout=PATIENCE)
    assert done.returncode == -signal.SIGKILL
    own, others, another = map(int, done.stdout.split())
    try:
        deadline = time.monotonic() + PATIENCE
        while runs(own):
            assert time.monotonic() < deadline, "it is left"
            time.sleep(0.02)
        assert runs(others)
        assert runs(another)
    finally:
        for pid in (own, others, another):
            if runs(pid):
                os.kill(pid, signal.SIGKILL)
