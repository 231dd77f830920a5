"""Checks that a planned allocation fits into memory. Without this check, a run could fail hours later."""

from __future__ import annotations

import contextlib
from pathlib import Path

from rl_training.errors import ConfigError
from rl_training.limits import addresses_left, machine_memory

#: By version of control groups: the limit, the usage, and how much of the usage is cached files.
GROUP_FILES = {
    "1": ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    "2": ("memory.max", "memory.current", "inactive_file"),
}


def available_memory() -> int | None:
    """Bytes that can be used without swapping or being killed; None if the system does not report it."""
    known = [free for free in (_machine_memory(), _group_memory(), addresses_left()) if free is not None]
    return min(known, default=None)


def _machine_memory() -> int | None:
    meminfo = Path("/proc/meminfo")
    if meminfo.exists():
        for line in meminfo.read_text("utf-8").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return machine_memory()


def _group_memory(groups: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")) -> int | None:
    """The memory left within the limits of this process's control groups, as set by a container or a batch system. Cached
    files do not count as used, because the kernel can drop them."""
    if not own.exists():
        return None
    free = []
    for line in own.read_text("utf-8").splitlines():
        _, controllers, place = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        root = groups / "memory" if controllers else groups  # version 1 has one tree per controller
        limit, usage, cached = GROUP_FILES["1" if controllers else "2"]
        group = root / place.lstrip("/")
        for folder in (group, *group.parents[: len(group.relative_to(root).parts)]):
            with contextlib.suppress(OSError, ValueError):  # another container's group, or no limit: "max"
                allowed = int((folder / limit).read_text("utf-8"))
                statistics = dict(entry.split() for entry in (folder / "memory.stat").read_text("utf-8").splitlines())
                free.append(allowed - int((folder / usage).read_text("utf-8")) + int(statistics.get(cached, 0)))
    return max(min(free), 0) if free else None


def require_memory(
    needed: int, what: str, advice: str = "lower algo_kwargs.buffer_size", available: int | None = None
) -> None:
    """Raises an error if this does not fit into the ``available`` memory (default: what is free now)."""
    available = available_memory() if available is None else available
    if available is not None and needed > available:
        raise ConfigError(
            f"{what} needs {needed / 1e9:.1f} GB, but only {available / 1e9:.1f} GB of memory is free; {advice}"
        )
