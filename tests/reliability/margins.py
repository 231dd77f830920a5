"""The margins of the tests that learn until a figure is reached: ``make test-margins``.

Measures each of them over 20 seeds, as this CPU computes and, with ``--narrow``, as one without wide vector instructions.
"""

from __future__ import annotations

import argparse
import importlib
import os
import statistics
import subprocess
import sys
from typing import Any

import learning

from reliability.results import append, read

RESULTS = "margins.jsonl"
MODULES = (
    "test_c51_update",
    "test_discrete_sac_update",
    "test_dqn_trainer_smoke",
    "test_drqn_update",
    "test_drqv2_trainer_smoke",
    "test_iqn_update",
    "test_ppo_trainer_smoke",
    "test_qr_dqn_update",
    "test_r2d2_trainer_smoke",
    "test_sac_trainer_smoke",
    "test_sac_update",
)
#: What makes libraries compute as a CPU of fifteen years ago does.
NARROW = {"ATEN_CPU_CAPABILITY": "default", "ONEDNN_MAX_CPU_ISA": "SSE41"}


def measure(seeds: int, cpu: str, only: str) -> bool:
    """Measures what is not in the results yet; returns whether everything measured now holds."""
    for module in MODULES:
        importlib.import_module(module)
    known = {(record["task"], record["bound"], record["seed"], record["cpu"]) for record in read(RESULTS)}
    held = True
    for task in (task for task in learning.TASKS if only in task.name):
        for seed in range(seeds):
            if (task.name, task.bound, seed, cpu) in known:
                continue
            value = task.measure(seed)
            held = held and task.holds(value)
            record = {"task": task.name, "bound": task.bound, "above": task.above, "seed": seed, "cpu": cpu, "value": value}
            append(RESULTS, [record])
            print(record, "" if task.holds(value) else "MISSED", flush=True)
    return held


def table(records: list[dict[str, Any]]) -> list[list[str]]:
    """A row for each task and CPU: the bound, the seeds that kept it, the worst and the median value."""
    groups: dict[tuple[Any, ...], list[float]] = {}
    for record in records:
        groups.setdefault((record["task"], record["cpu"], record["bound"], record["above"]), []).append(record["value"])
    rows = []
    for (task, cpu, bound, above), values in sorted(groups.items()):
        kept = sum(value > bound if above else value < bound for value in values)
        worst = (min if above else max)(values)
        sign = ">" if above else "<"
        middle = statistics.median(values)
        rows.append([task, cpu, f"{sign} {bound:g}", f"{kept} of {len(values)}", f"{worst:.3g}", f"{middle:.3g}"])
    return rows


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--narrow", action="store_true")
    parser.add_argument("--only", default="", help="tasks whose name contains this")
    parser.add_argument("--cpu", default="as it is", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.narrow:  # read when libraries are loaded, hence in a new process
        options = ["--seeds", str(arguments.seeds), "--only", arguments.only, "--cpu", "narrow"]
        command = [sys.executable, "-m", "reliability.margins", *options]
        sys.exit(subprocess.run(command, env={**os.environ, **NARROW}).returncode)
    sys.exit(0 if measure(arguments.seeds, arguments.cpu, arguments.only) else 1)
