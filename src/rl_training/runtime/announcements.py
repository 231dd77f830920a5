"""What a run says of itself: before its first step, and at its end if it has learned nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rl_training.errors import counted, either
from rl_training.experiment.collectors import CollectorsConfig
from rl_training.models.observation import describe_action, describe_observation

if TYPE_CHECKING:
    from rl_training.runtime.trainer import Trainer


def announce_run(trainer: Trainer) -> None:
    """Describes the run, and how its observations and actions are interpreted."""
    trainer.progress.note(describe_run(trainer))
    spec = trainer.policy.spec
    trainer.progress.note(f"observation: {describe_observation(spec.observation, trainer.policy.network)}")
    action = describe_action(spec.action)
    if action is not None:
        trainer.progress.note(f"action: {action}")
    if not trainer.config.collectors.step_by_step:
        trainer.progress.note(f"collectors: {describe_collectors(trainer.config.collectors)}")


def announce_no_updates(trainer: Trainer) -> None:
    """Says that a run was too short to learn. That is no mistake if it is the first part of a longer one."""
    if trainer.learner.updates == 0:
        trainer.progress.say(
            f"no update was made in {counted(trainer.env_steps, 'step')}, so the policy is still the initial one: "
            f"{trainer.learner.waits_for(trainer.env_steps)}"
        )


def announce_absent_keys(trainer: Trainer) -> None:
    """Says which chosen entries of infos were never there, as if their names are misspelt."""
    absent = trainer.log.absent_keys()
    if absent:
        trainer.progress.say(f"log.info_keys: the info of the last step of no episode had {either(absent)}")


def describe_collectors(config: CollectorsConfig) -> str:
    """One line about how steps are collected, with the caveats that a user must know."""
    line = f"{config.count} ({config.kind}), stretches of {config.stretch} steps, {config.mode}"
    if config.mode == "free":
        line += "; a free run cannot be reproduced, but none of its steps is lost or doubled"
    if config.kind == "ray":
        where = "an instance on this machine" if config.address is None else f"the cluster at {config.address}"
        line += f"; Ray is {where}; anyone with its token can run code there: docs/security.md"
    return line


def describe_run(trainer: Trainer) -> str:
    """One line that describes the run, with the memory of the replay."""
    config, megabytes = trainer.config, trainer.learner.nbytes / 1e6
    where = "nowhere" if trainer.run is None else trainer.run.path
    return (
        f"{config.algo} on {config.env_id}, seed {config.seed}, {config.num_envs} env(s), device {trainer.device}, replay "
        f"{megabytes:.1f} MB, writing to {where}"
    )


def announce_changes(trainer: Trainer) -> None:
    """Logs the settings that were changed when the run was resumed."""
    if trainer.changes:
        shown_values = ", ".join(f"{key} {change.before} -> {change.after}" for key, change in trainer.changes.items())
        trainer.progress.note(f"changed: {shown_values}")
        trainer.log.write_changes({key: change.after for key, change in trainer.changes.items()})
        trainer.changes = {}
