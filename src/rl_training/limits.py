"""The limits that the system sets for this process (None on Windows, which does not report them in this way), and how this
process keeps the memory that it has."""

from __future__ import annotations

import contextlib
import ctypes
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


#: Options of glibc's mallopt(3): how much free memory at the end of the heap is given back, and from which size on a block is
#: mapped by itself, and so given back at once.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_KEPT, _LARGEST_ON_HEAP = 1 << 27, 1 << 25


def keep_freed_memory() -> None:
    """Lets glibc keep up to 128 MB of freed memory. By default it gives the arrays of an update back to the system after the
    update, and each of their pages costs a fault when it comes back: a quarter of the time of an eager update of QR-DQN.
    Variables of the user's (``MALLOC_...``) are respected, and other C libraries are left alone."""
    if any(name.startswith(("MALLOC_", "GLIBC_TUNABLES")) for name in os.environ) or not has_glibc():
        return
    with contextlib.suppress(AttributeError, OSError):  # a Python that is linked statically
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_TRIM_THRESHOLD, _KEPT)
        mallopt(_MMAP_THRESHOLD, _LARGEST_ON_HEAP)


def has_glibc() -> bool:
    """Whether the C library is glibc. Others may have a function of the same name with other options."""
    try:
        return os.confstr("CS_GNU_LIBC_VERSION") is not None
    except (AttributeError, ValueError, OSError):  # Windows, macOS, musl
        return False
