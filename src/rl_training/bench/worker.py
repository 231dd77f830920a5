"""The process of one job: ``python -m rl_training.bench.worker '<the job as JSON>'``."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import warnings

from rl_training.bench.jobs import Job
from rl_training.experiment.run import is_run
from rl_training.runtime.sessions import resume_training, start_training


def main(text: str) -> int:
    """Runs a job to its end, or until the bench that started it has exited."""
    threading.Thread(target=_stop_with_parent, daemon=True).start()
    job = Job.from_json(text)
    if job.race is not None:
        from rl_training.bench.race import run_race

        run_race(job)
    elif job.peer is not None:
        from rl_training.bench.peers import train_peer

        train_peer(job)
    else:
        return train_ours(job)
    return 0


def train_ours(job: Job) -> int:
    """Starts a run, or resumes it."""
    if is_run(job.path):
        trainer = resume_training(job.path, warn=warnings.warn)
    else:
        with contextlib.suppress(OSError):  # a process killed during start-up may have left two empty directories
            (job.path / "checkpoints").rmdir()
        trainer = start_training(job.load_config(), command=job.command)
    job.note_beginning()
    try:
        result = trainer.train()
    finally:
        trainer.close()
    return 0 if result.interrupted_by is None else 128 + result.interrupted_by


def _stop_with_parent() -> None:
    """Asks this process to save and stop once the other end of its standard input is closed."""
    while os.read(0, 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
