"""Gives the command line anything but what it expects: ``make test-fuzz N=10000``.

Every example is drawn from its kind and number alone, so it can be repeated: ``--kind predictions --example 17`` shows it.
The answer must be a success with finite results or one sentence: no traceback, no hang, no nonsense.
"""

from __future__ import annotations

import argparse
import faulthandler
import os
import random
import shutil
import sys
import tempfile
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from reliability.fuzz_runs import run_directories
from reliability.fuzz_words import configs, environments, overrides, predictions, settings
from reliability.prepared import prepare
from reliability.processes import Teller, in_a_process
from reliability.results import append, read, without_places

RESULTS = "fuzz.jsonl"
BATCH = 50  # examples in one process
#: The number of examples of each kind in a hundred.
SHARES = {"overrides": 20, "configs": 20, "settings": 10, "predictions": 20, "run directories": 20, "environments": 10}
Fuzz = Callable[[random.Random, Path], tuple[Any, str | None]]


def kinds(runs: dict[str, Path]) -> dict[str, Fuzz]:
    return {
        "overrides": overrides,
        "configs": configs,
        "settings": settings,
        "predictions": partial(predictions, runs=runs),
        "run directories": partial(run_directories, runs=runs),
        "environments": environments,
    }


def try_one(kind: str, number: int, runs: dict[str, Path], place: Path) -> tuple[Any, str | None]:
    """One example, in an empty directory of its own."""
    folder = Path(tempfile.mkdtemp(dir=place))
    os.chdir(folder)
    try:
        return kinds(runs)[kind](random.Random(f"{kind} {number}"), folder)
    finally:
        os.chdir(place)
        shutil.rmtree(folder, ignore_errors=True)


def try_batch(kind: str, first: int, count: int, runs: dict[str, Path], place: Path, tell: Teller) -> int:
    """Tells the number of each example before it is tried, and what was found."""
    warnings.simplefilter("always")  # not once for all examples
    faulthandler.enable()
    for number in range(first, first + count):
        tell({"trying": number})
        example, wrong = try_one(kind, number, runs, place)
        if wrong is not None:
            tell({"number": number, "example": repr(example)[:1500], "wrong": wrong[:3000]})
    return 0


def run_batch(kind: str, first: int, count: int, runs: dict[str, Path], place: Path) -> tuple[int, list[dict[str, Any]]]:
    """The number of examples tried and what was wrong, a crash or a hang of the process included."""
    ended = in_a_process(partial(try_batch, kind, first, count, runs, place), place / "log", patience=300)
    tried = [reported["trying"] for reported in ended.reported if "trying" in reported]
    findings = [reported for reported in ended.reported if "wrong" in reported]
    if ended.code != 0 or "Traceback" in ended.printed:  # of the process itself, or of a worker process
        number = tried[-1] if tried else first
        findings.append({"number": number, "example": "", "wrong": f"exit code {ended.code}: {ended.printed[-2000:]}"})
    return len(tried), [
        {**one, "example": without_places(one["example"]), "wrong": without_places(one["wrong"])} for one in findings
    ]


def next_numbers() -> dict[str, int]:
    numbers = dict.fromkeys(SHARES, 0)
    for record in read(RESULTS):
        numbers[record["kind"]] = max(numbers[record["kind"]], record["first"] + record["tried"])
    return numbers


def play(examples: int, only: str | None) -> int:
    """Tries this many more examples; returns the number of findings."""
    with tempfile.TemporaryDirectory(prefix="fuzz-") as name:
        place = Path(name)
        runs: dict[str, Path] = {}

        def make(tell: Teller) -> int:
            tell({key: str(path) for key, path in prepare(place / "runs").items()})
            return 0

        (place / "runs").mkdir()
        made = in_a_process(make, place / "log")
        assert made.code == 0, made.printed
        runs = {key: Path(path) for key, path in made.reported[0].items()}
        numbers, found = next_numbers(), 0
        for kind, share in SHARES.items():
            left = examples if only == kind else 0 if only else examples * share // 100
            while left > 0:
                count = min(left, BATCH)
                tried, findings = run_batch(kind, numbers[kind], count, runs, place)
                append(RESULTS, [{"kind": kind, "first": numbers[kind], "tried": tried, "findings": findings}])
                for finding in findings:
                    print(f"{kind} {finding['number']}: {finding['example']}\n    {finding['wrong']}\n", flush=True)
                numbers[kind] += tried
                left -= max(1, tried)
                found += len(findings)
            print(f"{kind}: {numbers[kind]} so far", flush=True)
    return found


def show(kind: str, number: int) -> None:
    """Repeats one example in this process."""
    with tempfile.TemporaryDirectory(prefix="fuzz-") as name:
        place = Path(name)
        (place / "runs").mkdir()
        runs = prepare(place / "runs") if kind in ("predictions", "run directories") else {}
        example, wrong = try_one(kind, number, runs, place)
    print(f"{example}\n{wrong or 'nothing is wrong'}")


def summary(records: list[dict[str, Any]]) -> str:
    tried = {kind: sum(record["tried"] for record in records if record["kind"] == kind) for kind in SHARES}
    found = sum(len(record["findings"]) for record in records)
    return f"{sum(tried.values())} examples ({', '.join(f'{n} {kind}' for kind, n in tried.items())}), {found} findings"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--examples", type=int, default=1000)
    parser.add_argument("--kind", choices=SHARES)
    parser.add_argument("--example", type=int, help="show this one")
    arguments = parser.parse_args()
    if arguments.example is not None:
        show(arguments.kind, arguments.example)
        sys.exit(0)
    found = play(arguments.examples, arguments.kind)
    print(summary(read(RESULTS)))
    sys.exit(1 if found else 0)
