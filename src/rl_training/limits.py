"""The limits that the system sets for this process; None on Windows, which does not report them in this way."""

from __future__ import annotations

import os
from pathlib import Path

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]


def address_limit() -> int | None:
    """Bytes of address space that ``ulimit -v`` allows."""
    return None if resource is None else _soft_limit(resource.RLIMIT_AS)


def addresses_left(own: Path = Path("/proc/self/statm")) -> int | None:
    """Bytes of address space that are left within the limit."""
    limit = address_limit()
    if limit is None:
        return None
    used = int(own.read_text("utf-8").split()[0]) * resource.getpagesize() if own.exists() else 0
    return max(limit - used, 0)


def file_limit() -> int | None:
    """Files that may be open at the same time: ``ulimit -n``."""
    return None if resource is None else _soft_limit(resource.RLIMIT_NOFILE)


def _soft_limit(which: int) -> int | None:
    limit, _ = resource.getrlimit(which)
    return None if limit == resource.RLIM_INFINITY else limit


def machine_memory() -> int | None:
    """Bytes of memory that the machine has."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return None
