"""Starting a run and resuming one."""

from __future__ import annotations

import shlex
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rl_training.envs.factory import EnvFactory
from rl_training.errors import CheckpointError, ConfigError, shown
from rl_training.experiment.changes import LENGTH, as_left, differences, forgotten, recorded_in, require_unedited
from rl_training.experiment.checkpoint import read_manifest
from rl_training.experiment.config import TrainConfig, resolve_config, with_network
from rl_training.experiment.finding import StartingPoint, last_good_checkpoint, owning_run
from rl_training.experiment.layout import CONFIG_FILE, METADATA_FILE, REPLAY_PART
from rl_training.experiment.registry import canonical_name, get_algorithm
from rl_training.experiment.run import Run, open_run, read_metadata
from rl_training.experiment.trust import Trust
from rl_training.models.custom import NetworkFunction
from rl_training.runtime.inference import recorded_agent
from rl_training.runtime.initial import start_from
from rl_training.runtime.progress import Progress, choose_progress
from rl_training.runtime.trainer import Trainer, TrainResult


def start_training(
    config: TrainConfig,
    *,
    factory: EnvFactory | None = None,
    progress: Progress | None = None,
    command: str | None = None,
    overwrite: bool = False,
    init_from: Path | None = None,
    warn: Callable[[str], None] = warnings.warn,
) -> Trainer:
    """A trainer at step 0 with a new run directory, which takes the place of an old one with ``overwrite``; the weights are
    those of ``init_from``, a run or checkpoint, if it is given."""
    # The environment comes first, so that a mistake there does not leave an empty run behind.
    trainer = Trainer(config, factory=factory, progress=progress)
    try:
        if init_from is not None:
            start_from(trainer, init_from, warn)
        trainer.require_room_to_save()
        command = shlex.join(sys.argv) if command is None else command
        trainer.run = Run.create(config, command, overwrite=overwrite, initial=trainer.initial)
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
    change: Callable[[TrainConfig], TrainConfig] | None = None,
    command: str | None = None,
    factory: EnvFactory | None = None,
    progress: Progress | None = None,
    warn: Callable[[str], None],
    trust_modules: bool = False,
    network: NetworkFunction | None = None,
) -> Trainer:
    """A trainer at the last good checkpoint of a run directory, or at the checkpoint that the path names.

    A run that was stopped before its first checkpoint starts over and takes the same path. The modules that the run names
    are imported only from trusted places, unless ``trust_modules``; ``network`` replaces the network that it names.
    ``change`` gives the config to continue with, from the one that the run was left with.
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
        step = 0 if start is None else _step_of(start.path)
        values, recorded = (None, None) if start is None else recorded_agent(start.path)
        trained = run.config if values is None else _trained(run, values, network)
        config = _continued(run, trained, change or (lambda left: left), total_timesteps, step, warn)
        trainer = Trainer(config, run=run, factory=factory, progress=progress, recorded=recorded)
        trainer.require_room_to_save()
        if start is not None:
            if not start.with_replay:
                what = "has a damaged replay" if REPLAY_PART in read_manifest(start.path)["parts"] else "holds no replay"
                warn(f"{start.path} {what}, so training continues with an empty one: not an exact continuation")
            trainer.checkpoints.restore(start.path, with_replay=start.with_replay)
        elif run.initial is not None:
            start_from(trainer, run.initial, warn)
        run.rewind_to(None if start is None else start.path)
        run.change(config, step, command if command is not None else shlex.join(sys.argv), trained)
        trainer.changes = {key: one for key, one in differences(trained, config).items() if key != LENGTH}
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
        raise CheckpointError(f"the checkpoint {checkpoint} cannot be resumed: it does not record the step of its run")
    return int(info["step"])


def _trained(run: Run, values: dict[str, Any], network: NetworkFunction | None) -> TrainConfig:
    """The config of a run's checkpoint."""
    algo = canonical_name(str(values.get("algo")))
    if algo != run.config.algo:
        raise ConfigError(
            f"{run.path / CONFIG_FILE} was edited: algo is {shown(run.config.algo)} there and {shown(algo)} in the run; put "
            "it back, because it cannot change in a run that has begun"
        )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # config.yaml, which should be the same, has been read
        return resolve_config(with_network(values, network))


def _continued(
    run: Run,
    trained: TrainConfig,
    change: Callable[[TrainConfig], TrainConfig],
    total_timesteps: int | None,
    reached: int,
    warn: Callable[[str], None],
) -> TrainConfig:
    """The config that a run continues with; its total must not be below the steps reached."""
    recorded = recorded_in(read_metadata(run.path))
    try:
        left = as_left(trained, recorded or [])
    except ConfigError as error:
        raise CheckpointError(f"{run.path / METADATA_FILE} is damaged: it records what cannot be: {error}") from error
    if recorded is None:  # written by a version that recorded a new total nowhere else
        left = left.with_values(total_timesteps=run.config.total_timesteps)
    wanted = change(left)
    if total_timesteps is not None:
        wanted = wanted.with_values(total_timesteps=total_timesteps)
    require_unedited(run.path, run.config, trained, left, wanted)
    if wanted.total_timesteps < min(reached, left.total_timesteps):
        raise ConfigError(
            f"the run {run.path} is already at step {reached}; its total_timesteps must be at least that, not "
            f"{wanted.total_timesteps}"
        )
    _require_effect(left, wanted, reached)
    for sentence in forgotten(run.path, run.config, left, wanted):
        warn(sentence)
    own = [key for key in differences(left, wanted) if key.startswith("algo_kwargs.")]
    if own and reached >= wanted.total_timesteps:
        never = f"the run is over at step {reached}, so it never uses the new {' and '.join(own)}"
        warn(f"{never}; give it a larger total_timesteps")
    run.config = left
    return wanted


def _require_effect(left: TrainConfig, wanted: TrainConfig, reached: int) -> None:
    """Refuses a new learning rate that the run would never use, because its linear decay is over."""
    old, new = left.algo_kwargs, wanted.algo_kwargs
    schedules = [settings.learning_rate_schedule() for settings in (old, new)]
    if old.learning_rate == new.learning_rate or new.final_learning_rate is None:
        return
    if all(schedules[0](step) == schedules[1](step) for step in (reached, wanted.total_timesteps)):
        raise ConfigError(
            f"algo_kwargs.learning_rate={shown(new.learning_rate)} has no effect at step {reached}, because "
            f"final_learning_rate={new.final_learning_rate} is in force; add --set algo_kwargs.final_learning_rate=null "
            "--set algo_kwargs.learning_rate_decay_steps=0"
        )
