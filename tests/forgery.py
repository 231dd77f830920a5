"""What a careful attacker would do to a run directory: everything consistent, hashes and digests included."""

from __future__ import annotations

import json
import os
import signal
import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from moments import PATIENCE

from rl_training.cli import main
from rl_training.experiment.checkpoint import MANIFEST, fingerprint_of, seal
from rl_training.experiment.run import step_directories

Body = dict[str, Any]
OBS = "[0.0, 0.1, 0.0, -0.1]"


def commands(run: Path, folder: Path) -> dict[str, list[str]]:
    """Every command that takes a run; what they write goes to the folder."""
    return {
        "eval": ["eval", str(run), "--episodes", "1"],
        "predict": ["predict", str(run), "--obs", OBS],
        "export": ["export", str(run), "--format", "safetensors", "--output", str(folder / "p.safetensors")],
        "resume": ["resume", str(run), "--quiet"],
        "plot": ["plot", str(run), "--output", str(folder / "p.png")],
    }


def silent(message: str) -> None:
    """For those who must be given somebody to warn."""


def forge(checkpoint: Path, change: Callable[[Body], object] = lambda body: None) -> None:
    """Makes a manifest fit the files that it lists, and then changes it."""
    body = json.loads((checkpoint / MANIFEST).read_text())
    del body["digest"]
    if isinstance(body.get("files"), dict):  # not forged already
        body["files"] = {name: fingerprint_of(checkpoint / name) for name in body["files"]}
    change(body)
    (checkpoint / MANIFEST).write_text(seal(body))


def forge_all(run: Path, change: Callable[[Body], object]) -> None:
    """The same in every checkpoint of a run, so that there is none to fall back to."""
    for checkpoint in step_directories(run):
        forge(checkpoint, change)


def replace_in_all(run: Path, name: str, content: str | bytes) -> None:
    """Replaces a file of every checkpoint of a run, and makes the manifests fit it."""
    for checkpoint in step_directories(run):
        (checkpoint / name).write_bytes(content.encode() if isinstance(content, str) else content)
        forge(checkpoint)


def safetensors_of(dtype: str, shape: list[int], size: int) -> bytes:
    """A safetensors file that holds one array."""
    header = json.dumps({"x": {"dtype": dtype, "shape": shape, "data_offsets": [0, size]}}).encode()
    return struct.pack("<Q", len(header)) + header + bytes(size)


def put_in_place(path: Path, kind: str) -> None:
    """Puts something that is no regular file in the place of a file."""
    path.unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "directory":
        path.mkdir()
    elif kind == "socket":
        here = Path.cwd()
        os.chdir(path.parent)  # the address of a socket must be short
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(path.name)
        os.chdir(here)
    else:
        path.symlink_to("/dev/zero")


KINDS = ("pipe", "directory", "socket", "endless device")


@contextmanager
def promptly(seconds: float = PATIENCE) -> Iterator[None]:
    """Interrupts what hangs."""

    def interrupt(number: int, frame: object) -> None:
        raise TimeoutError("it hangs")

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def assert_refused(capsys: pytest.CaptureFixture[str], arguments: list[str], *words: str) -> str:
    """Exit code 2 and one sentence that has all the words, without a traceback and without waiting."""
    capsys.readouterr()
    with promptly():
        code = main(arguments)
    shown = capsys.readouterr()
    errors = [line for line in shown.err.splitlines() if not line.startswith(("warning: ", "resuming "))]
    assert code == 2, shown
    assert len(errors) == 1, shown.err
    assert errors[0].startswith("error: ")
    for word in words:
        assert word in shown.err, f"{word!r} is not in: {shown.err}"
    return shown.err
