"""The end of a run that cannot go on: its environment has failed, or its learning has diverged."""

from __future__ import annotations

import json
import shlex
from typing import TYPE_CHECKING

from rl_training.errors import CheckpointError, CollectorError, DivergenceError, EnvironmentFault, HookError
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.files import replace_text
from rl_training.experiment.layout import FAULT_PREFIX
from rl_training.experiment.run import Run
from rl_training.experiment.trust import trust_option
from rl_training.tracebacks import frames_of

if TYPE_CHECKING:
    from rl_training.runtime.trainer import Trainer


def explained(trainer: Trainer, error: Exception) -> Exception:
    """The error to raise in place of this one, with what the user needs to know. After the fault of an environment the run is
    saved as it was before the failing step, with a report that reproduces the failure; after that of a hook, as it is."""
    if isinstance(error, DivergenceError):
        return trainer.divergence.explained(error)
    if trainer.run is None or not isinstance(error, EnvironmentFault | HookError | CollectorError):
        return error
    trainer.hooks.lenient = True
    try:
        trainer.divergence.check()  # divergence may have caused the fault, and a diverged run is never saved
        if trainer.started:
            trainer.checkpoints.save_last()
            trainer.run.wait()
        reached = trainer.env_steps if trainer.started else None
        if isinstance(error, EnvironmentFault):
            report = write_fault_report(trainer.run, error, trainer.config, reached)
        elif isinstance(error, CollectorError):
            report = f"{_saved(reached)}; once the cause is fixed: rl-training resume {shlex.quote(str(trainer.run.path))}"
        else:
            report = f"{_saved(reached)}; once the hook is fixed, resume {trainer.run.path} with the same hooks"
    except DivergenceError as divergence:
        return trainer.divergence.explained(divergence)
    except (CheckpointError, OSError) as failure:
        return CheckpointError(f"{error}; saving the run then failed too: {failure}")
    error.args = (f"{str(error).removesuffix('.')}. {report}",)
    return error


def write_fault_report(run: Run, fault: EnvironmentFault, config: TrainConfig, env_steps: int | None) -> str:
    """Writes ``fault-step-N.json`` into the run directory; returns a sentence on how to reproduce and to continue. Without
    ``env_steps``, the run had not begun."""
    path = run.path / f"{FAULT_PREFIX}{env_steps or 0}.json"
    report = {
        "env_id": fault.env_id,
        "env_kwargs": config.env_kwargs,
        "problem": fault.problem,
        "episode_seed": fault.episode_seed,
        "actions": fault.actions,
        "traceback": [] if fault.__cause__ is None else frames_of(fault.__cause__),
    }
    replace_text(path, json.dumps(report) + "\n")
    reproduces = "the episode seed and the actions that reproduce this"
    if fault.actions is None:
        reproduces = (
            "the episode seed, but the episode is longer than checkpoint.max_replay_steps, so its actions are not kept"
        )
    return (
        f"{_saved(env_steps)}; {path} has {reproduces}. Once the environment is fixed: rl-training resume "
        f"{shlex.quote(str(run.path))}{trust_option(config, run.path)}"
    )


def _saved(env_steps: int | None) -> str:
    return "The run had not begun" if env_steps is None else f"The run is saved at step {env_steps}"
