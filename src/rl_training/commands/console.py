"""Output that all commands share."""

from __future__ import annotations

import sys


def warn(message: str) -> None:
    """Prints a warning, on one line."""
    print(f"warning: {message}", file=sys.stderr)
