"""The versions and the machine that a figure was measured with."""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
from collections.abc import Iterable
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path

#: The root of the repository, if the package is used from one.
ROOT = Path(__file__).parents[3]
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


def session() -> str | None:
    """Tells this start of this machine from all others: CPU seconds within one can be compared. None if it is not Linux."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text("utf-8")
    except OSError:
        return None
    return hashlib.sha256(boot.encode()).hexdigest()[:8]


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


def commit() -> str | None:
    """The commit of the source tree, with a + if files differ from it; None if the package is installed without one."""
    if not (ROOT / ".git").exists():
        return None
    try:
        head, changes = (
            subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True, text=True, check=True).stdout.strip()
            for words in (("rev-parse", "--short=10", "HEAD"), ("status", "--porcelain", "--untracked-files=no", "src"))
        )
    except (OSError, subprocess.CalledProcessError):  # no git here, or no commit yet
        return None
    return f"{head}+" if changes else head
