"""``train``, ``resume`` and ``tune``."""

from __future__ import annotations

import argparse
import functools
import shlex
import sys
from typing import TYPE_CHECKING

from rl_training.commands.console import success_of, uncollected, warn
from rl_training.errors import ConfigError, counted

if TYPE_CHECKING:
    from rl_training.runtime.trainer import Trainer, TrainResult


def train_command(arguments: argparse.Namespace) -> int:
    """Trains an agent from a config and the flags."""
    with uncollected():
        from rl_training.experiment.config import apply_overrides, load_config_data, resolve_config
        from rl_training.runtime.progress import choose_progress
        from rl_training.runtime.sessions import start_training

    if arguments.config is None and arguments.algo is None:
        raise ConfigError("nothing to train: give --config NAME_OR_PATH, or --algo NAME with --env ID")
    data = {} if arguments.config is None else load_config_data(arguments.config)
    flags = {
        "algo": arguments.algo,
        "env_id": arguments.env,
        "seed": arguments.seed,
        "total_timesteps": arguments.total_timesteps,
        "output_dir": arguments.output_dir,
        "device": arguments.device,
    }
    data.update({key: value for key, value in flags.items() if value is not None})
    config = resolve_config(apply_overrides(data, arguments.overrides))
    trainer = start_training(
        config,
        progress=choose_progress(arguments.quiet),
        command=arguments.command_line,
        overwrite=arguments.overwrite,
        init_from=arguments.init_from,
        warn=warn,
    )
    note_expectation(trainer, arguments.config)
    return _run_to_end(trainer)


def note_expectation(trainer: Trainer, name: str | None) -> None:
    """Shows what a packaged config has reached and how long it took, unless a setting that matters differs from it."""
    from rl_training.experiment.config import load_config_data, resolve_config
    from rl_training.experiment.packaged import expectation, packaged_configs

    if name not in packaged_configs() or trainer.initial is not None:
        return
    private = ("seed", "output_dir", "device")
    packaged, current = resolve_config(load_config_data(name)).describe(), trainer.config.describe()
    if any(packaged[key] != current[key] for key in packaged if key not in private):
        return
    expected = expectation(name)
    if expected is None:
        trainer.progress.note(f"what to expect of {name} has not been measured yet")
    else:
        trainer.progress.note(f"expect: {expected} (medians over seeds, measured on two cores: docs/benchmarks.md)")


def resume_command(arguments: argparse.Namespace) -> int:
    """Continues a run."""
    with uncollected():
        from rl_training.experiment.changes import with_overrides
        from rl_training.runtime.progress import choose_progress
        from rl_training.runtime.sessions import resume_training

    if arguments.total_timesteps is not None and any(one.startswith("total_timesteps=") for one in arguments.overrides):
        raise ConfigError("total_timesteps is given twice, with --set and as --total-timesteps; give it once")
    trainer = resume_training(
        arguments.path,
        total_timesteps=arguments.total_timesteps,
        change=functools.partial(with_overrides, overrides=arguments.overrides),
        command=arguments.command_line,
        progress=choose_progress(arguments.quiet),
        warn=warn,
        trust_modules=arguments.trust_modules,
    )
    print(f"resuming {arguments.path} at step {trainer.env_steps}", file=sys.stderr)
    return _run_to_end(trainer)


def tune_command(arguments: argparse.Namespace) -> int:
    """Searches for settings."""
    from rl_training.tune.command import make_plan, run_tune

    plan = make_plan(
        arguments.config,
        set_values=arguments.overrides,
        trials=arguments.trials,
        seeds=arguments.seeds,
        jobs=arguments.jobs,
        pruner=arguments.pruner,
        finalists=arguments.finalists,
        confirm=arguments.confirm,
        output_dir=arguments.output_dir,
        ray=arguments.ray,
    )
    return run_tune(plan)


def _run_to_end(trainer: Trainer) -> int:
    from rl_training.experiment.trust import trust_option
    from rl_training.runtime.stopping import TrainerStop

    assert trainer.run is not None
    run_dir = shlex.quote(str(trainer.run.path))
    option = trust_option(trainer.config, trainer.run.path)
    of_policy = trust_option(trainer.config, trainer.run.path, with_env=False)
    try:
        result = trainer.train(owns_process=True)
        if result.interrupted_by is not None:
            print(TrainerStop(trainer).saved(), flush=True)
    finally:
        trainer.close()
    if result.interrupted_by is not None:
        return 128 + result.interrupted_by
    _print_summary(result, run_dir, option, of_policy)
    return 0


def _print_summary(result: TrainResult, run_dir: str, option: str, of_policy: str) -> None:
    evaluation = result.evaluation
    total = sum(result.seconds.values())
    shares = ", ".join(f"{phase} {seconds / total:.0%}" for phase, seconds in result.seconds.items() if seconds > 0)
    best = "" if result.best_return is None else f" (best during training: {result.best_return:.1f})"
    if evaluation is None:
        evaluated, file = f"left out, because an episode may take more than eval.budget of the training steps{best}", ""
    else:
        returns = f"{evaluation.mean_return:.1f} +- {evaluation.std_return:.1f}"
        over = f"{counted(len(evaluation.returns), 'episode')}{success_of(evaluation)}"
        evaluated, file = f"return {returns} over {over}{best}", " evaluation.json,"
    now = "" if result.steps_now == result.env_steps else f" ({result.steps_now} of them in this session)"
    print(
        f"trained {result.env_steps} steps{now}, {counted(result.episodes, 'episode')}, {counted(result.updates, 'update')}\n"
        f"took {total:.1f} s: {shares}\n"
        f"evaluation: {evaluated}\n"
        f"run directory: {run_dir} (config.yaml, metrics.jsonl,{file} checkpoints/)\n"
        f"next:\n"
        f"  rl-training eval {run_dir} --episodes 100{option}\n"
        f"  rl-training plot {run_dir}\n"
        f"  rl-training report {run_dir}\n"
        f"  rl-training export {run_dir} --format onnx{of_policy}\n"
        f"  rl-training resume {run_dir} --total-timesteps {2 * result.env_steps}{option}"
    )
