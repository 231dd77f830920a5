"""Weights & Biases. Its own environment variables choose the project, the mode and so on: ``WANDB_PROJECT`` and others."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import wandb
from wandb.proto.wandb_internal_pb2 import Record

from rl_training.runtime.hooks import Training
from rl_training.runtime.trackers import KINDS, identity, logged_before, numbers


class TrackedRun:
    """A run of W&B. Its x axis is the env step, ``train/step`` and so on, because W&B's own step is only a count of rows."""

    def __init__(self, training: Training) -> None:
        assert training.run_dir is not None
        name = identity(training.run_dir)
        self._run = wandb.init(
            id=name,
            project=os.environ.get("WANDB_PROJECT", "rl_training"),
            name=training.run_dir.name,
            config=training.config.describe(),
            dir=os.environ.get("WANDB_DIR", str(training.run_dir)),
            resume="allow",
            reinit="create_new",
            settings=wandb.Settings(console="off", x_stats_sampling_interval=60.0),
        )
        for kind in KINDS:
            self._run.define_metric(f"{kind}/step", hidden=True)
            self._run.define_metric(f"{kind}/*", step_metric=f"{kind}/step")
        self._row, self._last = self._run.step, dict.fromkeys(KINDS, -1)
        if self._run.offline:
            self._note_earlier(Path(self._run.dir).parents[1], name)
        else:
            self._last |= {kind: int(self._run.summary.get(f"{kind}/step", -1)) for kind in KINDS}
        for kind, step, values in logged_before(training.run_dir):
            self.log(kind, step, values)

    def _note_earlier(self, folder: Path, name: str) -> None:
        """Reads what earlier sessions have logged offline, which no server knows of. W&B loses the end of it in a kill."""
        for file in sorted(folder.glob(f"offline-run-*-{name}/run-{name}.wandb")):
            for row in history(file):
                self._row = max(self._row, row["_step"] + 1)
                for kind in KINDS:
                    self._last[kind] = max(self._last[kind], row.get(f"{kind}/step", -1))

    def log(self, kind: str, step: int, values: Mapping[str, float]) -> None:
        if step > self._last[kind]:
            self._run.log({**numbers(kind, values), f"{kind}/step": step}, step=self._row, commit=True)
            self._row += 1

    def finish(self, status: str, best: str | None, report: str | None) -> None:
        if report is not None:
            self._run.log({"report": wandb.Html(report, inject=False)}, step=self._row, commit=True)
        self._run.summary.update({"status": status, "best_checkpoint": best})
        self._run.finish(exit_code=1 if status == "failed" else 0)


def history(file: Path) -> Iterator[dict[str, Any]]:
    """The rows of the history in a file of W&B's."""
    for record in map(Record.FromString, records(file)):
        if record.HasField("history"):
            yield {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}


def records(file: Path) -> Iterator[bytes]:
    """The records in a file of W&B's, which has the log format of LevelDB after its own header. It may end within one."""
    data, at, whole = file.read_bytes(), 7, b""
    while at + 7 <= len(data):
        left = 2**15 - at % 2**15
        _, length, part = struct.unpack_from("<IHB", data, at)
        if left < 7 or part == 0:
            at += left
            continue
        if at + 7 + length > len(data):
            return
        whole += data[at + 7 : at + 7 + length]
        at += 7 + length
        if part in (1, 4):  # a whole record, or the last part of one
            yield whole
            whole = b""
