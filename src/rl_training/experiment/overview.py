"""The runs below a directory, as data: nothing that a run names is imported."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rl_training.errors import CheckpointError, ConfigError, counted
from rl_training.experiment.checkpoint import read_manifest
from rl_training.experiment.files import parse_json, read_small
from rl_training.experiment.layout import EVALUATION_FILE
from rl_training.experiment.metrics import METRICS_FILE, read_log
from rl_training.experiment.replacing import is_left_over
from rl_training.experiment.run import is_run, read_run_config, step_directories


def runs_below(folder: Path) -> list[Path]:
    """The run directories below a directory, or the directory itself if it is one."""
    if not folder.is_dir():
        raise ConfigError(f"there is no directory {folder}")
    found = sorted(_search(folder))
    if not found:
        raise ConfigError(f"there is no run below {folder}: a run directory has a config.yaml and a checkpoints directory")
    return found


def _search(folder: Path) -> Iterator[Path]:
    if is_run(folder) and (folder / "checkpoints").is_dir():
        yield folder
        return
    for inner in folder.iterdir():
        if inner.is_dir() and not inner.is_symlink() and not is_left_over(inner):
            yield from _search(inner)


def step_of(path: Path, log: Sequence[Mapping[str, Any]]) -> int:
    """The last step that a run has logged or saved. The name of a checkpoint that was renamed or copied does not count."""
    saved = next((step for step in map(_saved_step, step_directories(path)) if step is not None), 0)
    return max([saved, *(int(record["step"]) for record in log)])


def _saved_step(checkpoint: Path) -> int | None:
    try:
        return int(read_manifest(checkpoint)["info"]["step"])
    except CheckpointError:
        return None


def describe_run(path: Path) -> str:
    """One line about a run: its task, seed, progress and last evaluation."""
    try:
        config = read_run_config(path)
        log = read_log(path) if (path / METRICS_FILE).exists() else []
    except CheckpointError as error:
        return f"{path}  cannot be read: {error}"
    task = f"{config['algo']} on {config['env_id']}, seed {config.get('seed')}"
    line = f"{path}  {task}, step {step_of(path, log)}/{config.get('total_timesteps')}"
    with contextlib.suppress(OSError, CheckpointError, LookupError, TypeError, ValueError):
        result = parse_json(read_small(path / EVALUATION_FILE), path / EVALUATION_FILE)
        return f"{line}, return {result['return_mean']:.1f} over {counted(result['episodes'], 'episode')}"
    returns = (record.get("return_mean") for record in log if record["kind"] == "eval")
    evaluated = [value for value in returns if value is not None]
    return f"{line}, last evaluation {evaluated[-1]:.1f}" if evaluated else line
