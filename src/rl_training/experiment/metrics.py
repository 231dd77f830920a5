"""The log of a run: one JSON object per line, and the same numbers as TensorBoard events.

Keys that begin with ``time/`` hold measured times; everything else is the same in every repetition of a run.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import time
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rl_training.errors import CheckpointError

METRICS_FILE = "metrics.jsonl"


class MetricsLog:
    """Appends to ``metrics.jsonl``. A resumed run first removes what was logged after its checkpoint."""

    def __init__(self, directory: Path, *, tensorboard: bool, keep_bytes: int = 0, from_step: int = 0) -> None:
        path = directory / METRICS_FILE
        try:
            self._file = path.open("ab")
            length = path.stat().st_size
            if length < keep_bytes:
                warnings.warn(f"{path} is shorter than it was at the checkpoint: lines are missing", stacklevel=2)
            self._file.truncate(min(keep_bytes, length))
        except OSError as error:
            raise CheckpointError(f"cannot write the log {path}: {error.strerror}") from error
        self._file.seek(0, os.SEEK_END)
        self._events = _EventFile(directory / "tensorboard", from_step) if tensorboard else None

    def write(self, kind: str, step: int, values: Mapping[str, Any]) -> None:
        clean = {
            key: None if isinstance(value, float) and not math.isfinite(value) else value for key, value in values.items()
        }
        try:
            self._file.write(json.dumps({"kind": kind, "step": step, **clean}).encode() + b"\n")
            self._file.flush()
            if self._events is not None:
                self._events.write(kind, step, clean)
        except OSError as error:
            raise CheckpointError(
                f"cannot write the log {self._file.name}: {error.strerror}; free disk space, then resume: the checkpoints "
                "are intact"
            ) from error

    def position(self) -> int:
        """The length in bytes, after flushing to disk."""
        os.fsync(self._file.fileno())
        return os.fstat(self._file.fileno()).st_size

    def close(self) -> None:
        with contextlib.suppress(OSError):  # the disk is full, which ``write`` has reported
            self._file.close()
        if self._events is not None:
            with contextlib.suppress(OSError):
                self._events.close()


class _EventFile:
    """A TensorBoard event file, named after its first step rather than after the host."""

    def __init__(self, directory: Path, from_step: int) -> None:
        from tensorboardX.proto.event_pb2 import Event, SessionLog
        from tensorboardX.proto.summary_pb2 import Summary
        from tensorboardX.record_writer import RecordWriter

        directory.mkdir(exist_ok=True)
        self._event, self._summary = Event, Summary
        self._writer = RecordWriter(str(directory / f"events.out.tfevents.{time.time_ns() // 1000}.step{from_step}"))
        self._put(file_version="brain.Event:2", step=0)
        if from_step:  # makes TensorBoard discard what an interrupted run logged after its checkpoint
            self._put(session_log=SessionLog(status=SessionLog.START), step=from_step + 1)

    def _put(self, **fields: Any) -> None:
        self._writer.write(self._event(wall_time=time.time(), **fields).SerializeToString())

    def write(self, kind: str, step: int, values: Mapping[str, Any]) -> None:
        scalars = [
            self._summary.Value(tag=f"{kind}/{key}", simple_value=value)
            for key, value in values.items()
            if isinstance(value, int | float)
        ]
        self._put(step=step, summary=self._summary(value=scalars))
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


def read_metrics(run_directory: Path, kind: str) -> list[dict[str, Any]]:
    """The records of one kind; an incomplete last line is skipped."""
    records = []
    with (run_directory / METRICS_FILE).open("rb") as file:
        for line in file:
            try:
                record = json.loads(line)
            except ValueError:
                continue
            if record.get("kind") == kind:
                records.append(record)
    return records
