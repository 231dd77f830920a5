"""TensorBoard event files. W&B's ``sync_tensorboard`` knows the writer, which it replaces in its module."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer import event_file_writer
from torch.utils.tensorboard.summary import hparams

from rl_training.experiment.files import own_directory
from rl_training.experiment.layout import TENSORBOARD
from rl_training.runtime.hooks import Training
from rl_training.runtime.trackers import flat, numbers

#: What the table of hyperparameters shows of a run besides its settings.
SHOWN = ("eval/return_mean", "train/return_mean", "final/return_mean")


class TrackedRun:
    """One event file for each session of a run. TensorBoard itself leaves out what an interrupted session logged after its
    checkpoint."""

    def __init__(self, training: Training) -> None:
        assert training.run_dir is not None
        directory = training.run_dir / TENSORBOARD
        own_directory(directory, create=True)
        suffix = f".step{training.env_steps}"
        self._writer = event_file_writer.EventFileWriter(str(directory), filename_suffix=suffix)
        if training.env_steps:
            self._put(session_log=SessionLog(status=SessionLog.START), step=training.env_steps + 1)
        else:
            for summary in hparams(flat(training.config.describe()), dict.fromkeys(SHOWN, 0.0)):  # type: ignore[no-untyped-call]
                self._put(summary=summary, step=0)

    def _put(self, **fields: Any) -> None:
        self._writer.add_event(Event(wall_time=time.time(), **fields))
        self._writer.flush()

    def log(self, kind: str, step: int, values: Mapping[str, float]) -> None:
        scalars = [Summary.Value(tag=tag, simple_value=value) for tag, value in numbers(kind, values).items()]
        self._put(step=step, summary=Summary(value=scalars))

    def finish(self, status: str, best: str | None, report: str | None) -> None:
        self._writer.close()
