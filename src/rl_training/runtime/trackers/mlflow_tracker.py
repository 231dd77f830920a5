"""MLflow. Its own environment variables choose the store and the experiment, ``MLFLOW_TRACKING_URI`` and so on."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping

from mlflow import MlflowClient
from mlflow.entities import Metric, Param, RunTag

from rl_training.runtime.hooks import Training
from rl_training.runtime.trackers import KINDS, flat, identity, logged_before, numbers

TAG = "rl_training.run"
STATUS = {"finished": "FINISHED", "stopped": "KILLED", "failed": "FAILED"}
#: What MLflow takes at once, and of one text.
MOST_PARAMS, LONGEST = 100, 500


class TrackedRun:
    """A run of MLflow, found by a tag. Each record is stored as a whole or not at all."""

    def __init__(self, training: Training) -> None:
        assert training.run_dir is not None
        self._client = client = MlflowClient()
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", "rl_training")
        known = client.get_experiment_by_name(name)
        experiment = client.create_experiment(name) if known is None else known.experiment_id
        tag = identity(training.run_dir)
        found = client.search_runs([experiment], f"tags.`{TAG}` = '{tag}'")
        run = found[0] if found else client.create_run(experiment, run_name=training.run_dir.name, tags={TAG: tag})
        self._id = run.info.run_id
        client.update_run(self._id, status="RUNNING")
        settings = [Param(key, str(value)[:LONGEST]) for key, value in flat(training.config.describe()).items()]
        new = [param for param in settings if param.key not in run.data.params]  # what it has cannot be changed
        for begin in range(0, len(new), MOST_PARAMS):
            client.log_batch(self._id, params=new[begin : begin + MOST_PARAMS])
        self._last = {kind: self._last_step(f"{kind}/step") for kind in KINDS}
        for kind, step, values in logged_before(training.run_dir):
            self.log(kind, step, values)

    def _last_step(self, key: str) -> int:
        return max((metric.step for metric in self._client.get_metric_history(self._id, key)), default=-1)

    def log(self, kind: str, step: int, values: Mapping[str, float]) -> None:
        if step > self._last[kind]:
            now = time.time_ns() // 1_000_000
            logged = {**numbers(kind, values), f"{kind}/step": float(step)}
            self._client.log_batch(self._id, [Metric(key, value, now, step) for key, value in logged.items()])

    def finish(self, status: str, best: str | None, report: str | None) -> None:
        if best is not None:
            self._client.log_batch(self._id, tags=[RunTag("best_checkpoint", best)])
        self._client.set_terminated(self._id, STATUS[status])
        if report is not None:
            self._client.log_text(self._id, report, "report.html")
