"""Whether what is about to be allocated fits the machine. Without asking, the failure comes hours later."""

from __future__ import annotations

import os
from pathlib import Path

from rl_training.errors import ConfigError


def available_memory() -> int | None:
    """Bytes that can be used without swapping; None where the system does not tell."""
    meminfo = Path("/proc/meminfo")
    if meminfo.exists():
        for line in meminfo.read_text("utf-8").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError):
        return None


def require_memory(needed: int, what: str) -> None:
    """Refuses what cannot fit, and names the setting to change."""
    available = available_memory()
    if available is not None and needed > available:
        raise ConfigError(
            f"{what} needs {needed / 1e9:.1f} GB, but only {available / 1e9:.1f} GB of memory are free; lower "
            "algo_kwargs.buffer_size"
        )
