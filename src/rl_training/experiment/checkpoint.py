"""A checkpoint: a directory of safetensors and JSON files. It contains no code, and it is refused unless it is complete.

Layout: ``manifest.json`` lists every file with its size and SHA-256, the version of each part and of the package that wrote
them, and a digest of the manifest itself. Each part of a checkpoint (``policy``, ``training``, ``replay``, ...) is a nested
state: its JSON skeleton in ``<part>.json``, its arrays in ``<part>.safetensors``. A part of an older version is migrated
when it is read. The directory is written under a temporary name, flushed, and renamed into place, so a crash at any
time leaves either the whole checkpoint or none.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.numpy import load as load_safetensors
from safetensors.numpy import save_file as save_safetensors

from rl_training.errors import CheckpointError
from rl_training.experiment.compat import CONTAINER, PartContext, current_version, migrate, readable_version, stamp
from rl_training.types import Array, State

MANIFEST = "manifest.json"
TEMPORARY_PREFIX = ".writing-"
REPLACED_PREFIX = ".replaced-"
PIECE = 2**20  # bytes to read at a time


def write_checkpoint(path: Path, parts: Mapping[str, State], info: Mapping[str, Any]) -> None:
    """Writes a checkpoint to ``path``, atomically. ``info`` is added to the manifest."""
    temporary = path.with_name(TEMPORARY_PREFIX + path.name)
    replaced = path.with_name(REPLACED_PREFIX + path.name)
    if path.exists() and not (path / MANIFEST).exists() and (not path.is_dir() or any(path.iterdir())):
        raise CheckpointError(f"{path} exists and is not a checkpoint; choose another path")
    try:
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
        for name, state in parts.items():
            arrays: dict[str, Array] = {}
            skeleton = _take_arrays(state, "", arrays)
            (temporary / f"{name}.json").write_text(json.dumps(skeleton), "utf-8")
            if arrays:
                save_safetensors(arrays, temporary / f"{name}.safetensors")  # without a copy, because a replay is large
        files = {file.name: fingerprint_of(file) for file in sorted(temporary.iterdir())}
        versions = {"schema_version": current_version(CONTAINER), **stamp(parts)}
        manifest = seal({**versions, "parts": list(parts), "files": files, "info": dict(info)})
        (temporary / MANIFEST).write_text(manifest, "utf-8")
        for file in temporary.iterdir():
            _flush(file)
        _flush(temporary)
        if path.exists():
            shutil.rmtree(replaced, ignore_errors=True)
            path.rename(replaced)
        temporary.rename(path)
        _flush(path.parent)
        shutil.rmtree(replaced, ignore_errors=True)
    except (OSError, SafetensorError) as error:
        shutil.rmtree(temporary, ignore_errors=True)
        raise CheckpointError(
            f"cannot write the checkpoint {path}: {getattr(error, 'strerror', None) or error}; free space or fix the "
            "permissions, then resume: earlier checkpoints are intact"
        ) from error


def read_checkpoint(path: Path, parts: Iterable[str]) -> dict[str, State]:
    """Reads some parts of a checkpoint, migrated to this version, after checking every file that it reads."""
    manifest, place = read_manifest(path), f"the checkpoint {path}"
    states = {}
    for name in parts:
        if name not in manifest["parts"]:
            raise CheckpointError(f"{place} has no part '{name}'; it holds {', '.join(manifest['parts'])}")
        version = readable_version(name, manifest, place)
        skeleton = _parse_json(_read_verified(path, f"{name}.json", manifest), path / f"{name}.json")
        arrays: dict[str, Array] = {}
        if f"{name}.safetensors" in manifest["files"]:
            try:
                arrays = load_safetensors(_read_verified(path, f"{name}.safetensors", manifest))
            except SafetensorError as error:
                raise CheckpointError(f"{path / name}.safetensors is not a safetensors file: {error}") from error
        try:
            states[name] = _put_arrays(skeleton, arrays)
        except KeyError as error:
            raise CheckpointError(f"{path / name}.safetensors lacks the array {error}") from error
        if version < current_version(name):
            states[name] = migrate(states[name], version, PartContext(name, _algo_in(path, manifest)), place)
    return states


def read_manifest(path: Path) -> dict[str, Any]:
    """The manifest of a checkpoint, if it is intact and this package can read its version. Its parts may be newer."""
    file = path / MANIFEST
    try:
        content = file.read_bytes()
    except OSError as error:
        raise CheckpointError(f"{path} is not a checkpoint: cannot read {MANIFEST} ({error.strerror})") from error
    manifest = _parse_json(content, file)
    if not isinstance(manifest, dict) or "schema_version" not in manifest:
        raise CheckpointError(f"{file} is not the manifest of a checkpoint")
    place = f"the checkpoint {path}"
    version = readable_version(CONTAINER, manifest, place)
    if manifest.pop("digest", None) != _digest(manifest):
        raise CheckpointError(f"{file} is damaged: its digest does not match")
    manifest = migrate(manifest, version, PartContext(CONTAINER, None), place)
    return {"written_by": None, "part_versions": dict.fromkeys(manifest["parts"], 1), **manifest}


def verify_checkpoint(path: Path) -> dict[str, Any]:
    """Checks every file of a checkpoint and the version of every part, and returns its manifest."""
    manifest = read_manifest(path)
    for part in manifest["parts"]:
        readable_version(part, manifest, f"the checkpoint {path}")
    for name in manifest["files"]:
        with _readable(path, name):
            fingerprint = fingerprint_of(path / name)
        _require_fingerprint(fingerprint, path, name, manifest)
    return manifest


def seal(body: Mapping[str, Any]) -> str:
    """The text of a manifest: its content and a digest of it."""
    return json.dumps({"digest": _digest(body), **body}, indent=1)


def _algo_in(path: Path, manifest: Mapping[str, Any]) -> str | None:
    """The name of the algorithm in a checkpoint, if it holds one."""
    if "agent.json" not in manifest["files"]:
        return None
    agent = _parse_json(_read_verified(path, "agent.json", manifest), path / "agent.json")
    with contextlib.suppress(LookupError, TypeError):
        return str(agent["config"]["algo"])
    return None


def _read_verified(path: Path, name: str, manifest: Mapping[str, Any]) -> bytes:
    """Reads a file once, so that the verified content is the content used."""
    with _readable(path, name):
        content = (path / name).read_bytes()
    _require_fingerprint(_fingerprint([content]), path, name, manifest)
    return content


@contextlib.contextmanager
def _readable(path: Path, name: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise CheckpointError(f"cannot read {path / name}: {error.strerror}") from error


def _require_fingerprint(found: Mapping[str, Any], path: Path, name: str, manifest: Mapping[str, Any]) -> None:
    expected = manifest["files"].get(name)
    if expected is None:
        raise CheckpointError(f"the manifest of {path} does not list {name}")
    if found != expected:
        raise CheckpointError(
            f"{path / name} is damaged: its content ({found['bytes']} bytes) does not match the manifest "
            f"({expected['bytes']} bytes)"
        )


def _fingerprint(pieces: Iterable[bytes]) -> dict[str, Any]:
    digest, size = hashlib.sha256(), 0
    for piece in pieces:
        digest.update(piece)
        size += len(piece)
    return {"bytes": size, "sha256": digest.hexdigest()}


def fingerprint_of(file: Path) -> dict[str, Any]:
    """The fingerprint of a file, read in pieces because it may be larger than the free memory."""
    with file.open("rb") as stream:
        return _fingerprint(iter(lambda: stream.read(PIECE), b""))


def _digest(body: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()


def _parse_json(content: bytes, file: Path) -> Any:
    try:
        return json.loads(content)
    except ValueError as error:
        raise CheckpointError(f"{file} is damaged: it is not JSON") from error


def _flush(path: Path) -> None:
    """Makes sure that a file or the entries of a directory are on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _take_arrays(value: Any, key: str, arrays: dict[str, Array]) -> Any:
    """A copy of a nested state in which each array is replaced by a reference; the arrays are added to ``arrays``."""
    if isinstance(value, Mapping):
        return {str(name): _take_arrays(item, f"{key}/{name}" if key else str(name), arrays) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_take_arrays(item, f"{key}/{i}", arrays) for i, item in enumerate(value)]
    if isinstance(value, torch.Tensor):
        arrays[key] = value.detach().cpu().contiguous().numpy()
        return {"$tensor": key}
    if isinstance(value, np.ndarray):
        arrays[key] = np.ascontiguousarray(value)
        return {"$array": key}
    return value.item() if isinstance(value, np.generic) else value


def _put_arrays(value: Any, arrays: Mapping[str, Array]) -> Any:
    """The inverse of ``_take_arrays``."""
    if isinstance(value, dict):
        if "$tensor" in value:
            return torch.from_numpy(arrays[value["$tensor"]].copy())
        if "$array" in value:
            return arrays[value["$array"]].copy()
        return {name: _put_arrays(item, arrays) for name, item in value.items()}
    if isinstance(value, list):
        return [_put_arrays(item, arrays) for item in value]
    return value
