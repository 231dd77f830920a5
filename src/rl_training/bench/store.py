"""The results of the bench as committed files: by config, by who ran it, by seed."""

from __future__ import annotations

import fcntl
import json
import os
from pathlib import Path
from typing import Any

from rl_training.errors import ConfigError

#: by seed
Outcomes = dict[str, dict[str, Any]]


def load_results(path: Path) -> dict[str, Outcomes]:
    """By config, or by what the file has instead; empty if there is none yet."""
    if not path.exists():
        return {}
    try:
        results: dict[str, Outcomes] = json.loads(path.read_text("utf-8"))
    except ValueError as error:
        raise ConfigError(f"{path} is not a file of results: {error}") from error
    return results


def record(path: Path, key: str, seed: int, outcome: dict[str, Any]) -> None:
    """Adds an outcome, or replaces it, while no other bench does."""
    path.parent.mkdir(parents=True, exist_ok=True)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        results = load_results(path)
        results.setdefault(key, {})[str(seed)] = outcome
        temporary = path.with_name(f".{path.name}")
        temporary.write_text(_dump(results), "utf-8")
        temporary.replace(path)
    finally:
        os.close(folder)


def _dump(results: dict[str, Outcomes]) -> str:
    """One outcome a line, so that a difference shows what was run anew."""
    blocks = []
    for key, outcomes in sorted(results.items()):
        lines = [f"  {json.dumps(seed)}: {json.dumps(outcomes[seed], sort_keys=True)}" for seed in sorted(outcomes, key=int)]
        blocks.append(f" {json.dumps(key)}: {{\n" + ",\n".join(lines) + "\n }")
    return "{\n" + ",\n".join(blocks) + "\n}\n"


def by_seed(outcomes: Outcomes) -> list[dict[str, Any]]:
    """In the order of the seeds."""
    return [outcomes[seed] for seed in sorted(outcomes, key=int)]
