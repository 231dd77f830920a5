"""Jobs as tasks of Ray, with a stand-in for Ray: a task that has to stop is cancelled, alone, and counts as finished."""

from __future__ import annotations

import io
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from conftest import tiny_values

from rl_training.bench.jobs import Job
from rl_training.bench.on_ray import RayRunner


class Task:
    """Runs until it is cancelled."""

    def __init__(self, job: str) -> None:
        self.label, self.cancelled = Job.from_json(job).label, threading.Event()


class PatientRay:
    """Ray with tasks that never end by themselves."""

    exceptions = SimpleNamespace(RayError=RuntimeError)

    def __init__(self) -> None:
        self.tasks: list[Task] = []

    def remote(self, function: Any) -> Any:
        def start(job: str, version: str) -> Task:
            self.tasks.append(Task(job))
            return self.tasks[-1]

        return SimpleNamespace(options=lambda **given: SimpleNamespace(remote=start))

    def wait(self, tasks: list[Task], timeout: float) -> tuple[list[Task], list[Task]]:
        return (tasks, []) if tasks[0].cancelled.wait(0.01) else ([], tasks)

    def cancel(self, task: Task) -> None:
        task.cancelled.set()


def test_a_job_that_is_ended_is_cancelled_and_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("tiny.yaml").write_text(yaml.safe_dump(tiny_values("dqn")))
    ray = PatientRay()
    jobs = [Job("tiny.yaml", seed, tmp_path / "runs") for seed in range(2)]
    runner = RayRunner(ray, jobs, None, io.StringIO(), expected=2)
    finished: list[Job] = []
    looks = 0

    def watch() -> None:
        nonlocal looks
        looks += 1
        assert looks < 50, "a job that was ended goes on"
        if len(ray.tasks) == 2 and not finished:
            runner.end(jobs[1])
        if finished == [jobs[1]]:
            assert {task.label: task.cancelled.is_set() for task in ray.tasks} == {jobs[0].label: False, jobs[1].label: True}
            runner.end(jobs[0])

    def note(job: Job) -> str:
        finished.append(job)
        return "pruned"

    monkeypatch.setattr("rl_training.bench.runner.WATCH_SECONDS", 0.02)
    assert runner.run(note, watch=watch) == []
    assert finished == [jobs[1], jobs[0]]
