"""Measures our speed and that of the peers, and writes the table and the chart of docs/benchmarks.md.

    python benchmarks/speed.py [--workloads w1 w1c replay] [--rounds 5]   measure these, keep the results of the others
    python benchmarks/speed.py --report                                   measure nothing, write the page again
    python benchmarks/speed.py --quick                                    measure a small subset and only print it

Each measurement is a fresh process on one core with one thread, or on as many as the workload specifies. The candidates take
turns, so that a slow minute of the machine affects all of them. Ratios compare rates per CPU second, on which other programs
on the machine have little effect. With several threads, ratios compare wall-clock rates.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from charts import draw_speed
from measure import Measurement, Rate
from report import Series, compile_times, outcomes, profile, table, work_differences
from workloads import OURS, WORKLOADS

from rl_training.bench.document import write_section
from rl_training.bench.machine import machine, today, versions

WORKER = Path(__file__).with_name("worker.py")
RESULTS = Path(__file__).parent / "results" / "speed.json"
PAGE = Path(__file__).parent.parent / "docs" / "benchmarks.md"
#: Under five minutes in total, with a sample of each kind.
QUICK, QUICK_ROUNDS = ("w7", "w7r", "w4r"), 2


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workloads", nargs="+", choices=WORKLOADS, default=list(WORKLOADS), metavar="NAME")
    parser.add_argument("--rounds", type=int, default=5, help="number of runs per candidate (default: 5)")
    parser.add_argument("--core", type=int, help="the core to run on (default: the last one allowed)")
    parser.add_argument("--results", type=Path, default=RESULTS, metavar="JSON", help="file with the measurements")
    parser.add_argument("--page", type=Path, default=PAGE, metavar="MD", help="page for the table; the chart goes beside it")
    parser.add_argument("--report", action="store_true", help="measure nothing; only write the page again")
    parser.add_argument("--quick", action="store_true", help="measure a subset in under five minutes; write nothing")
    args = parser.parse_args()
    if args.rounds < 1:
        parser.error("--rounds must be at least 1")
    if args.core is not None and not 0 <= args.core < (os.cpu_count() or 1):
        parser.error(f"--core {args.core}: this machine has the cores 0 to {(os.cpu_count() or 1) - 1}")
    if args.quick:
        args.workloads, args.rounds = QUICK, QUICK_ROUNDS
    measured: dict[str, dict[str, Series]] = {}
    known = {} if args.quick else load_measurements(args.results)
    for name in () if args.report else args.workloads:
        measured[name] = measure(name, args.rounds, args.core)
        if measured[name][OURS].absent is not None:
            continue  # there is nothing to compare with: keep the previous results
        known[name] = as_json(name, measured[name])
        if not args.quick:  # after each workload, so that an interruption loses only the current one
            args.results.parent.mkdir(parents=True, exist_ok=True)
            args.results.write_text(json.dumps({"workloads": in_order(known)}, indent=1) + "\n", "utf-8")
    text = report(known, None if args.quick else args.page)
    print(text)
    failed = any(series.absent == "failed" for by_name in measured.values() for series in by_name.values())
    return 1 if failed or work_differences(measured) else 0


def measure(workload_name: str, rounds: int, core: int | None) -> dict[str, Series]:
    """Measures all candidates of a workload in turns. One that fails is not run again."""
    workload = WORKLOADS[workload_name]
    results = {
        name: Series(absent=None if candidate.is_installed else "not installed", threads=workload.threads)
        for name, candidate in workload.candidates.items()
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
    """One measurement in a separate process; None, with the error on standard error, if that fails."""
    command: Sequence[str] = (sys.executable, str(WORKER), workload_name, candidate_name, "--seed", str(seed))
    if core is not None:
        command = (*command, "--core", str(core))
    with tempfile.TemporaryDirectory() as cache:  # an empty cache
        env = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": cache}
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False, env=env)
    if done.returncode != 0:
        return None
    return _measurement(json.loads(done.stdout.splitlines()[-1]))


def _measurement(fields: Mapping[str, Any]) -> Measurement:
    rates = {name: Rate(**rate) for name, rate in fields["rates"].items()}
    return Measurement(**{**fields, "rates": rates})


def as_json(workload_name: str, results: Mapping[str, Series]) -> dict[str, Any]:
    """Everything measured for a workload, and what it was measured with."""
    packages = {candidate.package for workload in WORKLOADS.values() for candidate in workload.candidates.values()}
    return {
        "date": today(),
        "versions": versions(packages),
        "machine": machine(),
        "settings": asdict(WORKLOADS[workload_name].settings),
        "candidates": {candidate: asdict(series) for candidate, series in results.items()},
    }


def in_order(known: Mapping[str, Any]) -> dict[str, Any]:
    """Workloads in the order of the table; those that no longer exist are dropped."""
    return {name: known[name] for name in WORKLOADS if name in known}


def load_measurements(path: Path) -> dict[str, Any]:
    """The stored measurements by workload. Older files gave the versions once for all workloads, and no date."""
    if not path.exists():
        return {}
    data = json.loads(path.read_text("utf-8"))
    common = {"date": "undated", "versions": data.get("versions", {}), "machine": data.get("machine", "")}
    return {name: {**common, **fields} for name, fields in data["workloads"].items()}


def report(known: Mapping[str, Any], page: Path | None) -> str:
    """The table, what it was measured with, and any warnings about it. Also written to the page, if there is one."""
    known = in_order(known)
    results = {name: series_of(fields["candidates"], WORKLOADS[name].threads) for name, fields in known.items()}
    parts = [table(results), "\n".join(f"- {name}: {WORKLOADS[name].title}" for name in results)]
    if times := compile_times(results):
        parts.append("Compile times with an empty cache, not included in the rates: " + "; ".join(times) + ".")
    parts += outcomes(results)
    parts += [f"NOT COMPARABLE: {sentence}." for sentence in work_differences(results)]
    parts += [
        f"OUTDATED: {name} was measured with settings that have changed since."
        for name, fields in known.items()
        if _differ(fields["settings"], asdict(WORKLOADS[name].settings))
    ]
    if page is not None and (missing := _not_measured(known)):
        parts.append(f"Not measured: {', '.join(missing)}.")
    parts.append(_made_with(known, results))
    if page is not None:
        if draw_speed(results, page.parent / "charts" / "speed.svg"):
            parts.insert(0, "![speed against the fastest peer](charts/speed.svg)")
        write_section(page, "speed", "\n\n".join(parts))
        write_section(page.with_name("performance.md"), "profile", profile(results))
    return "\n\n".join(parts)


def _not_measured(known: Mapping[str, Any]) -> list[str]:
    """Workloads without measurements, and candidates that were added after their workload was measured."""
    missing = []
    for name, workload in WORKLOADS.items():
        others = [key for key in workload.candidates if name in known and key not in known[name]["candidates"]]
        if name not in known or others:
            missing.append(name + (f" ({'; '.join(others)})" if others else ""))
    return missing


def series_of(candidates: Mapping[str, Any], threads: int) -> dict[str, Series]:
    """Stored measurements of a workload, by candidate."""
    return {
        name: Series([_measurement(fields) for fields in series["rounds"]], series["absent"], threads)
        for name, series in candidates.items()
    }


def _differ(then: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
    """Whether the settings differ. A setting that did not exist then counts as having its present default."""
    then, now = (json.loads(json.dumps(settings)) for settings in (then, now))  # JSON turns tuples into lists
    return any(now.get(key) != value for key, value in then.items())


def _made_with(known: Mapping[str, Any], results: Mapping[str, Mapping[str, Series]]) -> str:
    """A line for each set of workloads that were measured under the same conditions, with the command to repeat them."""
    alike: dict[str, list[str]] = {}
    rounds: dict[str, int] = {}
    for name, fields in known.items():
        rounds[name] = max((len(series.rounds) for series in results[name].values()), default=0)
        tools = ", ".join(f"{package} {version}" for package, version in fields["versions"].items())
        alike.setdefault(f"{fields['date']}, {rounds[name]} rounds; {tools}; {fields['machine']}", []).append(name)
    lines = []
    for text, names in alike.items():
        command = ["python", "benchmarks/speed.py", "--workloads", *names, "--rounds", str(rounds[names[0]])]
        lines.append(f"- {', '.join(names)}: {text}; `{shlex.join(command)}`")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
