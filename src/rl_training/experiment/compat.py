"""Files of other versions: older ones are migrated, and those that cannot be read are refused.

Each part of a checkpoint has a version. An older part is migrated one version at a time; a key that a state lacks takes the
value of a freshly built object; a part that is newer or too old is refused, with the version that can read it. The policy is
in docs/adr/0011-compatibility.md.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from rl_training.errors import CheckpointError, ConfigError, IncompatibleError
from rl_training.types import State
from rl_training.version import __version__


@dataclass(frozen=True)
class PartContext:
    """The information that a migration gets besides the state."""

    part: str
    algo: str | None  # None if the checkpoint holds no agent


Migration = Callable[[State, PartContext], State]

#: The manifest and the layout of the files, versioned and migrated like a part; its state is the manifest.
CONTAINER = "container"
SCHEMA_VERSION = 1
PART_VERSIONS: dict[str, int] = {"agent": 1, "policy": 1, "training": 1, "replay": 2}


def _without_rings(state: State, context: PartContext) -> State:
    """Version 1 had the whole replay in one state, without segments."""
    return {"rest": state, "rings": {}}


#: (part, version) -> migration to the next version.
MIGRATIONS: dict[tuple[str, int], Migration] = {("replay", 1): _without_rings}
#: (part, version) of a removed migration -> the last rl_training that had it.
LAST_READERS: dict[tuple[str, int], str] = {}
#: Names of mappings whose keys are data, such as names of streams, metrics or hooks. They are used as saved.
DATA_KEYS = frozenset({"streams", "metrics", "held", "columns", "rings", "hooks"})


#: Places in a training state that no fresh object can stand in for: without them a run would silently become another.
REQUIRED = frozenset(
    {
        "env_steps",
        "streams",
        "collector",
        "learner",
        "learner.algorithm",
        "learner.algorithm.updates",
        "learner.algorithm.optimizers",
        "learner.algorithm.targets",
        "learner.algorithm.trained",
    }
)


def current_version(part: str) -> int:
    """The version that this package writes."""
    return SCHEMA_VERSION if part == CONTAINER else PART_VERSIONS.get(part, 1)


def stamp(parts: Iterable[str]) -> dict[str, Any]:
    """The version fields of a file that holds these parts."""
    return {"written_by": __version__, "part_versions": {part: current_version(part) for part in parts}}


def readable_version(part: str, header: Mapping[str, Any], place: str) -> int:
    """The version of a part according to a file's version fields (1 without them), if this package can read it."""
    versions = {CONTAINER: header.get("schema_version")} if part == CONTAINER else header.get("part_versions", {})
    version = versions.get(part, 1) if isinstance(versions, Mapping) else None
    if type(version) is not int:
        raise CheckpointError(f"{place} is damaged: it has no valid version of its {part}")
    what = f"{place} has format version {version}" if part == CONTAINER else f"{part_of(place, part)} has version {version}"
    current, writer = current_version(part), _version_or_none(header.get("written_by"))
    if version > current:
        remedy = "install the newest version of rl_training" if writer is None else _written_by_newer(writer)
        raise IncompatibleError(f"{what}, but rl_training {__version__} reads at most version {current}; {remedy}")
    for step in range(version, current):
        if (part, step) not in MIGRATIONS:
            reader = LAST_READERS.get((part, step))
            last = f"rl_training {reader} is the last version that does; install that version to use it"
            remedy = _use_the_writer(writer) if reader is None else last
            raise IncompatibleError(f"{what}, which rl_training {__version__} no longer reads; {remedy}")
    return version


def migrate(state: State, version: int, context: PartContext, place: str) -> State:
    """Migrates a state from a readable version to the current one."""
    for step in range(version, current_version(context.part)):
        try:
            state = MIGRATIONS[context.part, step](state, context)
        except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
            raise CheckpointError(
                f"{part_of(place, context.part)} cannot be migrated from version {step} to {step + 1}: "
                f"{type(error).__name__}: {error}"
            ) from error
    return state


def with_defaults(saved: State, initial: State, place: str = "the saved state", written_by: object = None) -> State:
    """The saved state, with missing keys filled in from ``initial``, the state of a freshly built object.

    Only mappings are merged; lists, arrays and the mappings named in ``DATA_KEYS`` are used as saved. A key that ``initial``
    does not have is refused, because a run that continues without it would not be the same run.
    """
    return _filled(saved, initial, "", place, written_by)


def _filled(saved: State, initial: State, where: str, place: str, written_by: object) -> State:
    unknown = [key for key in saved if key not in initial]
    if unknown:
        raise IncompatibleError(unknown_to_us(place, f"'{where}{unknown[0]}'", written_by))
    absent = [key for key in initial if key not in saved and f"{where}{key}" in REQUIRED]
    if absent:
        raise CheckpointError(f"{place} lacks '{where}{absent[0]}', without which the run cannot be continued")
    filled = {**initial, **saved}
    for key, value in saved.items():
        if key not in DATA_KEYS and isinstance(value, dict) and isinstance(initial[key], dict):
            filled[key] = _filled(value, initial[key], f"{where}{key}.", place, written_by)
    return filled


def unknown_to_us(place: str, what: str, written_by: object) -> str:
    """A sentence on something in a file that this version does not know."""
    writer = _version_or_none(written_by)
    remedy = _written_by_newer(writer) if writer is not None and is_newer(writer) else _use_the_writer(writer)
    return f"{place} holds {what}, which rl_training {__version__} does not know; {remedy}"


@contextlib.contextmanager
def naming_the_writer(place: object, written_by: object) -> Iterator[None]:
    """If a newer version wrote a saved config, adds this to errors in it."""
    try:
        yield
    except ConfigError as error:
        if not is_newer(written_by):
            raise
        raise ConfigError(
            f"{error}; {place} was written by rl_training {written_by}, which is newer than this version ({__version__}): "
            "install that version or newer"
        ) from error


def is_newer(version: object, than: str = __version__) -> bool:
    """Whether this is a valid version later than ``than``. Only the numbers are compared."""
    return _version_or_none(version) is not None and _numbers(str(version)) > _numbers(than)


def part_of(place: str, part: str) -> str:
    """The name of a part in a message."""
    return f"the part '{part}' of {place}"


def _numbers(version: str) -> list[int]:
    release = re.match(r"[\d.]*", version)
    numbers = [int(number) for number in (release.group() if release else "").split(".") if number]
    while numbers and numbers[-1] == 0:
        del numbers[-1]
    return numbers


def _version_or_none(value: object) -> str | None:
    return value if isinstance(value, str) and re.fullmatch(r"\d+(\.\d+)*[\w.+]*", value) else None


def _written_by_newer(writer: str) -> str:
    return f"it was written by rl_training {writer}; install that version or newer"


def _use_the_writer(writer: str | None) -> str:
    if writer is None:
        return "use the version of rl_training that wrote it"
    return f"it was written by rl_training {writer}; install that version to use it"
