"""Memory that an update frees is kept for the next one."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys

import pytest

from rl_training.limits import has_glibc, keep_freed_memory

#: Eight arrays of a megabyte, many times; prints the page faults that they cost.
ARRAYS = """
import resource
import sys
import numpy as np
from rl_training.limits import keep_freed_memory
if sys.argv[1] == "kept":
    keep_freed_memory()
def update():
    return [np.ones(1 << 20, np.uint8) for _ in range(8)]
for _ in range(3):
    update()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(50):
    update()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(how: str, **variables: str) -> int:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_"))}
    command = [sys.executable, "-c", ARRAYS, how]
    return int(subprocess.run(command, env={**inherited, **variables}, capture_output=True, text=True, check=True).stdout)


@pytest.mark.skipif(not has_glibc(), reason="an option of glibc")
def test_freed_memory_is_kept() -> None:
    usual = faults("given back")
    assert usual > 50_000
    assert faults("kept") < usual / 50
    assert faults("kept", MALLOC_TRIM_THRESHOLD_="0") > usual / 2  # the user's choice
    assert faults("kept", GLIBC_TUNABLES="") > usual / 2  # only switched off, as the documentation says


@pytest.mark.parametrize("error", [None, ValueError, OSError, AttributeError])
def test_other_c_libraries_are_left_alone(error: type[Exception] | None, monkeypatch: pytest.MonkeyPatch) -> None:
    def confstr(name: str) -> None:
        if error is not None:
            raise error

    def load(name: str | None) -> None:
        raise AssertionError("no library is to be asked")

    for name in list(os.environ):
        if name.startswith(("MALLOC_", "GLIBC_")):
            monkeypatch.delenv(name)
    monkeypatch.setattr(os, "confstr", confstr, raising=False)
    monkeypatch.setattr(ctypes, "CDLL", load)
    assert not has_glibc()
    keep_freed_memory()
