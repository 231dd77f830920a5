"""The manifest of a checkpoint: which files there are, of which parts, with their sizes and hashes."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from typing_extensions import Self

from rl_training.errors import CheckpointError

MANIFEST = "manifest.json"
ENDINGS = (".json", ".safetensors")
#: Names of the checkpoints in a run.
STEP_NAME = re.compile(r"step-(\d{1,18})(-best)?")

#: Names of segments of a part, which checkpoints share: the part, a ring of the replay and the first position in it.
SEGMENT_NAME = re.compile(r"([a-z][a-z0-9_]{0,63})-([a-z]{1,32}[0-9]{0,9})-([0-9]{12,18})\.safetensors")

#: The name of a part is that of its files as well, so it must not lead anywhere else.
PartName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,63}$")]
Whole = Annotated[int, Field(ge=0, lt=2**63)]


class FileEntry(BaseModel):
    """The size and hash of a file."""

    model_config = ConfigDict(strict=True, extra="forbid")

    bytes: Whole
    sha256: str = Field(pattern="^[0-9a-f]{64}$")


class Info(BaseModel):
    """Where the run was. A policy that was saved by itself has none of these; further ones are measured times."""

    model_config = ConfigDict(strict=True, extra="allow")

    step: Whole = -1
    metrics_bytes: Whole = -1
    episodes_bytes: Whole = 0
    episodes_begun: list[float] = Field(default_factory=list)

    @model_validator(mode="after")
    def _times_are_numbers(self) -> Self:
        for name, value in (self.model_extra or {}).items():
            if name.startswith("time/") and (isinstance(value, bool) or not isinstance(value, int | float)):
                raise ValueError(f"{name} is not a number")
        return self


class Manifest(BaseModel):
    """The fields of a manifest, without its digest. The versions are checked for the parts that are read."""

    model_config = ConfigDict(strict=True, extra="allow")

    schema_version: int
    written_by: Any = None
    part_versions: Any = None
    parts: list[PartName]
    files: dict[str, FileEntry]
    info: Info

    @model_validator(mode="after")
    def _files_are_those_of_the_parts(self) -> Self:
        if len(set(self.parts)) != len(self.parts) or "manifest" in self.parts:
            raise ValueError("parts: a name is used twice")
        possible = {part + ending for part in self.parts for ending in ENDINGS}
        for name in self.files:
            segment = SEGMENT_NAME.fullmatch(name)
            if name not in possible and (segment is None or segment[1] not in self.parts):
                raise ValueError(f"files: {name!r} is not a file of a part")
        for part in self.parts:
            if f"{part}.json" not in self.files:
                raise ValueError(f"files: there is no {part}.json")
        return self


def checked_manifest(body: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """A manifest as plain data, if it is well formed and agrees with the name of its directory."""
    file = folder / MANIFEST
    try:
        manifest = Manifest.model_validate(body)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        message = first["msg"].removeprefix("Value error, ")
        what = " ".join(f"{where}: {message}".removeprefix(": ").split())
        raise CheckpointError(f"{file} is not a valid manifest ({what}), so the checkpoint is not used") from error
    values = manifest.model_dump()
    values["info"] = manifest.info.model_dump(exclude_unset=True)
    if manifest.part_versions is None and "part_versions" not in body:
        values["part_versions"] = dict.fromkeys(manifest.parts, 1)
    _require_name(folder, manifest.info.step)
    return values


def _require_name(folder: Path, step: int) -> None:
    """A checkpoint in a run has the name of its step, by which the newest is found."""
    name = folder.absolute().name
    match = STEP_NAME.fullmatch(name)
    if match is not None and name != checkpoint_name(step, best=match[2] is not None):
        holds = "no step" if step < 0 else f"step {step}"
        raise CheckpointError(
            f"{folder} is named after step {int(match[1])}, but its manifest has {holds}: it was renamed or copied, so it is "
            "not used; give it back its own name, or remove it"
        )


def checkpoint_name(step: int, *, best: bool = False) -> str:
    """The name of a checkpoint in a run."""
    return f"step-{step:010d}{'-best' if best else ''}"


def segment_name(part: str, ring: str, begin: int) -> str:
    """The name of a segment in a checkpoint."""
    return f"{part}-{ring}-{begin:012d}.safetensors"


def seal(body: Mapping[str, Any]) -> str:
    """The text of a manifest: its content and a digest of it."""
    return json.dumps({"digest": digest_of(body), **body}, indent=1)


def digest_of(body: Mapping[str, Any]) -> str:
    """A hash of the content of a manifest."""
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
