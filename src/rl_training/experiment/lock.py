"""A lock that one process has at a time, and that the system takes back when the process ends, however it ends."""

from __future__ import annotations

import os
from pathlib import Path

from rl_training.experiment.files import open_regular

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]


class Lock:
    """A lock on a file, which is created. With ``flock`` it is on the descriptor of a file that is known to be regular, and a
    process that is forked off keeps it but cannot give it back; where there is no ``flock``, the lock is filelock's."""

    def __init__(self, path: Path) -> None:
        self._file = os.fdopen(open_regular(path, os.O_RDWR | os.O_CREAT), "r+b")
        self._other = None
        if fcntl is None:
            from filelock import FileLock  # only where it is needed: it brings sqlite and asyncio

            self._file.close()
            self._other = FileLock(path, thread_local=False)

    def take(self) -> bool:
        """Tries to take the lock, and returns whether that succeeded."""
        try:
            if self._other is not None:
                self._other.acquire(blocking=False)
            else:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, TimeoutError):  # filelock's Timeout is one
            return False
        return True

    def descriptors(self) -> list[int]:
        """Descriptors by which a child process that inherits them keeps the lock, if the system can do that."""
        return [] if self._other is not None else [self._file.fileno()]

    def close(self) -> None:
        """Gives the lock back."""
        if self._other is not None:
            self._other.release()
        self._file.close()
