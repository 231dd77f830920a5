"""Starting a run and resuming one."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable
from pathlib import Path

from rl_training.envs.factory import EnvFactory
from rl_training.errors import CheckpointError, ConfigError
from rl_training.experiment.checkpoint import read_manifest
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.finding import StartingPoint, last_good_checkpoint, owning_run
from rl_training.experiment.registry import get_algorithm
from rl_training.experiment.run import REPLAY_PART, Run, open_run
from rl_training.experiment.trust import Trust
from rl_training.models.custom import NetworkFunction
from rl_training.runtime.inference import recorded_observation
from rl_training.runtime.progress import Progress, choose_progress
from rl_training.runtime.trainer import Trainer, TrainResult


def start_training(
    config: TrainConfig,
    *,
    factory: EnvFactory | None = None,
    progress: Progress | None = None,
    command: str | None = None,
) -> Trainer:
    """A trainer at step 0 with a new run directory."""
    # The environment comes first, so that a mistake there does not leave an empty run behind.
    trainer = Trainer(config, factory=factory, progress=progress)
    try:
        trainer.require_room_to_save()
        trainer.run = Run.create(config, command if command is not None else shlex.join(sys.argv))
    except OSError as error:  # the name of a directory that the file system does not take
        trainer.close()
        raise ConfigError(
            f"cannot use the output directory {config.output_dir or 'below runs/'} ({error.strerror}); choose another "
            "--output-dir"
        ) from error
    except BaseException:
        trainer.close()
        raise
    return trainer


def train(config: TrainConfig) -> TrainResult:
    """Trains any algorithm from a config to the end, in a run directory."""
    trainer = start_training(config, progress=choose_progress())
    try:
        return trainer.train()
    finally:
        trainer.close()


def train_family(config: TrainConfig, family: type, entry: str) -> TrainResult:
    """``train`` for an entry point that serves one family of algorithms."""
    if not issubclass(get_algorithm(config.algo), family):
        raise ConfigError(
            f"{entry} does not train {config.algo}; use rl_training.runtime.sessions.train, which trains every algorithm"
        )
    return train(config)


def resume_training(
    path: Path,
    *,
    total_timesteps: int | None = None,
    factory: EnvFactory | None = None,
    progress: Progress | None = None,
    warn: Callable[[str], None],
    trust_modules: bool = False,
    network: NetworkFunction | None = None,
) -> Trainer:
    """A trainer at the last good checkpoint of a run directory, or at the checkpoint that the path names.

    A run that was stopped before its first checkpoint starts over and takes the same path. The modules that the run names
    are imported only from trusted places, unless ``trust_modules``; ``network`` replaces the network that it names.
    """
    run_path, named = owning_run(path)
    trust = Trust(run_path, trust_modules)
    run = open_run(run_path, trust, network)
    trainer = None
    try:
        if factory is None and not run.config.env_from_python:
            trust.require_env(run.config.env_id)
        trust.require_wrappers(run.config.wrappers)
        start = last_good_checkpoint(run_path, warn) if named is None else _as_it_is(named)
        config = _extended(run, 0 if start is None else _step_of(start.path), total_timesteps)
        recorded = None if start is None else recorded_observation(start.path)
        trainer = Trainer(config, run=run, factory=factory, progress=progress, recorded=recorded)
        trainer.require_room_to_save()
        if start is not None:
            if not start.with_replay:
                what = "has a damaged replay" if REPLAY_PART in read_manifest(start.path)["parts"] else "holds no replay"
                warn(f"{start.path} {what}, so training continues with an empty one: not an exact continuation")
            trainer.checkpoints.restore(start.path, with_replay=start.with_replay)
        run.rewind_to(None if start is None else start.path)
        run.extend(config.total_timesteps)
        return trainer
    except BaseException:
        (trainer or run).close()
        raise


def _as_it_is(checkpoint: Path) -> StartingPoint:
    """A checkpoint that the user names: whatever is damaged in it is an error."""
    return StartingPoint(checkpoint, REPLAY_PART in read_manifest(checkpoint)["parts"])


def _step_of(checkpoint: Path) -> int:
    """The step at which a checkpoint was written."""
    info = read_manifest(checkpoint)["info"]
    if not {"step", "metrics_bytes"} <= info.keys():
        raise CheckpointError(f"the checkpoint {checkpoint} cannot be resumed: it does not say where its run was")
    return int(info["step"])


def _extended(run: Run, reached: int, total_timesteps: int | None) -> TrainConfig:
    """The run's config with a new total, if one is given; the total must not be below the steps reached."""
    if total_timesteps is None:
        return run.config
    if total_timesteps < reached:
        raise ConfigError(
            f"the run {run.path} is already at step {reached}; --total-timesteps must be at least that, not {total_timesteps}"
        )
    return run.config.with_values(total_timesteps=total_timesteps)
