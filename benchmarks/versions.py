"""Compares the speed of two versions of this repository, for refactorings that must not cost anything.

    python benchmarks/versions.py OTHER_TREE [--workloads w1 w1c] [--rounds 5]

OTHER_TREE is a checkout of the other version (``git worktree add ../before COMMIT``). For each measurement, a worker process
of each version runs on the same core. They take turns fifty times a second, so that both see the same machine, however its
speed changes. A ratio is this version's rate per CPU second divided by the other's; above 1, this version is faster.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from workloads import COMPILED, OURS, WORKLOADS

HERE = Path(__file__).resolve().parent.parent
SLICE = 0.02  # seconds


def take_turns(processes: Sequence[subprocess.Popen[str]]) -> None:
    """Lets worker processes, each in a session of its own, run one at a time until all have ended. If this is interrupted,
    none is left behind."""
    try:
        for process in processes:
            _signal(process, signal.SIGSTOP)
        while running := [process for process in processes if process.poll() is None]:
            for process in running:
                _signal(process, signal.SIGCONT)
                time.sleep(SLICE)
                _signal(process, signal.SIGSTOP)
    finally:
        for process in processes:
            _signal(process, signal.SIGKILL)


def _signal(process: subprocess.Popen[str], number: signal.Signals) -> None:
    """Sends a signal to the process and to those that it has started, such as compilers."""
    if process.poll() is None:
        os.killpg(process.pid, number)


def rates(trees: list[Path], workload: str, candidate: str, seed: int, core: int, cache: str) -> list[dict[str, float]]:
    """The rates per CPU second of each tree. ``cache`` is a directory for compiled updates, which are not measured."""
    with tempfile.TemporaryDirectory() as folder:
        processes, outputs = [], []
        for number, tree in enumerate(trees):
            outputs.append(Path(folder, f"{number}.json"))
            env = {
                **os.environ,
                "PYTHONPATH": f"{tree / 'src'}{os.pathsep}{tree / 'benchmarks'}",
                "TORCHINDUCTOR_CACHE_DIR": str(Path(cache, tree.name)),
            }
            command = [sys.executable, str(tree / "benchmarks" / "worker.py"), workload, candidate]
            command += ["--seed", str(seed), "--core", str(core)]
            with outputs[-1].open("w") as output:
                processes.append(subprocess.Popen(command, stdout=output, text=True, env=env, start_new_session=True))
        take_turns(processes)
        if any(process.returncode for process in processes):
            raise SystemExit(f"{workload}, {candidate}: a worker has failed")
        lines = [json.loads(output.read_text("utf-8").splitlines()[-1]) for output in outputs]
    if lines[0]["work"] != lines[1]["work"]:
        raise SystemExit(f"{workload}, {candidate}: not the same work, {lines[0]['work']} and {lines[1]['work']}")
    return [{name: rate["count"] / rate["cpu_seconds"] for name, rate in line["rates"].items()} for line in lines]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("other", type=Path, help="a checkout of the other version")
    parser.add_argument("--workloads", nargs="+", choices=WORKLOADS, default=list(WORKLOADS), metavar="NAME")
    parser.add_argument("--rounds", type=int, default=5, help="number of runs of each version (default: 5)")
    parser.add_argument(
        "--core", type=int, default=max(os.sched_getaffinity(0)), help="the core to run on (default: the last)"
    )
    parser.add_argument("--candidates", nargs="+", choices=(OURS, COMPILED), default=[OURS, COMPILED], metavar="NAME")
    args = parser.parse_args()
    other = args.other.resolve()
    for workload in args.workloads:
        for candidate in args.candidates:
            if candidate not in WORKLOADS[workload].candidates:
                continue
            ratios: dict[str, list[float]] = {}
            with tempfile.TemporaryDirectory() as cache:
                for seed in range(args.rounds):
                    order = [HERE, other][:: 1 if seed % 2 == 0 else -1]
                    found = dict(zip(order, rates(order, workload, candidate, seed, args.core, cache), strict=True))
                    for name, rate in found[HERE].items():
                        ratios.setdefault(name, []).append(rate / found[other][name])
            for name, values in ratios.items():
                low, middle, high = min(values), statistics.median(values), max(values)
                print(f"{workload}, {candidate}, {name}: {middle:.3f} ({low:.3f} to {high:.3f})", flush=True)


if __name__ == "__main__":
    main()
