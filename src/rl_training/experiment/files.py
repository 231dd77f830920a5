"""Reads and writes the files of a run directory, which may have been made by somebody else.

Only regular files are opened, never a symbolic link, a pipe or a device in their place, and none is read beyond its limit.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO

from rl_training.errors import CheckpointError

#: Bytes that a small file of a run (config, metadata, manifest) may have. Real ones are a thousand times smaller.
MOST_BYTES = 4 * 2**20
#: Levels that JSON may be nested. A state has fewer than ten.
MOST_LEVELS = 64

_KINDS = (
    (stat.S_ISLNK, "a symbolic link"),
    (stat.S_ISDIR, "a directory"),
    (stat.S_ISFIFO, "a named pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISBLK, "a device"),
    (stat.S_ISCHR, "a device"),
)


#: Where the system has them: no link is followed, and a pipe without a writer is not waited for.
NO_FOLLOW = getattr(os, "O_NOFOLLOW", 0)
SAFELY = NO_FOLLOW | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)


def open_regular(path: Path, flags: int = os.O_RDONLY, *, folder: int | None = None) -> int:
    """A descriptor of a regular file. ``folder`` is a descriptor of its directory, if that is held open.

    Raises ``CheckpointError`` for anything in the file's place, and ``OSError`` if the file cannot be opened.
    """
    name: str | Path = path if folder is None else path.name
    if not NO_FOLLOW and os.path.lexists(path) and not stat.S_ISREG(mode := path.lstat().st_mode):
        raise not_regular(path, mode)
    try:
        descriptor = os.open(name, flags | SAFELY, 0o666, dir_fd=folder)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.EMLINK, errno.EISDIR, errno.ENXIO, errno.ENODEV, errno.EOPNOTSUPP):
            mode = os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode
            raise not_regular(path, mode) from error
        raise
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        raise not_regular(path, mode)
    return descriptor


def not_regular(path: Path, mode: int) -> CheckpointError:
    """The error for anything in the place of a file or directory of a run."""
    kind = next((name for is_kind, name in _KINDS if is_kind(mode)), "not a regular file")
    return CheckpointError(
        f"{path} is {kind} where a run has its own file or directory, so it is neither read nor written; put back the "
        "original, or remove it"
    )


def open_to_read(path: Path, *, folder: int | None = None) -> BinaryIO:
    """A regular file, open for reading."""
    return os.fdopen(open_regular(path, folder=folder), "rb")


def read_small(path: Path, *, folder: int | None = None) -> bytes:
    """The content of a small file of a run."""
    with open_to_read(path, folder=folder) as file:
        content = file.read(MOST_BYTES + 1)
    if len(content) > MOST_BYTES:
        raise CheckpointError(f"{path} is larger than {MOST_BYTES // 2**20} MiB, so it is no such file of a run")
    return content


def parse_json(content: bytes, path: Path) -> Any:
    """Plain data from JSON of limited depth; ``path`` names it in an error."""
    try:
        value = json.loads(content)
    except RecursionError:
        value = None
        too_deep = True
    except ValueError as error:
        raise CheckpointError(f"{path} is damaged: it is not JSON") from error
    else:
        too_deep = _levels_exceed(value, MOST_LEVELS)
    if too_deep:
        raise CheckpointError(f"{path} is nested more than {MOST_LEVELS} levels deep, so rl_training did not write it")
    return value


def _levels_exceed(value: Any, most: int) -> bool:
    level = [value]
    for _ in range(most):
        level = [item for one in level for item in _inside(one) if isinstance(item, dict | list)]
        if not level:
            return False
    return True


def _inside(value: Any) -> Sequence[Any]:
    if isinstance(value, dict):
        return list(value.values())
    return value if isinstance(value, list) else ()


def replace_text(path: Path, text: str) -> None:
    """Writes a file under a temporary name and puts it in place. A link that has either name is replaced, not followed."""
    temporary = path.with_name(f".{path.name}")
    try:
        remove(temporary)
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | SAFELY, 0o666)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        temporary.replace(path)
    except OSError as error:
        advice = "remove the directory" if path.is_dir() else "free disk space or fix the permissions"
        raise CheckpointError(f"cannot write {path}: {error.strerror}; {advice}") from error


def with_usual_permissions(path: Path) -> None:
    """Gives a file the permissions that the umask leaves to new files; safetensors makes its own for the user alone."""
    probe = path.with_name(f".{path.name}.new")
    remove(probe)
    descriptor = os.open(probe, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        path.chmod(stat.S_IMODE(os.fstat(descriptor).st_mode))
    finally:
        os.close(descriptor)
        probe.unlink()


def remove(path: Path) -> None:
    """Removes whatever has this name, if anything. What a link points to stays."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def inode_of(path: Path) -> tuple[int, int] | None:
    """Which file or directory a path leads to, whatever its name; None if there is none."""
    try:
        found = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    return found.st_dev, found.st_ino


def own_directory(path: Path, *, create: bool = False) -> Path:
    """A directory of a run. It may be absent unless it is created; anything else in its place is refused."""
    if create and not os.path.lexists(path):
        path.mkdir()
    if os.path.lexists(path):
        mode = path.lstat().st_mode
        if not stat.S_ISDIR(mode):
            raise not_regular(path, mode)
    return path
