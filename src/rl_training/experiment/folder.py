"""A checkpoint directory that is held open while it is read, so that all of it comes from one checkpoint.

A run that is training replaces and removes checkpoints. ``latest`` and ``best`` are therefore followed once, and a
checkpoint that is removed while it is being read is reported as such and not as a damaged one.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from typing_extensions import Self

from rl_training.data.memory import available_memory
from rl_training.errors import CheckpointError, PrunedError
from rl_training.experiment.compat import CONTAINER, PartContext, migrate, readable_version
from rl_training.experiment.files import SAFELY, not_regular, open_to_read, parse_json, read_small
from rl_training.experiment.manifest import MANIFEST, STEP_NAME, checked_manifest, digest_of

LINKS = ("latest", "best")
PIECE = 2**20  # bytes to read at a time
UNASKED = 16 * 2**20  # bytes that are read without asking how much memory is free, which takes a millisecond
MOST_LINKS = 16
#: Whether a directory can be opened, so that what is read from it comes from the same directory.
HOLDS_DIRECTORIES = hasattr(os, "O_DIRECTORY")


def target_of(link: Path) -> str | None:
    """The name that ``latest`` or ``best`` of a run points to; None if it does not exist. Where symbolic links are not
    allowed, as to most users of Windows, it is a file with the name in it."""
    if link.is_symlink():
        return str(link.readlink())
    return read_small(link).decode("utf-8", "replace") if is_pointer(link) else None


def is_pointer(path: Path) -> bool:
    """Whether a path among the checkpoints of a run is a link, or a file in the place of one."""
    return path.parent.absolute().name == "checkpoints" and (path.is_symlink() or (path.name in LINKS and path.is_file()))


def follow_links(path: Path) -> Path:
    """The directory that a path leads to. The links of a run must stay among its checkpoints."""
    for _ in range(MOST_LINKS):
        target = None if STEP_NAME.fullmatch(path.name) else target_of(path)
        if target is None:
            return path  # a checkpoint is no link: opening one fails
        if path.name in LINKS and is_pointer(path) and STEP_NAME.fullmatch(target) is None:
            raise CheckpointError(
                f"{path} points to {target!r} and not to a checkpoint beside it, so it is not followed; name the checkpoint "
                "itself"
            )
        path = path.parent / target
    raise CheckpointError(f"{path} is one of more than {MOST_LINKS} symbolic links that lead to each other")


class CheckpointFolder:
    """The files of one checkpoint."""

    def __init__(self, path: Path) -> None:
        self.path = follow_links(path)
        self.place = f"the checkpoint {self.path}"
        try:
            self._descriptor: int | None = None
            if HOLDS_DIRECTORIES:
                self._descriptor = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | SAFELY)
            held = self.path.lstat() if self._descriptor is None else os.fstat(self._descriptor)
        except FileNotFoundError as error:
            raise _pruned(self.path) from error
        except OSError as error:
            if os.path.lexists(self.path) and not stat.S_ISDIR(mode := self.path.lstat().st_mode):
                raise not_regular(self.path, mode) from error
            raise CheckpointError(f"cannot read {self.path}: {error.strerror}") from error
        if not stat.S_ISDIR(held.st_mode):
            raise not_regular(self.path, held.st_mode)
        self._identity = held.st_dev, held.st_ino

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)

    def read_manifest(self) -> dict[str, Any]:
        """The manifest, if it is intact and this package can read its version. Its parts may be newer."""
        file = self.path / MANIFEST
        try:
            content = read_small(file, folder=self._descriptor)
        except OSError as error:
            self._require_present(error)
            raise CheckpointError(f"{self.path} is not a checkpoint: cannot read {MANIFEST} ({error.strerror})") from error
        manifest = parse_json(content, file)
        if not isinstance(manifest, dict) or "schema_version" not in manifest:
            raise CheckpointError(f"{file} is not the manifest of a checkpoint")
        version = readable_version(CONTAINER, manifest, self.place)
        if manifest.pop("digest", None) != digest_of(manifest):
            raise CheckpointError(f"{file} is damaged: its digest does not match")
        return checked_manifest(migrate(manifest, version, PartContext(CONTAINER, None), self.place), self.path)

    def read(self, name: str, manifest: Mapping[str, Any]) -> bytes:
        """The content of a file, read once, so that the verified content is the content used."""
        expected = self._expected(name, manifest)
        free = available_memory() if expected["bytes"] > UNASKED else None
        if free is not None and expected["bytes"] > free:
            raise CheckpointError(
                f"{self.path / name} has {expected['bytes'] / 1e9:.1f} GB, but only {free / 1e9:.1f} GB of memory are free; "
                "free memory, or use a machine with more"
            )
        pieces = list(self._pieces(name, expected["bytes"], expected["bytes"]))
        content = pieces[0] if pieces else b""
        self._require_fingerprint([content], name, expected)
        return content

    def verify(self, name: str, manifest: Mapping[str, Any]) -> None:
        """Checks a file in pieces, because it may be larger than the free memory."""
        expected = self._expected(name, manifest)
        self._require_fingerprint(self._pieces(name, expected["bytes"], PIECE), name, expected)

    def identity(self, name: str) -> tuple[int, ...] | None:
        """The identity of a file in this directory."""
        return identity_of(self.path / name, folder=self._descriptor)

    def _expected(self, name: str, manifest: Mapping[str, Any]) -> dict[str, Any]:
        expected: dict[str, Any] | None = manifest["files"].get(name)
        if expected is None:
            raise CheckpointError(f"the manifest of {self.path} does not list {name}")
        return expected

    def _pieces(self, name: str, most: int, piece: int) -> Iterator[bytes]:
        """A file of the size in the manifest, in pieces; no byte beyond that size is read."""
        try:
            with open_to_read(self.path / name, folder=self._descriptor) as file:
                size = os.fstat(file.fileno()).st_size
                if size != most:
                    raise self._damaged(name, size, most)
                while most and (content := file.read(min(piece, most))):
                    most -= len(content)
                    yield content
        except OSError as error:
            self._require_present(error)
            raise CheckpointError(f"cannot read {self.path / name}: {error.strerror}") from error

    def _require_fingerprint(self, pieces: Iterable[bytes], name: str, expected: Mapping[str, Any]) -> None:
        found = fingerprint(pieces)
        if found != expected:
            raise self._damaged(name, found["bytes"], expected["bytes"])

    def _damaged(self, name: str, found: int, expected: int) -> CheckpointError:
        return CheckpointError(
            f"{self.path / name} is damaged: its content ({found} bytes) does not match the manifest ({expected} bytes)"
        )

    def _require_present(self, error: OSError) -> None:
        """Raises if the directory was replaced or removed, which is no damage."""
        try:
            now = self.path.stat()
        except OSError:
            raise _pruned(self.path) from error
        if (now.st_dev, now.st_ino) != self._identity:
            raise _pruned(self.path) from error


def _pruned(path: Path) -> PrunedError:
    return PrunedError(
        f"there is no checkpoint at {path} any more: a run removes old checkpoints while it trains; use the run directory or "
        "its checkpoints/latest"
    )


def fingerprint(pieces: Iterable[bytes]) -> dict[str, Any]:
    """The size and hash of some content."""
    digest, size = hashlib.sha256(), 0
    for piece in pieces:
        digest.update(piece)
        size += len(piece)
    return {"bytes": size, "sha256": digest.hexdigest()}


def identity_of(file: Path, *, folder: int | None = None) -> tuple[int, ...] | None:
    """A regular file's identity, which changes when the file is replaced or written to; None for anything else."""
    try:
        found = os.stat(file if folder is None else file.name, dir_fd=folder, follow_symlinks=False)
    except OSError:
        return None
    return (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns) if stat.S_ISREG(found.st_mode) else None


def fingerprint_of(file: Path) -> dict[str, Any]:
    """The fingerprint of a file of our own."""
    with file.open("rb") as stream:
        return fingerprint(iter(lambda: stream.read(PIECE), b""))
