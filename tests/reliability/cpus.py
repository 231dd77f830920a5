"""The fast tests as other CPUs compute them: ``make test-cpus``.

Libraries choose instructions by the CPU that they find, and with them the order of sums and the last bits of results.
Variables make them choose others; they are read when a library is loaded, so every variant has a process of its own.
``PYTHONPATH=src:tests python -m reliability.cpus --list`` numbers the variants, and ``--variant 3`` runs one of them.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from reliability.results import append

RESULTS = "cpus.jsonl"
TESTS = Path(__file__).parent.parent
#: The tests that train, or compare bits or numbers with a tolerance, besides those of a single algorithm.
NUMERIC = (
    "test_checkpoint_workflows.py", "test_collector.py", "test_compiled.py", "test_conformance.py", "test_golden.py",
    "test_gru.py", "test_matrix_products.py", "test_normalization.py", "test_observation_tree.py", "test_parts.py",
    "test_public_api.py", "test_rainbow_parts.py", "test_recurrent_models.py", "test_resume.py",
    "test_rollout_conformance.py", "test_state_bytes.py", "test_stateful_prediction.py",
)  # fmt: skip
OF_ONE_ALGORITHM = ("test_*_update.py", "test_*_trainer_smoke.py")


def cpu_flags() -> set[str]:
    """The instruction sets of this CPU, as Linux names them."""
    text = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    found = re.search(r"^flags\s*:(.*)$", text, re.MULTILINE)
    return set(found.group(1).split()) if found else set()


def numpy_features() -> str:
    """What NumPy would use of this CPU beyond its baseline. Asked in another process, which the answer must not change."""
    code = (
        "from numpy._core._multiarray_umath import __cpu_dispatch__ as d, __cpu_features__ as f; "
        "print(' '.join(n for n in d if f.get(n)))"
    )
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def variants() -> dict[str, dict[str, str]]:
    """Those that fit this machine: none asks for instructions that it lacks, or for those that it uses anyway. The first is
    the oldest CPU that can be had: all libraries without wide vectors at once."""
    flags, features = cpu_flags(), numpy_features()
    wide, wider = {"avx2", "fma"} <= flags, "avx512f" in flags
    narrow = [
        {"ATEN_CPU_CAPABILITY": "default"},
        {"ONEDNN_MAX_CPU_ISA": "SSE41"},
        {"MKL_CBWR": "COMPATIBLE"},
        {"NPY_DISABLE_CPU_FEATURES": features} if features else {},
        {"OPENBLAS_CORETYPE": "Nehalem"},
    ]
    found = [
        {name: value for one in narrow for name, value in one.items()},
        *narrow,
        {"ATEN_CPU_CAPABILITY": "avx2"} if wide and wider else {},
        {"ONEDNN_MAX_CPU_ISA": "AVX2"} if wide and wider else {},
        {"OPENBLAS_CORETYPE": "Haswell"} if wide and wider else {},
    ]
    return {" ".join(f"{name}={value}" for name, value in one.items()): one for one in found if one}


def run(name: str, variables: dict[str, str], tests: list[str], processes: int) -> dict[str, Any]:
    """The result of the tests under these variables: how many passed and how long they took, and the names of those that did
    not pass."""
    options = ["-n", str(processes), "--dist", "worksteal", "-p", "no:cacheprovider", "-rfE", "--tb=short"]
    command, env = [sys.executable, "-m", "pytest", *options, *tests], {**os.environ, **variables}
    done = subprocess.run(command, cwd=TESTS.parent, env=env, capture_output=True, text=True)
    last = done.stdout.strip().splitlines()[-1] if done.stdout.strip() else done.stderr[-300:]
    failed = re.findall(r"^(?:FAILED|ERROR) (\S+)", done.stdout, re.MULTILINE)
    print(f"{name}: {last}", *failed, sep="\n    ", flush=True)
    if done.returncode != 0:
        print(done.stdout[-6000:], flush=True)
    return {"variant": name, "code": done.returncode, "result": last, "failed": failed}


def table(records: list[dict[str, Any]]) -> list[list[str]]:
    """A row for the last result of each variant and scope."""
    last = {(record["variant"], record["scope"]): record for record in records}
    return [
        [f"`{variant}`", scope, record["result"], ", ".join(record["failed"]) or "none"]
        for (variant, scope), record in sorted(last.items())
    ]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--numeric", action="store_true", help="only the tests that train or compare numbers")
    parser.add_argument("--variant", type=int, help="only the variant of this number")
    parser.add_argument("--list", action="store_true", help="show the variants of this machine and their numbers")
    parser.add_argument("-n", "--processes", type=int, default=2)
    arguments = parser.parse_args()
    numeric = [TESTS / name for name in NUMERIC] + [path for name in OF_ONE_ALGORITHM for path in sorted(TESTS.glob(name))]
    chosen = [str(path) for path in numeric] if arguments.numeric else []
    scope = "numeric tests" if arguments.numeric else "all fast tests"
    worst = 0
    for number, (variant, values) in enumerate(variants().items(), start=1):
        if arguments.variant not in (None, number):
            continue
        if arguments.list:
            print(number, variant)
            continue
        result = run(variant, values, chosen, arguments.processes)
        append(RESULTS, [{"scope": scope, **result}])
        worst = max(worst, result["code"])
    sys.exit(worst)
