"""What all commands say in the same way."""

from __future__ import annotations

import sys


def warn(message: str) -> None:
    """Prints a warning, on one line."""
    print(f"warning: {message}", file=sys.stderr)
