"""Measures what saving a large replay costs: bytes, seconds that the training loop is held up, memory and time to resume.

    python benchmarks/checkpoints.py                            measure this version and write the table of docs/benchmarks.md
    python benchmarks/checkpoints.py --before ../old/src        measure the package in another source tree as well
    python benchmarks/checkpoints.py --workloads frames-1e5     measure only this one

A full replay is saved once, and then three times with 5 % new each. Every measurement is a fresh process. The loop is held up
by the call that saves and by the first step after it; both are timed with the ring full, so that this step overwrites a row
that is being saved. Peak memory is compared with a process that does the same without saving.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

RESULTS = Path(__file__).parent / "results" / "checkpoints.json"
PAGE = Path(__file__).parent.parent / "docs" / "benchmarks.md"
WORKLOADS = {
    "cartpole-1e5": ("CartPole, 1e5 transitions", 100_000),
    "cartpole-1e6": ("CartPole, 1e6 transitions", 1_000_000),
    "frames-1e5": ("1e5 frames of 84x84", 100_000),
}
SAVES, NEW = 3, 0.05
RESUMES = 3  # the fastest of them counts
TOGETHER = 10_000  # transitions added per call while the replay is filled
EPISODE = 500


class Noise(gym.Env[Any, Any]):
    """Stacks of four frames of 84x84, so that the replay is one of frames."""

    observation_space = gym.spaces.Box(0, 255, (4, 84, 84), np.uint8)
    action_space = gym.spaces.Discrete(3)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return np.zeros((4, 84, 84), np.uint8), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return np.zeros((4, 84, 84), np.uint8), 0.0, False, False, {}


def make_trainer(workload: str, folder: Path, size: int) -> Any:
    from rl_training.experiment.config import resolve_config
    from rl_training.runtime.sessions import start_training

    frames = workload.startswith("frames")
    values = {
        "algo": "dqn",
        "env_id": "CartPole-v1",
        "output_dir": str(folder / "run"),
        "total_timesteps": 10 * size,
        "log": {"tensorboard": False},
        "algo_kwargs": {"buffer_size": size, **({"frame_stack": 4} if frames else {})},
    }
    if frames:
        values |= {"env_id": "Noise", "env_from_python": True}
    trainer = start_training(resolve_config(values), factory=Noise if frames else None, command="benchmark")
    trainer.collector.start()
    return trainer


def adder(workload: str, buffer: Any) -> Callable[[int], None]:
    """Adds this many transitions to a replay."""
    steps = frame_steps() if workload.startswith("frames") else None
    rng = np.random.default_rng(0)

    def add(count: int) -> None:
        from rl_training.types import Transitions

        while steps is not None and count > 0:
            buffer.add(next(steps))
            count -= 1
        while count > 0:
            now = min(count, TOGETHER)
            obs, next_obs = rng.standard_normal((2, now, 4)).astype(np.float32)
            reward = np.ones(now, np.float32)
            buffer.add(Transitions(obs, rng.integers(0, 2, now), reward, next_obs, reward))
            count -= now

    return add


def frame_steps() -> Iterator[Any]:
    from rl_training.types import Step

    rng, number = np.random.default_rng(0), 0
    obs = np.zeros((1, 4, 84, 84), np.uint8)
    while True:
        number += 1
        frame = np.frombuffer(rng.bytes(84 * 84), np.uint8).reshape(1, 1, 84, 84)
        next_obs = np.concatenate([obs[:, 1:], frame], axis=1)
        over = np.array([number % EPISODE == 0])
        yield Step(obs, np.zeros(1, np.int64), np.ones(1, np.float32), next_obs, np.array([False]), over)
        obs = np.repeat(frame, 4, axis=1) if over[0] else next_obs


def peak_memory() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def save(workload: str, folder: Path, *, saving: bool) -> dict[str, Any]:
    """Fills a replay, and saves it four times."""
    size = WORKLOADS[workload][1]
    trainer = make_trainer(workload, folder, size)
    add = adder(workload, trainer.learner.replay.buffer)
    add(size)
    seen: set[int] = set()
    saves = []
    for number in range(1 + SAVES):
        if number:
            add(int(NEW * size) - 1)
        trainer.env_steps += size if not number else int(NEW * size)
        started = time.perf_counter()
        if saving:
            trainer.checkpoints.save_last()
        add(1)
        held = time.perf_counter() - started
        if saving:
            trainer.run.wait()
        written = time.perf_counter() - started
        saves.append({"bytes": new_bytes(folder / "run" / "checkpoints", seen), "held_up": held, "written_after": written})
    trainer.close()
    return {"saves": saves, "peak": peak_memory()}


def new_bytes(checkpoints: Path, seen: set[int]) -> int:
    """The size of the files that were not there before."""
    total = 0
    for file in checkpoints.rglob("*"):
        found = file.lstat()
        if file.is_file() and not file.is_symlink() and found.st_ino not in seen:
            seen.add(found.st_ino)
            total += found.st_size
    return total


def resume(workload: str, folder: Path) -> dict[str, Any]:
    """Resumes from the last checkpoint."""
    from rl_training.runtime.sessions import resume_training

    factory = Noise if workload.startswith("frames") else None
    started = time.perf_counter()
    trainer: Any = resume_training(folder / "run", factory=factory, warn=print)
    seconds = time.perf_counter() - started
    assert len(trainer.learner.replay) > 0.9 * WORKLOADS[workload][1]
    trainer.close()
    return {"seconds": seconds, "peak": peak_memory()}


def in_process(source: Path, action: str, workload: str, folder: Path) -> dict[str, Any]:
    """Runs one of the measurements in a process of its own, with the package of this source tree."""
    command = [sys.executable, __file__, "--worker", action, "--workloads", workload, "--folder", str(folder)]
    environment = {**os.environ, "PYTHONPATH": str(source)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr}")
    return dict(json.loads(done.stdout.splitlines()[-1]))


def measure(source: Path, workload: str) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as other:
        without = in_process(source, "without", workload, Path(other))
        saved = in_process(source, "save", workload, Path(folder))
        resumes = [in_process(source, "resume", workload, Path(folder)) for _ in range(RESUMES)]
        resumed = min(resumes, key=lambda found: float(found["seconds"]))
    return {"without": without, "save": saved, "resume": resumed}


def table(results: dict[str, Any]) -> str:
    from rl_training.bench.document import markdown_table

    rows = []
    for workload, (title, _) in WORKLOADS.items():
        for version in ("before", "after"):
            found = results.get(workload, {}).get(version)
            if found is None:
                continue
            first, *later = found["save"]["saves"]
            rows.append(
                [
                    title,
                    version,
                    f"{first['bytes'] / 1e6:.1f}",
                    f"{max(save['bytes'] for save in later) / 1e6:.2f}",
                    f"{1000 * first['held_up']:.0f}",
                    f"{1000 * max(save['held_up'] for save in later):.0f}",
                    f"{found['without']['peak'] / 1e6:.0f}",
                    f"{found['save']['peak'] / found['without']['peak']:.2f}",
                    f"{found['resume']['seconds']:.2f}",
                    f"{found['resume']['peak'] / found['without']['peak']:.2f}",
                ]
            )
    header = ["replay", "version", "first save, MB", "a later save, MB", "loop held up, first, ms", "later, ms"]
    header += ["peak without saving, MB", "with saving, times that", "resume, s", "its peak, times that"]
    return markdown_table(header, rows)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workloads", nargs="+", choices=WORKLOADS, default=list(WORKLOADS), metavar="NAME")
    parser.add_argument("--before", type=Path, metavar="SRC", help="the source tree of an earlier version to measure as well")
    parser.add_argument("--results", type=Path, default=RESULTS, metavar="JSON", help="file with the measurements")
    parser.add_argument("--page", type=Path, default=PAGE, metavar="MD", help="page for the table")
    parser.add_argument("--worker", choices=("without", "save", "resume"), help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker == "resume":
        print(json.dumps(resume(args.workloads[0], args.folder)))
        return 0
    if args.worker:
        print(json.dumps(save(args.workloads[0], args.folder, saving=args.worker == "save")))
        return 0
    from rl_training.bench.document import write_section
    from rl_training.bench.machine import machine, today

    results = json.loads(args.results.read_text("utf-8")) if args.results.exists() else {}
    sources = {"before": args.before, "after": Path(__file__).resolve().parent.parent / "src"}
    for workload in args.workloads:
        for version, source in sources.items():
            if source is not None:
                results.setdefault(workload, {})[version] = {"date": today(), **measure(source.resolve(), workload)}
    results["machine"] = machine()
    args.results.write_text(json.dumps(results, indent=1) + "\n", "utf-8")
    write_section(args.page, "checkpoints", f"{table(results)}\n\nMeasured on {results['machine']}.")
    print(table(results))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
