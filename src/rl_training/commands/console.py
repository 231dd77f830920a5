"""What all commands share: warnings, and the import of torch."""

from __future__ import annotations

import contextlib
import gc
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rl_training.runtime.evaluation import EvaluationResult


def warn(message: str) -> None:
    """Prints a warning, on one line."""
    print(f"warning: {message}", file=sys.stderr)


def success_of(evaluation: EvaluationResult) -> str:
    """The end of a line about an evaluation, if its environment reports successes."""
    return "" if evaluation.success_rate is None else f", success rate {evaluation.success_rate:.0%}"


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """Keeps the garbage collector away from what the import of torch makes, now and later: all of it stays, and looking for
    what does not takes a fifth of a short command's time."""
    if "torch" in sys.modules or not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
