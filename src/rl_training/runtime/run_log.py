"""The log of a run across its processes: where it continues, and how much time the run has taken so far."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rl_training.experiment.metrics import MetricsLog
from rl_training.experiment.run import Run
from rl_training.runtime.cadence import PhaseTimer, cpu_seconds


class RunLog:
    """Writes nothing without a run. Wall-clock figures have keys that begin with ``time/``."""

    def __init__(self, timer: PhaseTimer) -> None:
        self._timer = timer
        self._run: Run | None = None
        self._file: MetricsLog | None = None
        self._bytes = 0
        self._earlier_seconds = self._earlier_cpu_seconds = 0.0
        self._cpu_start = cpu_seconds()

    def start_clock(self) -> None:
        """Starts timing; time before this call is not counted."""
        self._timer.start()
        self._cpu_start = cpu_seconds()

    def stop_clock(self) -> None:
        self._timer.lap("rest")
        self._earlier_cpu_seconds += cpu_seconds() - self._cpu_start
        self._cpu_start = cpu_seconds()

    def open(self, run: Run | None, *, tensorboard: bool, from_step: int) -> None:
        self._run = run
        if run is not None and self._file is None:
            self._file = MetricsLog(run.path, tensorboard=tensorboard, keep_bytes=self._bytes, from_step=from_step)

    def write(self, kind: str, env_steps: int, metrics: Mapping[str, float]) -> None:
        if self._run is not None and self._file is not None:
            self._run.require_present()
            self._file.write(kind, env_steps, {**metrics, **self.time_metrics(env_steps)})

    def close(self) -> None:
        if self._file is not None:
            self._bytes = self._file.position()
            self._file.close()
            self._file = None

    def time_metrics(self, env_steps: int) -> dict[str, float]:
        seconds = self._earlier_seconds + self._timer.total
        return {
            "time/seconds": round(seconds, 3),
            "time/cpu_seconds": round(self._earlier_cpu_seconds + cpu_seconds() - self._cpu_start, 3),
            "time/evaluation_seconds": round(self._timer.seconds["evaluation"], 3),
            "time/steps_per_second": round(env_steps / max(seconds, 1e-9), 1),
        }

    def info(self, env_steps: int) -> dict[str, Any]:
        """Information for the manifest of a checkpoint that may differ when a run is repeated."""
        position = self._bytes if self._file is None else self._file.position()
        return {"step": env_steps, "metrics_bytes": position, **self.time_metrics(env_steps)}

    def restore(self, info: Mapping[str, Any]) -> None:
        """Continues from the state at which a checkpoint was written."""
        self._bytes = info["metrics_bytes"]
        self._earlier_seconds = info.get("time/seconds", 0.0)
        self._earlier_cpu_seconds = info.get("time/cpu_seconds", 0.0)
