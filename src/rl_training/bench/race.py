"""Time to solve: seconds of learning until the greedy policy first reaches a goal return and holds it.

Every ``EVERY`` env steps, ``EPISODES`` greedy episodes are played. Once their mean reaches the goal, the mean of ``HELD``
further episodes must reach it too. The clock starts when the agent is created and is paused during evaluations. It counts
the CPU seconds of the process and of its child processes, so that compilation is included.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections.abc import Iterator
from typing import Any

import numpy as np

from rl_training.bench.jobs import Job
from rl_training.bench.peers import PeerAgent, load_algorithm
from rl_training.experiment.config import TrainConfig
from rl_training.rng import FINAL_EPISODES, SELECTION_EPISODES
from rl_training.runtime.cadence import cpu_seconds
from rl_training.runtime.evaluation import EvaluationResult, Extent
from rl_training.runtime.signals import StopRequest
from rl_training.runtime.trainer import Trainer

EVERY, EPISODES, HELD = 1_000, 20, 100


class Clock:
    """CPU and wall-clock seconds since construction, without the pauses."""

    def __init__(self) -> None:
        self._start = self._now()

    @staticmethod
    def _now() -> np.ndarray[Any, Any]:
        return np.array([cpu_seconds(), time.perf_counter()])

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        before = self._now()
        try:
            yield
        finally:
            self._start += self._now() - before

    def read(self) -> dict[str, float]:
        cpu, wall = self._now() - self._start
        return {"cpu_seconds": round(float(cpu), 3), "wall_seconds": round(float(wall), 3)}


class _Solved(Exception):
    """Raised to end the training of a racer."""


class Racer(Trainer):
    """A trainer that stops at the first evaluation that reaches and holds the goal."""

    def __init__(self, config: TrainConfig, goal: float) -> None:
        self.clock = Clock()
        self._goal = goal
        super().__init__(config)

    def evaluate(
        self, extent: Extent, stop: StopRequest | None = None, *, stream: str = FINAL_EPISODES
    ) -> EvaluationResult | None:
        with self.clock.paused():
            result = super().evaluate(extent, stop, stream=stream)
            held = result is not None and result.mean_return >= self._goal
            if held:
                # Every evaluation begins with the same episodes. Those that led here are left out of the second check.
                again = super().evaluate(Extent(EPISODES + HELD), stop, stream=stream)
                held = again is not None and float(np.mean(again.returns[EPISODES:])) >= self._goal
        if held:
            raise _Solved
        return result


def race_ours(config: TrainConfig, goal: float) -> dict[str, Any]:
    """Races one seed of ours."""
    protocol = {
        **config.eval.model_dump(),
        "interval": EVERY,
        "episodes": EPISODES,
        "final_episodes": EPISODES,
        "budget": None,
    }
    racer = Racer(config.with_values(eval=protocol, output_dir=None), goal)
    with contextlib.closing(racer):
        try:
            racer.train(evaluate=False)  # the evaluation at the last step is one of those every EVERY steps, as the peer's
            solved = False
        except _Solved:
            solved = True
        return {"solved": solved, "steps": racer.env_steps, **racer.clock.read()}


def race_peer(job: Job, goal: float) -> dict[str, Any]:
    """Races one seed of the peer, on the budget that its settings are meant for."""
    assert job.peer is not None
    load_algorithm(job.peer)  # imports are not timed on either side
    clock = Clock()
    agent = PeerAgent(job.peer, job.load_config(), job.seed)

    solved = False

    def keep_going(step: int) -> bool:
        nonlocal solved
        with clock.paused():
            first = np.mean(agent.evaluate(EPISODES, SELECTION_EPISODES))
            solved = bool(first >= goal and np.mean(agent.evaluate(HELD, further=True)) >= goal)
        return not solved

    steps = agent.learn(job.peer.steps, EVERY, keep_going)
    return {"solved": solved, "steps": steps, **clock.read()}


def run_race(job: Job) -> None:
    """Races one seed of ours or of the peer, alone on one core with one thread."""
    assert job.race is not None
    if hasattr(os, "sched_setaffinity"):  # Linux only; elsewhere the single thread must do
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    job.write_description()
    job.note_beginning()
    with tempfile.TemporaryDirectory() as cache:
        # Compilation starts with an empty cache, except for torch's precompiled headers, which torch keeps elsewhere. It
        # stays within this process, so that the clock counts all of it.
        os.environ.update(TORCHINDUCTOR_CACHE_DIR=cache, TORCHINDUCTOR_COMPILE_THREADS="1")
        result = race_ours(job.load_config(), job.race) if job.peer is None else race_peer(job, job.race)
    job.write_result(result)
