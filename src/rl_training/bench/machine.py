"""The versions and the machine that a figure was measured with."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path

COMMON_PACKAGES = ("rl-training", "torch", "numpy", "gymnasium")


def machine() -> str:
    """The processor model and the number of cores, but never the host name."""
    return f"{_cpu_model()}, {os.cpu_count()} cores, {platform.system()} {platform.machine()}"


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except OSError:  # not Linux
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or "unknown processor"


def package_version(package: str) -> str | None:
    """The installed version of a distribution; None if it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def versions(packages: Iterable[str] = ()) -> dict[str, str]:
    """The versions of Python and of those packages that are installed."""
    names = sorted({*packages, *COMMON_PACKAGES})
    return {"python": platform.python_version(), **{name: found for name in names if (found := package_version(name))}}


def today() -> str:
    """Today's date in UTC."""
    return datetime.now(timezone.utc).date().isoformat()
