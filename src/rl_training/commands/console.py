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
    """Switches the garbage collector off for the import of torch: all that it makes stays, and looking for what does not
    takes a tenth of the import's time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
