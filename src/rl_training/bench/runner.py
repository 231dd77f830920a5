"""Runs jobs in several processes at a time. A finished job is not run again, and a stopped one is resumed.

Each job has a lock file beside its directory, which its process inherits. The lock shows whether a process of an earlier
bench is still saving, and it lets two benches share the work without interfering with each other.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import TextIO

from rl_training.bench.jobs import Job
from rl_training.experiment.lock import Lock

#: Seconds between two looks at a process.
TICK = 0.05
#: Seconds without a finished job after which a line reports how far the jobs are.
QUIET_SECONDS = 30.0
#: Seconds between two looks of whoever watches the jobs.
WATCH_SECONDS = 2.0


class Runner:
    """Runs jobs. When it stops (by Ctrl-C, or because this process dies), the pipes to its jobs close; they save and exit.

    Jobs can be added and ended while it runs, from the functions that ``run`` is given, which are all called by its thread.
    """

    def __init__(self, jobs: Sequence[Job], parallel: int, stream: TextIO, *, expected: int = 0) -> None:
        """``expected`` is the number of jobs if more will be added."""
        self.jobs: list[Job] = []
        self._parallel = parallel
        self._stream = stream
        self._expected = expected
        self._stopping = threading.Event()
        self._active: set[Job] = set()
        self._stops: dict[Job, threading.Event] = {}  # set when a job has to stop
        self._waiting: dict[Future[str | None], Job] = {}
        self._pool: ThreadPoolExecutor | None = None  # while it runs
        self._total: dict[Job, int] = {}
        self._done_before = 0
        self._finished = 0
        self._began = self._spoke = time.monotonic()
        for job in jobs:
            self.add(job)

    def add(self, job: Job) -> None:
        """Runs this job too, as soon as there is a place for it."""
        self.jobs.append(job)
        self._total[job], self._stops[job] = job.total_steps, threading.Event()
        self._done_before += self._steps(job)
        if self._pool is not None:
            self._waiting[self._pool.submit(self._run, job)] = job

    def end(self, job: Job) -> None:
        """Ends a job before its time; it saves and exits, and counts as finished."""
        self._total[job] = job.logged_steps()
        self._stops[job].set()

    def run(
        self,
        finished: Callable[[Job], str],
        failed: Callable[[Job, str], None] = lambda job, problem: None,
        watch: Callable[[], None] | None = None,
    ) -> list[str]:
        """Runs the unfinished jobs, and prints the summary that ``finished`` returns for each job. Returns the failures.
        ``watch`` is called again and again while jobs run."""
        failures = []
        with ThreadPoolExecutor(self._parallel) as self._pool:
            self._waiting = {self._pool.submit(self._run, job): job for job in self.jobs}
            try:
                while self._waiting:
                    done, _ = wait(self._waiting, QUIET_SECONDS if watch is None else WATCH_SECONDS, FIRST_COMPLETED)
                    for future in done:
                        job = self._waiting.pop(future)
                        problem = future.result()
                        self._finished += 1
                        if problem is not None:
                            failures.append(f"{job.label}: {problem}")
                            failed(job, problem)
                        self._say(f"{job.label}: {finished(job) if problem is None else f'FAILED: {problem}'}")
                    if watch is not None:
                        watch()
                    if time.monotonic() - self._spoke >= QUIET_SECONDS:
                        self._say(self._running())
            except BaseException:
                print(
                    "stopping: our runs are being saved, and the same command continues them; peers and races start again",
                    file=self._stream,
                    flush=True,
                )
                self._stop()
                self._pool.shutdown(cancel_futures=True)
                raise
        return failures

    def _run(self, job: Job) -> str | None:
        """Runs one job to its end. Returns what went wrong, or None."""
        self._active.add(job)
        try:
            return run_worker(job, self._stops[job])
        finally:
            self._active.remove(job)

    def _stop(self) -> None:
        self._stopping.set()
        for stop in self._stops.values():
            stop.set()

    def _steps(self, job: Job) -> int:
        return self._total[job] if job.result_file.exists() else job.logged_steps()

    def _running(self) -> str:
        states = (f"{job.label} at {self._steps(job)} of {self._total[job]}" for job in list(self._active))
        return f"running: {', '.join(states) or 'nothing yet'}"

    def _say(self, text: str) -> None:
        self._spoke = time.monotonic()
        count = max(self._expected, len(self.jobs))
        print(f"[{self._finished}/{count}] {text}; {self._time_left()}", file=self._stream, flush=True)

    def _time_left(self) -> str:
        """An estimate from the env steps so far, which assumes that a step takes equally long in every job."""
        steps = sum(map(self._steps, self.jobs))
        total = sum(self._total.values()) * max(1.0, self._expected / max(len(self.jobs), 1))
        done, left = steps - self._done_before, total - steps
        elapsed = time.monotonic() - self._began
        if left <= 0:
            return "done"
        return f"ETA {left / done * elapsed:.0f} s" if done > 0 else "ETA unknown"


def run_worker(job: Job, stopping: threading.Event) -> str | None:
    """Runs one job to its end in a process of its own, or until ``stopping`` is set. Returns what went wrong, or None."""
    with locked(job, stopping) as lock:
        if stopping.is_set() or job.is_finished():
            return None
        with tempfile.TemporaryFile() as errors:
            process = subprocess.Popen(
                [sys.executable, "-m", "rl_training.bench.worker", job.to_json()],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                pass_fds=lock.descriptors(),
                start_new_session=True,  # Ctrl-C must reach only the bench: a second signal would end a job unsaved
            )
            try:
                while process.poll() is None and not stopping.wait(TICK):
                    pass
            finally:
                assert process.stdin is not None
                process.stdin.close()  # a process that has not ended saves and stops
                code = process.wait()
            if code == 0 or stopping.is_set():
                return None
            errors.seek(0)
            lines = errors.read().decode(errors="replace").strip().splitlines()
            return f"exit code {code}{f', {lines[-1]}' if lines else ''}"


@contextlib.contextmanager
def locked(job: Job, stopping: threading.Event | None = None) -> Iterator[Lock]:
    """Waits until no other process is working on the job, or until ``stopping`` is set."""
    stopping = stopping or threading.Event()
    job.path.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.closing(Lock(job.path.with_name(f".{job.path.name}.lock"))) as lock:
        while not lock.take() and not stopping.wait(0.2):
            pass
        yield lock
