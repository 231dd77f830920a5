"""Runs the jobs of a bench or a tune as tasks of a Ray cluster.

A task does what a ``Runner`` does with a job on one machine: it takes the job's lock and starts the same process. On a folder
that all nodes share, a task that was killed therefore resumes its run wherever Ray starts it again. What the tables need
comes back with the answer, so that nothing must be shared.
"""

from __future__ import annotations

import platform
import threading
from collections.abc import Sequence
from typing import Any, TextIO

from rl_training.bench.jobs import Job
from rl_training.bench.runner import Runner, run_worker
from rl_training.errors import RLTrainingError, described, one_line
from rl_training.version import __version__

#: How often Ray starts a task again whose process or node has died.
RESTARTS = 3
#: Seconds between two looks at a task, and the most that a stopped task is waited for.
TICK, LAST_PATIENCE = 0.5, 60.0


class RayRunner(Runner):
    """Runs jobs on the cluster that ``ray``, the module, is connected to. A task that has to stop is cancelled: it saves."""

    def __init__(self, ray: Any, jobs: Sequence[Job], parallel: int | None, stream: TextIO, *, expected: int = 0) -> None:
        super().__init__(jobs, parallel or max(1, len(jobs)), stream, expected=expected)
        self._ray = ray
        self._task = ray.remote(run_task)

    def _run(self, job: Job) -> str | None:
        stop, ray = self._stops[job], self._ray
        if stop.is_set() or job.is_finished():
            return None
        task = self._task.options(num_cpus=job.threads, max_retries=RESTARTS, name=job.label)
        answer = task.remote(job.elsewhere().to_json(), __version__)
        self._active.add(job)
        try:
            while not ray.wait([answer], timeout=TICK)[0]:
                if stop.is_set():
                    ray.cancel(answer)
                    ray.wait([answer], timeout=LAST_PATIENCE)
                    return None
            problem, files = ray.get(answer)
        except ray.exceptions.RayError as error:
            return None if stop.is_set() else one_line(str(error))
        finally:
            self._active.remove(job)
        if problem is None and not job.result_file.exists():  # nothing is shared with the node that has run it
            job.take_results(files)
        return None if problem is None else str(problem)

    def _running(self) -> str:
        """A line on the tasks whose logs can be seen; the others wait for a CPU, or run where no folder is shared."""
        states = [f"{job.label} at {step} of {self._total[job]}" for job in list(self._active) if (step := self._steps(job))]
        return f"{len(self._active)} tasks on Ray; running: {', '.join(states) or 'nothing that is seen from here'}"


def run_task(job: str, version: str) -> tuple[str | None, dict[str, str]]:
    """The task that Ray runs on a node. Returns what went wrong, or None, and the files with the results."""
    if version != __version__:
        return (
            f"the node {platform.node()} has rl-training {__version__}, but this command has {version}; install the same",
            {},
        )
    try:
        parsed = Job.from_json(job)
        problem = run_worker(parsed, threading.Event())
        return problem, {} if problem is not None else parsed.result_files()
    except (RLTrainingError, OSError) as error:
        return str(error) if isinstance(error, RLTrainingError) else described(error), {}
