"""The run directory: the files of a run on disk. Their names are in ``layout.py``.

config.yaml        the resolved config, every default spelled out
metadata.json      versions, command, seed, and the settings that were changed on the way
metrics.jsonl      the log (tensorboard/ holds the same values)
episodes.jsonl     every episode of training
trackers.json      the name of the run in W&B and MLflow
evaluation.json    the evaluation after training
initial/           the weights that the run started from, if they were another run's
checkpoints/       step-XXXXXXXXXX directories; ``latest`` and ``best`` point to two of them
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import re
import shutil
import sys
import threading
import warnings
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

from rl_training.data.segments import Snapshot
from rl_training.errors import CheckpointError, ConfigError, shown
from rl_training.experiment.changes import differences, note_of, recorded_in
from rl_training.experiment.checkpoint import (
    REPLACED_PREFIX,
    TEMPORARY_PREFIX,
    Part,
    read_manifest,
    release,
    write_checkpoint,
)
from rl_training.experiment.compat import is_newer, naming_the_writer
from rl_training.experiment.config import TrainConfig, parse_yaml, rename_old, resolve_config, with_network
from rl_training.experiment.files import (
    inode_of,
    own_directory,
    parse_json,
    read_small,
    remove,
    replace_text,
)
from rl_training.experiment.folder import target_of
from rl_training.experiment.layout import (
    BEST,
    CHECKPOINTS,
    CONFIG_FILE,
    EVALUATION_FILE,
    INITIAL,
    LATEST,
    LOCK_FILE,
    METADATA_FILE,
    PRUNED_PREFIX,
    REPLAY_PART,
    SET_ASIDE,
)
from rl_training.experiment.lock import Lock
from rl_training.experiment.manifest import checkpoint_name
from rl_training.experiment.replacing import put_back, replacing, require_only_a_run
from rl_training.experiment.segments import Segments
from rl_training.experiment.trust import Trust
from rl_training.models.custom import NetworkFunction
from rl_training.types import State
from rl_training.version import __version__


class Initial(NamedTuple):
    """The weights that a run starts from, if they are not new, and where they are from."""

    source: str
    parts: Mapping[str, State]  # the acting parts of a checkpoint


class Run:
    """A run directory that this process owns: no second process can train in it at the same time."""

    def __init__(self, path: Path, config: TrainConfig) -> None:
        self.path = path
        self.config = config
        self._writer: threading.Thread | None = None
        self._failure: BaseException | None = None
        self._shared: Segments = {}  # segments of the last checkpoint with a replay
        self._written = config  # as config.yaml has it
        try:
            own_directory(self.checkpoints, create=True)
            self._lock = Lock(path / LOCK_FILE)
            if not self._lock.take():
                self._lock.close()
                raise CheckpointError(f"another process is training in {path}; wait for it to finish or stop it first")
            self._identity = inode_of(path)
        except OSError as error:
            raise CheckpointError(f"cannot write in {path}: {error.strerror}") from error
        self._clean_up()

    def _clean_up(self) -> None:
        """Removes what a killed process left behind, and restores a checkpoint that was about to be replaced."""
        for leftover in self.checkpoints.glob(f"{REPLACED_PREFIX}*"):
            original = leftover.with_name(leftover.name.removeprefix(REPLACED_PREFIX))
            if leftover.is_dir() and not leftover.is_symlink() and not os.path.lexists(original):
                leftover.rename(original)
        for prefix in (TEMPORARY_PREFIX, REPLACED_PREFIX, PRUNED_PREFIX):
            for leftover in self.checkpoints.glob(f"{prefix}*"):
                remove(leftover)

    @classmethod
    def create(cls, config: TrainConfig, command: str, *, overwrite: bool = False, initial: Initial | None = None) -> Run:
        """Creates a run directory: the configured one, or a new name below ``runs/``. With ``overwrite`` it takes the place
        of a run that is there."""
        path = Path(config.output_dir) if config.output_dir else _usual_path(config, fresh=not overwrite)
        try:
            cls._create_at(put_back(path), config, command, overwrite, initial)
        except OSError as error:
            raise ConfigError(
                f"cannot write in the output directory {path}: {error.strerror}; choose another --output-dir"
            ) from error
        return cls(path, config)

    @classmethod
    def _create_at(cls, path: Path, config: TrainConfig, command: str, overwrite: bool, initial: Initial | None) -> None:
        if os.path.lexists(path) and not path.is_dir():
            raise ConfigError(f"the output directory {path} is not a directory; choose another --output-dir")
        if not path.exists() or not any(path.iterdir()):
            return _write_new(path, config, command, initial)
        if overwrite:
            require_only_a_run(path)
            with contextlib.closing(cls(path, config)), replacing(path) as new:  # only if no other process trains in it
                return _write_new(new, config, command, initial)
        what = (
            f"already holds a run; continue it with: rl-training resume {path}, replace it with --overwrite (in "
            "Python overwrite=True), or"
            if is_run(path)
            else "is not empty;"
        )
        raise ConfigError(f"the output directory {path} {what} choose another --output-dir")

    @property
    def initial(self) -> Path | None:
        """The weights that the run started from, if they were not new."""
        path, metadata = self.path / INITIAL, read_metadata(self.path)
        if path.exists():
            return path
        if isinstance(metadata, dict) and "init_from" in metadata:
            source = shown(metadata["init_from"])
            raise CheckpointError(
                f"the run {self.path} started from the weights of {source}, but its directory {INITIAL}/, which holds them, "
                "is missing; put it back, or start the run again with --init-from"
            )
        return None

    @property
    def checkpoints(self) -> Path:
        return self.path / CHECKPOINTS

    def require_present(self) -> None:
        """Refuses to write once the directory has been removed, moved or replaced: it would be a fragment of a run."""
        if inode_of(self.path) != self._identity:
            raise CheckpointError(
                f"the run directory {self.path} was removed or moved while the run was going on, so the run ends and writes "
                "nothing more; put it back and resume it, or start the run again"
            )

    def resumable_step(self) -> int | None:
        """The step of the newest checkpoint from which the run can be continued exactly; None if there is none."""
        steps = step_directories(self.path)
        exact = [path for path in steps if (path / f"{REPLAY_PART}.json").exists()]
        return next((int(path.name.removeprefix("step-")) for path in exact or steps), None)

    def change(self, config: TrainConfig, step: int, command: str, trained: TrainConfig | None = None) -> None:
        """Changes settings of the run at a step, and records that in its metadata. ``trained`` is the config of the
        checkpoint there: if the run was stepped back to it from a later change, that change is now one at this step."""
        metadata = read_metadata(self.path)
        known = metadata if isinstance(metadata, dict) else _metadata(config, command)
        earlier = known["changes"] if recorded_in(known) else []
        stepped_back = bool(earlier) and isinstance(at := earlier[-1].get("step"), int) and at > step
        changes = differences(self.config, config)
        if trained is not None and stepped_back:
            changes |= differences(trained, config)
        if changes:
            note = {"step": step, "command": command, "settings": note_of(changes)}
            replace_text(self.path / METADATA_FILE, json.dumps({**known, "changes": [*earlier, note]}, indent=1) + "\n")
        if differences(self._written, config):
            replace_text(self.path / CONFIG_FILE, config.to_yaml())
        self.config = self._written = config

    def rewind_to(self, checkpoint: Path | None) -> None:
        """Makes a checkpoint the latest one. Later ones, which are damaged or about to be trained again, are set aside."""
        aside = self.checkpoints / SET_ASIDE
        for path in step_directories(self.path):
            if checkpoint is None or path.name > checkpoint.name:
                own_directory(aside, create=True)
                remove(aside / path.name)
                path.rename(aside / path.name)
        if checkpoint is not None:
            self._point(LATEST, checkpoint.name)

    def share(self, checkpoint: Path, segments: Segments) -> None:
        """Notes the segments of a checkpoint that training continues from: if it is of this run, they need no rewriting."""
        if checkpoint.parent.resolve() == self.checkpoints.resolve():
            self._shared = segments

    def save(self, step: int, parts: Mapping[str, Part], info: Mapping[str, Any], *, best: bool = False) -> None:
        """Writes a checkpoint in the background; the states must not change afterwards. Waits for the previous one first."""
        try:
            self.wait()
            self.require_present()
        except BaseException:
            release(parts)
            raise
        name = checkpoint_name(step, best=best)
        writer = threading.Thread(target=self._write, args=(name, dict(parts), dict(info), best))
        try:
            writer.start()
            self._writer = writer
        except RuntimeError as error:
            warnings.warn(
                f"no thread can be started to write the checkpoint ({error}), so training waits; raise ulimit -u or -v",
                stacklevel=2,
            )
            self._write(name, parts, info, best)

    def _write(self, name: str, parts: Mapping[str, Part], info: Mapping[str, Any], best: bool) -> None:
        try:
            segments = write_checkpoint(self.checkpoints / name, parts, info, self._shared, create_parents=False)
            if any(isinstance(state, Snapshot) for state in parts.values()):
                self._shared = segments
            self._point(BEST if best else LATEST, name)
            self._prune(self.checkpoints / name)
        except OSError as error:
            self._failure = CheckpointError(f"cannot write in {self.checkpoints}: {error.strerror}")
        except BaseException as error:  # whatever it is, the training thread must raise it
            self._failure = error

    def wait(self) -> None:
        """Waits until the checkpoint being written is on disk; raises the error if writing failed."""
        if self._writer is not None:
            self._writer.join()
            self._writer = None
        failure, self._failure = self._failure, None
        if failure is not None:
            self.require_present()  # if the directory is gone, that is the reason
            raise failure

    def _point(self, link: str, name: str) -> None:
        """Redirects a symbolic link atomically, or a file with the name of the checkpoint where links are not allowed."""
        temporary = self.checkpoints / f".{link}"
        remove(temporary)
        try:
            temporary.symlink_to(name, target_is_directory=True)
        except OSError:
            temporary.write_text(name, "utf-8")
        if sys.platform == "win32":
            remove(self.checkpoints / link)  # a link to a directory cannot be replaced there
        temporary.replace(self.checkpoints / link)

    def _prune(self, written: Path) -> None:
        """Keeps the newest checkpoints, the two newest that hold a replay, the best one, and the one just written."""
        steps = step_directories(self.path)
        kept = {written, *steps[: self.config.checkpoint.keep]}
        kept.update([path for path in steps if (path / f"{REPLAY_PART}.json").exists()][:2])
        best = Path(target_of(self.checkpoints / BEST) or "").name
        for path in (*steps, *self.checkpoints.glob("step-*-best")):
            if path not in kept and path.name != best:
                pruned = path.with_name(PRUNED_PREFIX + path.name)
                remove(pruned)
                path.rename(pruned)  # at once, so that a reader can tell a pruned checkpoint from a damaged one
                remove(pruned)

    def write_evaluation(self, result: Mapping[str, Any]) -> None:
        self.require_present()
        replace_text(self.path / EVALUATION_FILE, json.dumps(result, indent=1) + "\n")

    def close(self) -> None:
        try:
            self.wait()
        finally:
            self._lock.close()


def is_run(path: Path) -> bool:
    """Whether a directory is a run directory. Reading its config fails if something else is in its place."""
    return os.path.lexists(path / CONFIG_FILE)


def open_run(path: Path, trust: Trust | None = None, network: NetworkFunction | None = None) -> Run:
    """Opens an existing run directory to continue the run; ``network`` replaces the network that the run names."""
    if not put_back(path).exists():
        raise CheckpointError(f"there is no run at {path}")
    if not is_run(path):
        raise CheckpointError(f"{path} is not a run directory: it has no {CONFIG_FILE}")
    data = with_network(read_run_config(path), network)
    (trust or Trust(path)).require_algo(data)
    with naming_the_writer(path, _newest_writer(path)):
        config = resolve_config(rename_old(data))
    return Run(path, config)


def read_run_config(run_path: Path) -> dict[str, Any]:
    """The unchecked values of a run's config, as they were written."""
    file = run_path / CONFIG_FILE
    try:
        text = read_small(file).decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise CheckpointError(f"cannot read {file}: {reason}") from error
    try:
        data = parse_yaml(text, str(file))
    except RecursionError as error:
        raise CheckpointError(f"{file} is nested too deeply, so rl_training did not write it") from error
    if not isinstance(data, dict):
        raise CheckpointError(f"{file} is damaged: it must be a mapping of settings, such as 'algo: dqn'")
    for key in ("algo", "env_id"):
        if not isinstance(data.get(key), str):
            raise CheckpointError(f"{file} is damaged: it has no valid '{key}'; put back the original")
    return data


