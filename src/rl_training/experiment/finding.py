"""Finds the checkpoint that a path or a run directory stands for: the newest intact one, past damaged and removed ones."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from rl_training.errors import CheckpointError, IncompatibleError, PrunedError
from rl_training.experiment.checkpoint import (
    MANIFEST,
    REPLACED_PREFIX,
    LoadedCheckpoint,
    load_checkpoint,
    read_manifest,
    verify_checkpoint,
)
from rl_training.experiment.files import own_directory
from rl_training.experiment.folder import follow_links, is_pointer
from rl_training.experiment.layout import ACTING_PARTS, CONFIG_FILE, REPLAY_PART, TRAINING_PARTS
from rl_training.experiment.run import is_run, step_directories

#: How often to look for the newest checkpoint again, and seconds in between, if it is removed or replaced while being read.
ATTEMPTS, PAUSE = 200, 0.01
FALLING_BACK = "falling back to the previous checkpoint"


def owning_run(path: Path) -> tuple[Path, Path | None]:
    """The run directory that a path refers to, and the checkpoint in it if the path names one."""
    if is_checkpoint(path):
        checkpoint = follow_links(path).resolve()
        run_path = checkpoint.parent.parent
        if not is_run(run_path):
            raise CheckpointError(f"the checkpoint {path} does not belong to a run; resume needs a run directory")
        if "training" not in read_manifest(checkpoint)["parts"]:
            raise CheckpointError(
                f"the checkpoint {path} holds only the policy; resume the run instead: rl-training resume {run_path}"
            )
        return run_path, checkpoint
    return path, None


class StartingPoint(NamedTuple):
    """A checkpoint to continue from, and whether its replay can be used."""

    path: Path
    with_replay: bool


def last_good_checkpoint(run_path: Path, warn: Callable[[str], None]) -> StartingPoint | None:
    """The newest intact checkpoint, or None if none was ever written. Damaged ones are reported and skipped. One with a
    replay is preferred to a newer one without, because only the former continues the run exactly. Checkpoints share the
    files of a replay, so damage there can affect all of them: then the newest one continues without its replay."""
    found, without_replay, incompatible = None, None, None
    candidates = step_directories(run_path)
    problems: dict[Path, str] = {}
    for path in candidates:
        try:
            manifest = verify_checkpoint(path)
        except CheckpointError as error:
            problems[path] = str(error)
            incompatible = error if isinstance(error, IncompatibleError) else incompatible
            without_replay = without_replay or _without_replay(path)
            continue
        if not set(TRAINING_PARTS) <= set(manifest["parts"]):
            problems[path] = f"the checkpoint {path} holds only the policy"
            continue
        if REPLAY_PART in manifest["parts"]:
            found = StartingPoint(path, with_replay=True)
            break
        without_replay = without_replay or StartingPoint(path, with_replay=False)
    found = found or without_replay
    for path, problem in problems.items():
        used = found is not None and found.path == path
        warn(f"{problem}; " + ("continuing from it without its replay" if used else FALLING_BACK))
    if incompatible is not None and found is None:
        raise incompatible  # starting again would not help: another version can continue it
    if candidates and found is None:
        raise CheckpointError(
            f"none of the checkpoints in {run_path} can be read; start the run again with: rl-training train --config "
            f"{run_path / CONFIG_FILE}"
        )
    return found


def _without_replay(path: Path) -> StartingPoint | None:
    """A damaged checkpoint, if the damage is in its replay alone."""
    try:
        verify_checkpoint(path, TRAINING_PARTS)
    except CheckpointError:
        return None
    return StartingPoint(path, with_replay=False)


def load_acting(path: Path, warn: Callable[[str], None]) -> LoadedCheckpoint:
    """The parts that acting needs, of a checkpoint or of the newest intact one in a run directory.

    A run in training removes old checkpoints. If that happens to the one being read, the next one is read instead.
    """
    for _ in range(ATTEMPTS):
        try:
            return load_checkpoint(path, ACTING_PARTS) if is_checkpoint(path) else _newest_acting(path, warn)
        except PrunedError as error:
            pruned = error
            time.sleep(PAUSE)
    raise pruned


def _newest_acting(path: Path, warn: Callable[[str], None]) -> LoadedCheckpoint:
    if not path.exists():
        raise CheckpointError(f"there is no run or checkpoint at {path}")
    if not is_run(path):
        raise CheckpointError(f"{path} is neither a run directory nor a checkpoint")
    own_directory(path / "checkpoints")
    incompatible = None
    for candidate in step_directories(path):
        try:
            return load_checkpoint(candidate, ACTING_PARTS)
        except PrunedError:
            raise
        except CheckpointError as error:
            warn(f"{error}; {FALLING_BACK}")
            incompatible = error if isinstance(error, IncompatibleError) else incompatible
    if incompatible is not None:
        raise incompatible
    replacing = any((path / "checkpoints").glob(f"{REPLACED_PREFIX}*"))  # its successor has the name in a moment
    raise (PrunedError if replacing else CheckpointError)(
        f"the run {path} has no usable checkpoint; train it with: rl-training resume {path}"
    )


def is_checkpoint(path: Path) -> bool:
    """Whether a path leads to a checkpoint rather than to a run directory."""
    return (path / MANIFEST).exists() or is_pointer(path)


def run_of(path: Path) -> Path:
    """The run directory that a path is in, or the path itself if it is in none."""
    for folder in path.resolve().parents:
        if is_run(folder):
            return folder
    return path
