"""What all commands share: warnings, and the import of torch."""

from __future__ import annotations

import contextlib
import gc
import sys
from collections.abc import Iterator


def warn(message: str) -> None:
    """Prints a warning, on one line."""
    print(f"warning: {message}", file=sys.stderr)


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
