"""The state of a training: with the policy and the replay, everything that decides the future of a run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from rl_training.data.segments import ReadBlock
from rl_training.experiment.layout import REPLAY_PART
from rl_training.types import State

if TYPE_CHECKING:
    from rl_training.runtime.trainer import Trainer


def training_state(trainer: Trainer) -> State:
    """Everything that decides the future of the run, besides the policy and the replay."""
    return {
        "env_steps": trainer.env_steps,
        "episodes": trainer.episodes.state_dict(),
        "evaluations": trainer.evaluations.state_dict(),
        "best_return": trainer.checkpoints.best_return,
        "owed": {name: due.owed for name, due in trainer.due.items()},
        "checkpoints": trainer.checkpoints.count,
        "streams": trainer.streams.state_dict(),
        "collector": trainer.collector.state_dict(),
        "compiled": trainer.compilation.in_force,
        "learner": trainer.learner.state_dict(),
        "hooks": trainer.hooks.state_dict(),
    }


def restore_training(trainer: Trainer, parts: Mapping[str, State], read: ReadBlock) -> None:
    """Restores the parts of a checkpoint; ``read`` gives the blocks of its replay."""
    state = parts["training"]
    trainer.env_steps = state["env_steps"]
    trainer.policy.load_state_dict(parts["policy"])
    trainer.learner.load_state_dict(state["learner"])
    trainer.learner.load_replay(parts.get(REPLAY_PART), trainer.env_steps, read)
    trainer.streams.load_state_dict(state["streams"])
    trainer.compilation.in_force = state["compiled"]
    trainer.episodes.load_state_dict(state["episodes"])
    trainer.evaluations.load_state_dict(state["evaluations"])
    trainer.checkpoints.best_return = state["best_return"]
    for name, due in trainer.due.items():
        due.owed = state["owed"][name]
    trainer.checkpoints.count = state["checkpoints"]
    trainer.hooks.load_state_dict(state["hooks"])
    for env_index in trainer.collector.load_state_dict(state["collector"]):
        trainer.learner.discard(env_index)
    trainer.started = True