def read_metadata(run_path: Path) -> Any:
    """The metadata of a run, whatever they are; None if they cannot be read."""
    file = run_path / METADATA_FILE
    with contextlib.suppress(OSError, CheckpointError):
        return parse_json(read_small(file), file)
    return None


def _newest_writer(run_path: Path) -> str | None:
    """The version of rl_training that began a run, or that wrote its last checkpoint if that is newer."""
    writer = None
    with contextlib.suppress(LookupError, TypeError):
        writer = read_metadata(run_path)["versions"]["rl-training"]
    for checkpoint in step_directories(run_path)[:1]:
        with contextlib.suppress(CheckpointError):
            later = read_manifest(checkpoint)["written_by"]
            writer = later if not isinstance(writer, str) or is_newer(later, writer) else writer
    return writer


def step_directories(run_path: Path) -> list[Path]:
    """The checkpoints of a run that training can continue from, newest first."""
    found = (run_path / CHECKPOINTS).glob("step-*")
    return sorted((path for path in found if re.fullmatch(r"step-\d+", path.name)), reverse=True)


def _usual_path(config: TrainConfig, *, fresh: bool) -> Path:
    """The name of a run below ``runs/``, with a number if it has to be new."""
    env = re.sub(r"[^A-Za-z0-9.-]+", "-", config.env_id)
    algo = config.algo.rpartition(":")[2]  # the class, if it is a path
    base = f"{algo}-{env}-seed{config.seed}"
    number = 1
    while put_back(path := Path("runs") / (base if number == 1 else f"{base}-{number}")).exists() and fresh:
        number += 1
    return path


def _write_new(path: Path, config: TrainConfig, command: str, initial: Initial | None) -> None:
    """Writes what a run has before its first step."""
    metadata = {**_metadata(config, command), **({} if initial is None else {"init_from": initial.source})}
    (path / CHECKPOINTS).mkdir(parents=True)
    try:
        if initial is not None:  # before there is a run, which would otherwise start from other weights
            write_checkpoint(path / INITIAL, initial.parts, {})
        (path / CONFIG_FILE).write_text(config.to_yaml(), "utf-8")
        (path / METADATA_FILE).write_text(json.dumps(metadata, indent=1) + "\n", "utf-8")
    except BaseException:
        shutil.rmtree(path, ignore_errors=True)  # an incomplete run would block the next attempt
        raise


def _metadata(config: TrainConfig, command: str) -> dict[str, Any]:
    versions = {"rl-training": __version__}
    for package in ("torch", "gymnasium", "numpy"):
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[package] = metadata.version(package)
    return {
        "algo": config.algo,
        "env_id": config.env_id,
        "seed": config.seed,
        "command": command,
        "python": platform.python_version(),
        "platform": f"{sys.platform} {platform.machine()}",
        "versions": versions,
        "changes": [],
    }
