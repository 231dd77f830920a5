"""The logs of a run across its processes: where they continue, and how much time the run has taken so far."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rl_training.envs.pool import Episode
from rl_training.experiment.metrics import EPISODES_FILE, METRICS_FILE, LogFile
from rl_training.runtime.cadence import PhaseTimer, cpu_seconds
from rl_training.runtime.evaluation import EvaluationResult
from rl_training.runtime.hooks import Training

if TYPE_CHECKING:
    from rl_training.runtime.trainer import Trainer

#: The files, by the name under which a checkpoint holds their length.
FILES = {"metrics_bytes": METRICS_FILE, "episodes_bytes": EPISODES_FILE}


class RunLog:
    """Writes nothing without a run. Wall-clock figures have keys that begin with ``time/``."""

    def __init__(self, trainer: Trainer) -> None:
        self._trainer, self._timer = trainer, trainer.timer
        self._files: dict[str, LogFile] = {}
        self._bytes = dict.fromkeys(FILES, 0)
        self._earlier = dict.fromkeys(PhaseTimer.PHASES, 0.0)  # seconds of the processes before this one, by phase
        self._earlier_cpu_seconds = 0.0
        self._cpu_start = cpu_seconds()
        self._begun: dict[int, float] = {}  # when the running episodes began, in seconds of the run; the first ones at 0
        self._seen: set[str] | None = None  # the entries of infos that were written; None before the first episode

    def start_clock(self) -> None:
        """Starts timing; time before this call is not counted."""
        self._timer.start()
        self._cpu_start = cpu_seconds()

    def stop_clock(self) -> None:
        self._timer.lap("rest")
        self._earlier_cpu_seconds += cpu_seconds() - self._cpu_start
        self._cpu_start = cpu_seconds()

    def on_start(self, training: Training) -> None:
        """Opens the files where they continue."""
        if training.run_dir is not None:
            for key, name in FILES.items():
                self._files[key] = LogFile(training.run_dir / name, keep_bytes=self._bytes[key])

    def absent_keys(self) -> list[str]:
        """Those of ``log.info_keys`` that no episode of this process had, if it has finished one."""
        return [] if self._seen is None else [key for key in self._trainer.config.log.info_keys if key not in self._seen]

    def on_episode(self, episode: Episode) -> None:
        if not self._files:
            return
        self._seen = (self._seen or set()).union(episode.info)
        now = self._seconds
        seconds, self._begun[episode.env_index] = now - self._begun.get(episode.env_index, 0.0), now
        values = {
            "env": episode.env_index,
            "episode": episode.number,
            "return": episode.episode_return,
            "length": episode.length,
            **{key if key == "is_success" else f"info/{key}": value for key, value in episode.info.items()},
            "time/seconds": round(seconds, 4),
        }
        self._files["episodes_bytes"].write("episode", self._trainer.env_steps, values)

    def on_update(self, metrics: Mapping[str, float]) -> None:
        self._write("train", metrics)

    def on_evaluation(self, result: EvaluationResult) -> None:
        self._write("eval", {**result.summary(), **self.time_metrics(self._trainer.env_steps)})

    def write_changes(self, settings: Mapping[str, Any]) -> None:
        """Logs the settings that changed when the run was resumed."""
        self._write("change", {**settings, **self.time_metrics(self._trainer.env_steps)})

    def _write(self, kind: str, metrics: Mapping[str, Any]) -> None:
        if self._trainer.run is not None and self._files:
            self._trainer.run.require_present()
            self._files["metrics_bytes"].write(kind, self._trainer.env_steps, metrics)
            for file in self._files.values():
                file.flush()

    def close(self) -> None:
        for key, file in self._files.items():
            self._bytes[key] = file.position()
            file.close()
        self._files = {}

    @property
    def _seconds(self) -> float:
        """The time that the run has taken so far, in all its processes."""
        return sum(self._phases().values())

    def _phases(self) -> dict[str, float]:
        """The same time by phase."""
        return {phase: seconds + self._timer.seconds[phase] for phase, seconds in self._earlier.items()}

    def time_metrics(self, env_steps: int) -> dict[str, float]:
        seconds = self._seconds
        return {
            "time/seconds": round(seconds, 3),
            "time/cpu_seconds": round(self._earlier_cpu_seconds + cpu_seconds() - self._cpu_start, 3),
            **{f"time/{phase}_seconds": round(spent, 3) for phase, spent in self._phases().items()},
            "time/steps_per_second": round(env_steps / max(seconds, 1e-9), 1),
            **self._trainer.collector.time_metrics(),
        }

    def info(self, env_steps: int) -> dict[str, Any]:
        """Information for the manifest of a checkpoint that may differ when a run is repeated."""
        lengths = {**self._bytes, **{key: file.position() for key, file in self._files.items()}}
        begun = [self._begun.get(i, 0.0) for i in range(self._trainer.config.num_envs)]
        return {"step": env_steps, **lengths, "episodes_begun": begun, **self.time_metrics(env_steps)}

    def restore(self, info: Mapping[str, Any]) -> None:
        """Continues from the state at which a checkpoint was written."""
        self._bytes = {key: info.get(key, 0) for key in FILES}
        seconds = info.get("time/seconds", 0.0)
        self._earlier = {phase: info.get(f"time/{phase}_seconds", 0.0) for phase in PhaseTimer.PHASES}
        self._earlier["rest"] = seconds - (sum(self._earlier.values()) - self._earlier["rest"])  # and unknown phases
        self._begun = dict(enumerate(info.get("episodes_begun", [seconds] * self._trainer.config.num_envs)))
        self._earlier_cpu_seconds = info.get("time/cpu_seconds", 0.0)
