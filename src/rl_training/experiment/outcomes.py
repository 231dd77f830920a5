"""What runs have reached, read for reports: a file that is missing or damaged is left out, never an error."""

from __future__ import annotations

import contextlib
import statistics
from pathlib import Path
from typing import Any

from rl_training.errors import CheckpointError
from rl_training.experiment.files import parse_json, read_small
from rl_training.experiment.layout import EVALUATION_FILE


def final_return(run: Path) -> float | None:
    """The mean return in the evaluation after training, if there was one."""
    returns = numbers_in(read_part(run / EVALUATION_FILE).get("returns"))
    return statistics.fmean(returns) if returns else None


def read_part(path: Path) -> dict[str, Any]:
    """The object in a JSON file of a run; empty if it cannot be read."""
    with contextlib.suppress(OSError, CheckpointError):
        found = parse_json(read_small(path), path)
        return found if isinstance(found, dict) else {}
    return {}


def numbers_in(values: Any) -> list[float]:
    """The finite numbers in what should be a list of them."""
    if not isinstance(values, list):
        return []
    return [
        float(value)
        for value in values
        if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e300
    ]
