"""``train --overwrite``: a new run takes the place of an old one. Nothing is removed that a run did not write."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path

from rl_training.errors import ConfigError, shown
from rl_training.experiment.checkpoint import MANIFEST, REPLACED_PREFIX, TEMPORARY_PREFIX
from rl_training.experiment.files import remove
from rl_training.experiment.layout import (
    BEST,
    CHECKPOINTS,
    CONFIG_FILE,
    EVALUATION_FILE,
    FAULT_PREFIX,
    INITIAL,
    LATEST,
    LOCK_FILE,
    METADATA_FILE,
    PRUNED_PREFIX,
    REPLAY_PART,
    SET_ASIDE,
    TENSORBOARD,
    TRACKERS_FILE,
    TRAINING_PARTS,
    WANDB,
)
from rl_training.experiment.manifest import ENDINGS, SEGMENT_NAME, STEP_NAME
from rl_training.experiment.metrics import EPISODES_FILE, METRICS_FILE


def _any_of(*names: str) -> str:
    return f"({'|'.join(map(re.escape, names))})"


_FILES = (CONFIG_FILE, METADATA_FILE, EVALUATION_FILE, TRACKERS_FILE, METRICS_FILE, EPISODES_FILE)
_IN_CHECKPOINT = (
    f"(/({re.escape(MANIFEST)}|{_any_of(*TRAINING_PARTS, REPLAY_PART)}{_any_of(*ENDINGS)}|{SEGMENT_NAME.pattern}))?"
)
_UNFINISHED = _any_of(TEMPORARY_PREFIX, REPLACED_PREFIX, PRUNED_PREFIX)
#: The paths in a run directory that a run writes; hidden files are on their way.
OWN = re.compile(
    "|".join(
        (
            rf"\.?({_any_of(*_FILES)}|{FAULT_PREFIX}\d+\.json)",
            re.escape(LOCK_FILE),
            INITIAL + _IN_CHECKPOINT,
            rf"{CHECKPOINTS}(/\.?{_any_of(LATEST, BEST)})?",
            rf"{CHECKPOINTS}/{SET_ASIDE}",
            rf"{CHECKPOINTS}(/{SET_ASIDE})?/{STEP_NAME.pattern}{_IN_CHECKPOINT}",
            rf"{CHECKPOINTS}/{_UNFINISHED}{STEP_NAME.pattern}(/.*)?",
            rf"{TENSORBOARD}(/events\.out\.tfevents\.[^/]*)?",
            rf"{WANDB}(/.*)?",
        )
    )
)
#: What every run has.
ALWAYS = (CONFIG_FILE, METADATA_FILE, CHECKPOINTS)
#: Beside a run directory while it is replaced: the new run until it is complete, and then the old one.
NEW_PREFIX, ASIDE_PREFIX = ".new-", ".replaced-"


def require_only_a_run(path: Path) -> None:
    """Refuses to replace anything but a run directory with nothing else in it."""
    kept = "so it is not overwritten"
    missing = [name for name in ALWAYS if not os.path.lexists(path / name)]
    if path.is_symlink() or missing:
        what = "is a symbolic link" if path.is_symlink() else f"is no run directory: it has no {missing[0]}"
        raise ConfigError(f"the output directory {path} {what}, {kept}; choose another --output-dir")
    if Path.cwd().is_relative_to(path.resolve()):
        raise ConfigError(
            f"the output directory {path} is the current directory or above it, {kept}; change to another directory first"
        )
    inside = (entry.relative_to(path).as_posix() for entry in path.rglob("*"))
    others = sorted(name for name in inside if OWN.fullmatch(name) is None)
    if others:
        raise ConfigError(
            f"the output directory {path} also holds {shown(others[0])}, which no run has written, {kept}; move that away, "
            "or choose another --output-dir"
        )


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yields where to create a run, which then takes the place of the one at ``path``. If that fails, the old one stays; a
    process that is killed leaves the one or the other, which ``put_back`` finds."""
    new, aside = _beside(path, NEW_PREFIX), _beside(path, ASIDE_PREFIX)
    remove(new)  # left by a process that was killed here, as below
    try:
        yield new
        remove(aside)
        path.rename(aside)
        new.rename(path)
    except BaseException:
        remove(new)
        put_back(path)
        raise
    remove(aside)


def put_back(path: Path) -> Path:
    """The path of a run directory, after a run has been put back there that a killed process had moved away to replace it."""
    if not os.path.lexists(path):
        aside = _beside(path, ASIDE_PREFIX)
        if os.path.lexists(aside):  # not if its name is too long
            aside.rename(path)
    return path


def is_left_over(path: Path) -> bool:
    """Whether a directory is what a killed process left of replacing a run: an unfinished run, or one that was replaced."""
    original = path.with_name(path.name.removeprefix(ASIDE_PREFIX))
    return path.name.startswith(NEW_PREFIX) or (path.name.startswith(ASIDE_PREFIX) and original.exists())


def _beside(path: Path, prefix: str) -> Path:
    place = path.resolve()
    return place.with_name(prefix + place.name)
