"""The logs of a run: one JSON object per line, for metrics and for episodes.

Keys that begin with ``time/`` hold measured times; everything else is the same in every repetition of a run.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rl_training.errors import CheckpointError
from rl_training.experiment.files import open_regular, open_to_read

METRICS_FILE = "metrics.jsonl"
EPISODES_FILE = "episodes.jsonl"
#: Bytes that a line of the log may have; a real one has a few hundred.
LONGEST_LINE = 2**20


class LogFile:
    """Appends to a log. A resumed run first removes what was logged after its checkpoint."""

    def __init__(self, path: Path, *, keep_bytes: int = 0) -> None:
        try:
            self._file = os.fdopen(open_regular(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND), "ab")
            length = os.fstat(self._file.fileno()).st_size
            if length < keep_bytes:
                warnings.warn(f"{path} is shorter than it was at the checkpoint: lines are missing", stacklevel=2)
            self._file.truncate(min(keep_bytes, length))
            if keep_bytes:
                self._end_last_line(path)
                _warn_of_damage(path, [number for number, record in _lines(path) if record is None])
        except OSError as error:
            raise CheckpointError(f"cannot write the log {path}: {error.strerror}") from error
        self._file.seek(0, os.SEEK_END)

    def _end_last_line(self, path: Path) -> None:
        """A log that was cut or exchanged may end within a line, to which the next one must not be appended."""
        with open_to_read(path) as file:
            if file.seek(0, os.SEEK_END):
                file.seek(-1, os.SEEK_END)
                if file.read(1) != b"\n":
                    self._file.write(b"\n")
                    self._file.flush()

    def write(self, kind: str, step: int, values: Mapping[str, Any]) -> None:
        clean = {
            key: None if isinstance(value, float) and not math.isfinite(value) else value for key, value in values.items()
        }
        with self._writing():
            self._file.write(json.dumps({"kind": kind, "step": step, **clean}).encode() + b"\n")

    def flush(self) -> None:
        with self._writing():
            self._file.flush()

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise CheckpointError(
                f"cannot write the log {self._file.name}: {error.strerror}; free disk space, then resume: the checkpoints "
                "are intact"
            ) from error

    def position(self) -> int:
        """The length in bytes, after flushing to disk."""
        self.flush()
        os.fsync(self._file.fileno())
        return os.fstat(self._file.fileno()).st_size

    def close(self) -> None:
        with contextlib.suppress(OSError):  # the disk is full, which ``write`` has reported
            self._file.close()


def read_metrics(run_directory: Path, kind: str) -> list[dict[str, Any]]:
    """The records of one kind."""
    return [record for record in read_log(run_directory) if record["kind"] == kind]


def read_log(run_directory: Path, file: str = METRICS_FILE) -> list[dict[str, Any]]:
    """All records. Damaged lines are reported and left out; an incomplete last line is only left out."""
    path = run_directory / file
    try:
        lines = list(_lines(path))
    except OSError as error:
        raise CheckpointError(f"cannot read the log {path}: {error.strerror}") from error
    _warn_of_damage(path, [number for number, record in lines if record is None])
    return [record for _, record in lines if record is not None]


def _lines(path: Path) -> Iterator[tuple[int, dict[str, Any] | None]]:
    """The numbered records of a log, None for a damaged one. A last line that was never finished is left out."""
    with open_to_read(path) as file:
        number = 0
        while line := file.readline(LONGEST_LINE):
            number += 1
            if line.endswith(b"\n"):
                yield number, _record(line)
            elif len(line) == LONGEST_LINE:
                yield number, None
                return  # not a line of a log, and of unknown length


def _record(line: bytes) -> dict[str, Any] | None:
    """A line of the log, if it is one that a run could have written."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(record, dict) or not isinstance(record.get("kind"), str):
        return None
    step, reached = record.get("step"), record.get("return_mean")
    if isinstance(step, bool) or not isinstance(step, int) or not 0 <= step < 2**63:
        return None
    if isinstance(reached, bool) or not (reached is None or isinstance(reached, int | float)):
        return None
    return None if isinstance(reached, int) and abs(reached) >= 2**1023 else record


def _warn_of_damage(path: Path, numbers: Sequence[int]) -> None:
    if numbers:
        others = f" and {len(numbers) - 1} more" if len(numbers) > 1 else ""
        warnings.warn(f"line {numbers[0]}{others} of {path} cannot be read: the log is damaged there", stacklevel=4)
