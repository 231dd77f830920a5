"""The results of the bench, in JSON files that are committed."""

from __future__ import annotations

import contextlib
import json
import time
from pathlib import Path
from typing import Any

from rl_training.errors import ConfigError
from rl_training.experiment.lock import Lock

#: Outcomes by seed.
Outcomes = dict[str, dict[str, Any]]


def load_results(path: Path) -> dict[str, Outcomes]:
    """The outcomes by config, or by race in a file of races; empty if there is no file yet."""
    if not path.exists():
        return {}
    try:
        results: dict[str, Outcomes] = json.loads(path.read_text("utf-8"))
    except ValueError as error:
        raise ConfigError(f"{path} is not a results file: {error}") from error
    return results


def record(path: Path, key: str, seed: int, outcome: dict[str, Any]) -> None:
    """Adds or replaces an outcome, holding a lock against other benches."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.closing(Lock(path.with_name(f".{path.name}.lock"))) as lock:
        while not lock.take():
            time.sleep(0.05)
        results = load_results(path)
        results.setdefault(key, {})[str(seed)] = outcome
        temporary = path.with_name(f".{path.name}")
        temporary.write_text(_dump(results), "utf-8")
        temporary.replace(path)


def _dump(results: dict[str, Outcomes]) -> str:
    """Writes one outcome per line, so that a diff shows which runs are new."""
    blocks = []
    for key, outcomes in sorted(results.items()):
        lines = [f"  {json.dumps(seed)}: {json.dumps(outcomes[seed], sort_keys=True)}" for seed in sorted(outcomes, key=int)]
        blocks.append(f" {json.dumps(key)}: {{\n" + ",\n".join(lines) + "\n }")
    return "{\n" + ",\n".join(blocks) + "\n}\n"


def by_seed(outcomes: Outcomes) -> list[dict[str, Any]]:
    """The outcomes in the order of their seeds."""
    return [outcomes[seed] for seed in sorted(outcomes, key=int)]
