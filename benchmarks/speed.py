"""Measures our speed beside that of the peers and prints the ratios.

    python benchmarks/speed.py [--workloads w1 w1c replay] [--rounds 3] [--json FILE] [--report]

Each measurement is a fresh process on one core with one thread, and the candidates take turns, so that a slow minute of
the machine hits all of them. Ratios are of rates per CPU second: other programs on the machine then count for little.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from document import write_section
from measure import Measurement, Rate
from report import Results, Series, profile, table, work_differences
from workloads import WORKLOADS, package_version

WORKER = Path(__file__).with_name("worker.py")
COMMON_PACKAGES = ("torch", "numpy", "gymnasium")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workloads", nargs="+", choices=WORKLOADS, default=list(WORKLOADS))
    parser.add_argument("--rounds", type=int, default=3, help="how often each candidate runs (default: 3)")
    parser.add_argument("--core", type=int, help="the core to run on (default: the last one allowed)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the raw figures and the versions here")
    parser.add_argument("--report", action="store_true", help="put the table into docs/benchmarks.md")
    args = parser.parse_args()
    if args.rounds < 1:
        parser.error("--rounds must be at least 1")
    results = {name: measure(name, args.rounds, args.core) for name in args.workloads}
    print(table(results))
    for name in results:
        print(f"{name}: {WORKLOADS[name].title}")
    differences = work_differences(results)
    for sentence in differences:
        print(f"not comparable: {sentence}")
    if args.json is not None:
        args.json.write_text(json.dumps(as_json(results), indent=1) + "\n", "utf-8")
    print(profile(results))
    if args.report:
        write_section("profile", profile(results), "performance.md")
        versions = ", ".join(f"{name} {version}" for name, version in as_json(results)["versions"].items())
        write_section("speed", f"{table(results)}\n\n{args.rounds} rounds; {versions}; {platform.machine()}.")
    failed = any(series.absent == "failed" for by_name in results.values() for series in by_name.values())
    return 1 if failed or differences else 0


def measure(workload_name: str, rounds: int, core: int | None) -> dict[str, Series]:
    """All candidates of a workload in turns. One that fails is not asked again."""
    candidates = WORKLOADS[workload_name].candidates
    results = {
        name: Series(absent=None if candidate.is_installed else "not installed") for name, candidate in candidates.items()
    }
    for seed in range(rounds):
        for name, series in results.items():
            if series.absent is not None:
                continue
            print(f"{workload_name}, round {seed + 1} of {rounds}: {name}", file=sys.stderr, flush=True)
            measurement = run_worker(workload_name, name, seed, core)
            if measurement is None:
                series.absent = "failed"
            else:
                series.rounds.append(measurement)
    return results


def run_worker(workload_name: str, candidate_name: str, seed: int, core: int | None) -> Measurement | None:
    """One measurement in a process of its own; None, with the error on standard error, if that fails."""
    command: Sequence[str] = (sys.executable, str(WORKER), workload_name, candidate_name, "--seed", str(seed))
    if core is not None:
        command = (*command, "--core", str(core))
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        return None
    fields: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    rates = {name: Rate(**rate) for name, rate in fields.pop("rates").items()}
    return Measurement(rates=rates, **fields)


def as_json(results: Results) -> dict[str, Any]:
    """Everything measured, and what it was measured with."""
    packages = {candidate.package for name in results for candidate in WORKLOADS[name].candidates.values()}
    versions = {name: version for name in sorted({*packages, *COMMON_PACKAGES}) if (version := package_version(name))}
    return {
        "versions": {"python": platform.python_version(), **versions},
        "machine": platform.machine(),
        "workloads": {
            name: {
                "settings": asdict(WORKLOADS[name].settings),
                "bars": dict(WORKLOADS[name].bars),
                "candidates": {candidate: asdict(series) for candidate, series in by_name.items()},
            }
            for name, by_name in results.items()
        },
    }


if __name__ == "__main__":
    sys.exit(main())
