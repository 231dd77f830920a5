"""Runs one candidate of one workload, alone on as many cores as it has threads, and prints its measurement as one JSON line.

python benchmarks/worker.py w1 ours --seed 0
"""

from __future__ import annotations

import argparse
import json
import os
from dataclasses import asdict

from workloads import WORKLOADS

THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")


def settle(threads: int, core: int | None) -> None:
    """Pins the process and sets its threads. Must run before numpy and torch are imported, which size their thread pools."""
    os.environ.update(dict.fromkeys(THREAD_VARIABLES, str(threads)))
    if hasattr(os, "sched_setaffinity"):  # Linux only; elsewhere the number of threads must do
        allowed = sorted(os.sched_getaffinity(0))
        wanted = allowed[-threads:] if core is None else list(range(core, core + threads))
        if len(wanted) < threads or not set(wanted) <= set(allowed):  # the kernel would silently grant fewer
            raise SystemExit(
                f"this needs {threads} core(s){'' if core is None else f' from {core} on'}; the allowed cores are {allowed}"
            )
        os.sched_setaffinity(0, wanted)
    import torch

    torch.set_num_threads(threads)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workload", choices=WORKLOADS)
    parser.add_argument("candidate")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--core", type=int, help="the first core to run on (default: the last ones allowed)")
    args = parser.parse_args()
    workload = WORKLOADS[args.workload]
    candidate = workload.candidates.get(args.candidate)
    if candidate is None:
        parser.error(f"{args.workload} has the candidates {', '.join(workload.candidates)}, not '{args.candidate}'")
    if not candidate.is_installed:
        parser.error(f"{args.candidate} needs {candidate.package}, which is not installed")
    settle(workload.threads, args.core)
    measurement = candidate.load()(workload.settings, args.seed)
    print(json.dumps(asdict(measurement)))


if __name__ == "__main__":
    main()
