"""A checkpoint: a directory of safetensors and JSON files. It contains no code, and it is refused unless it is complete.

Layout: ``manifest.json`` lists every file with its size and SHA-256, the version of each part and of the package that wrote
them, and a digest of the manifest itself. Each part of a checkpoint (``policy``, ``training``, ``replay``, ...) is a nested
state: its JSON skeleton in ``<part>.json``, its arrays in ``<part>.safetensors``. The rows of a replay are in segments,
which checkpoints share (``segments.py``). A part of an older version is migrated when it is read. The directory is written
under a temporary name, flushed, and renamed into place, so a crash at any time leaves either the whole checkpoint or none.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.numpy import save_file as save_safetensors

from rl_training.data.segments import Snapshot
from rl_training.errors import CheckpointError, IncompatibleError
from rl_training.experiment.compat import (
    CONTAINER,
    PART_VERSIONS,
    PartContext,
    current_version,
    migrate,
    readable_version,
    stamp,
    unknown_to_us,
)
from rl_training.experiment.files import parse_json, remove, with_usual_permissions
from rl_training.experiment.folder import HOLDS_DIRECTORIES, CheckpointFolder, fingerprint_of
from rl_training.experiment.manifest import MANIFEST, seal
from rl_training.experiment.segments import Segments, SegmentWriter
from rl_training.experiment.states import parse_arrays, put_arrays, take_arrays
from rl_training.types import Array, State

__all__ = [
    "MANIFEST",
    "LoadedCheckpoint",
    "fingerprint_of",
    "load_checkpoint",
    "read_checkpoint",
    "read_manifest",
    "seal",
    "verify_checkpoint",
    "write_checkpoint",
]

TEMPORARY_PREFIX = ".writing-"
REPLACED_PREFIX = ".replaced-"


@dataclass(frozen=True)
class LoadedCheckpoint:
    """Some parts of a checkpoint, with its manifest and the directory that they are from."""

    path: Path
    manifest: dict[str, Any]
    parts: dict[str, State]


Part = State | Snapshot


def write_checkpoint(
    path: Path,
    parts: Mapping[str, Part],
    info: Mapping[str, Any],
    shared: Segments | None = None,
    *,
    create_parents: bool = True,
) -> Segments:
    """Writes a checkpoint to ``path``, atomically. ``info`` is added to the manifest; ``shared`` are the segments that it may
    share. Returns those that the next checkpoint may share."""
    try:
        return _write(path, parts, info, shared or {}, create_parents)
    finally:
        release(parts)


def release(parts: Mapping[str, Part]) -> None:
    """Lets training overwrite the memory of a replay that was to be saved."""
    for state in parts.values():
        if isinstance(state, Snapshot):
            state.unsaved.release()


def _write(
    path: Path, parts: Mapping[str, Part], info: Mapping[str, Any], shared: Segments, create_parents: bool
) -> Segments:
    temporary = path.with_name(TEMPORARY_PREFIX + path.name)
    replaced = path.with_name(REPLACED_PREFIX + path.name)
    if path.exists() and not (path / MANIFEST).exists() and (not path.is_dir() or any(path.iterdir())):
        raise CheckpointError(f"{path} exists and is not a checkpoint; choose another path")
    try:
        remove(temporary)
        temporary.mkdir(parents=create_parents)
        writer = SegmentWriter(temporary, shared)
        # Snapshots come first, because training may have to wait for them.
        saved = {name: writer.write(name, state) for name, state in parts.items() if isinstance(state, Snapshot)}
        for name, state in parts.items():
            arrays: dict[str, Array] = {}
            skeleton = take_arrays(saved.get(name, state), "", arrays)
            (temporary / f"{name}.json").write_text(json.dumps(skeleton), "utf-8")
            if arrays:
                save_safetensors(arrays, temporary / f"{name}.safetensors")  # without a copy, because a replay is large
                with_usual_permissions(temporary / f"{name}.safetensors")
        known = {segment.file.name: segment.fingerprint for segment in writer.segments}
        files = {file.name: known.get(file.name) or fingerprint_of(file) for file in sorted(temporary.iterdir())}
        versions = {"schema_version": current_version(CONTAINER), **stamp(parts)}
        manifest = seal({**versions, "parts": list(parts), "files": files, "info": dict(info)})
        (temporary / MANIFEST).write_text(manifest, "utf-8")
        for file in temporary.iterdir():
            if file.name not in writer.linked:
                _flush(file)
        _flush(temporary)
        if os.path.lexists(path):
            remove(replaced)
            path.rename(replaced)
        temporary.rename(path)
        _flush(path.parent)
        remove(replaced)
        return writer.moved_to(path)
    except (OSError, SafetensorError) as error:
        remove(temporary)
        raise CheckpointError(
            f"cannot write the checkpoint {path}: {getattr(error, 'strerror', None) or error}; free space or fix the "
            "permissions, then resume: earlier checkpoints are intact"
        ) from error


def load_checkpoint(path: Path, parts: Iterable[str]) -> LoadedCheckpoint:
    """Reads some parts of a checkpoint, migrated to this version, after checking every file that it reads."""
    with CheckpointFolder(path) as folder:
        manifest, states = folder.read_manifest(), {}
        for name in parts:
            if name not in manifest["parts"]:
                raise CheckpointError(f"{folder.place} has no part '{name}'; it holds {', '.join(manifest['parts'])}")
            version = readable_version(name, manifest, folder.place)
            states[name] = _read_part(folder, name, manifest)
            if version < current_version(name):
                context = PartContext(name, _algo_in(folder, manifest))
                states[name] = migrate(states[name], version, context, folder.place)
    return LoadedCheckpoint(folder.path, manifest, states)


def read_checkpoint(path: Path, parts: Iterable[str]) -> dict[str, State]:
    """The states of ``load_checkpoint``."""
    return load_checkpoint(path, parts).parts


def _read_part(folder: CheckpointFolder, name: str, manifest: Mapping[str, Any]) -> State:
    file = folder.path / f"{name}.safetensors"
    skeleton = parse_json(folder.read(f"{name}.json", manifest), file.with_suffix(".json"))
    arrays: dict[str, Array] = {}
    if file.name in manifest["files"]:
        arrays = parse_arrays(folder.read(file.name, manifest), file)
    state = put_arrays(skeleton, arrays, file)
    if not isinstance(state, dict):
        raise CheckpointError(f"{file.with_suffix('.json')} does not fit its part: it is no mapping of names to values")
    return state


def read_manifest(path: Path) -> dict[str, Any]:
    """The manifest of a checkpoint, if it is intact and this package can read its version. Its parts may be newer."""
    with CheckpointFolder(path) as folder:
        return folder.read_manifest()


def verify_checkpoint(path: Path, only: Sequence[str] | None = None) -> dict[str, Any]:
    """Checks every file of a checkpoint, or of these parts, and the versions of the parts; returns the manifest."""
    with CheckpointFolder(path) as folder:
        manifest = folder.read_manifest()
        for part in manifest["parts"]:
            readable_version(part, manifest, folder.place)
            if part not in PART_VERSIONS:  # a run that continued without it would not be the same run
                raise IncompatibleError(unknown_to_us(folder.place, f"the part '{part}'", manifest["written_by"]))
        for name in manifest["files"]:
            if only is None or name.rpartition(".")[0] in only:
                folder.verify(name, manifest)
    missing = [part for part in only or () if part not in manifest["parts"]]
    if missing:
        raise CheckpointError(f"{folder.place} has no part '{missing[0]}'; it holds {', '.join(manifest['parts'])}")
    return manifest


def _algo_in(folder: CheckpointFolder, manifest: Mapping[str, Any]) -> str | None:
    """The name of the algorithm in a checkpoint, if it holds one."""
    if "agent.json" not in manifest["files"]:
        return None
    agent = parse_json(folder.read("agent.json", manifest), folder.path / "agent.json")
    with contextlib.suppress(LookupError, TypeError):
        return str(agent["config"]["algo"])
    return None


def _flush(path: Path) -> None:
    """Makes sure that a file or the entries of a directory are on disk."""
    if not HOLDS_DIRECTORIES and path.is_dir():
        return
    descriptor = os.open(path, os.O_RDONLY if HOLDS_DIRECTORIES else os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
