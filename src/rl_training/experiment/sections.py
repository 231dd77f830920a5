"""The sections of a config for evaluation, stopping, checkpoints and logs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field, model_serializer, model_validator

from rl_training.algorithms.config import Count, Fraction, Positive
from rl_training.algorithms.strict_model import StrictModel


class EvalConfig(StrictModel):
    """When and how the policy is evaluated, on separate environments and seeds."""

    CHOSEN: ClassVar[frozenset[str]] = frozenset({"interval", "episodes", "final_episodes"})  # without a budget, if given

    interval: Count = Field(5_000, description="env steps between evaluations; 0: only at the end")
    episodes: Positive = Field(10, description="episodes in each evaluation")
    final_episodes: Positive = Field(100, description="episodes in the evaluation after training")
    num_envs: Positive = Field(10, description="environments evaluated in parallel")
    max_episode_steps: Positive | None = Field(
        None,
        description="stop an evaluated episode after this many steps; null: with a budget, after as many as are left "
        "of it, otherwise only the environment ends it",
    )
    budget: Fraction | None = Field(
        0.1,
        description="env steps that all evaluations together may take, as a share of the training steps: they have fewer "
        "episodes or are left out; null: no limit, which is the default if interval, episodes or final_episodes is set",
    )

    keep_best: bool = Field(True, description="keep the policy with the best evaluation so far as checkpoints/best")

    @model_validator(mode="before")
    @classmethod
    def _no_budget_if_chosen(cls, data: Any) -> Any:
        chosen = isinstance(data, Mapping) and data.keys() & cls.CHOSEN
        return {"budget": None, **data} if chosen else data


class StopConfig(StrictModel):
    """When a run ends before its total."""

    return_: float | None = Field(
        None, alias="return", description="save and end the run once evaluations reach this mean return; null: never"
    )
    over: Positive = Field(1, description="number of most recent evaluations that the mean is taken over")

    @model_serializer
    def as_data(self) -> dict[str, Any]:
        """The values under their names in a config."""
        return {"return": self.return_, "over": self.over}


class CheckpointConfig(StrictModel):
    """When a checkpoint is written and what is kept."""

    interval: Count = Field(10_000, description="env steps between checkpoints; 0: only at the end or when stopped")
    keep: Positive = Field(3, description="number of newest checkpoints kept, besides the best")
    replay_every: Count = Field(
        1, description="save the replay in the first of every k checkpoints and the last; 0: never, resuming refills it"
    )
    max_replay_steps: Positive | None = Field(
        None,
        description="longest unfinished episode, in steps, that resuming replays; a longer one is dropped; null: no limit",
    )


class LogConfig(StrictModel):
    """Logs and trackers."""

    interval: Positive = Field(1_000, description="env steps between lines of metrics.jsonl")
    info_keys: tuple[str, ...] = Field(
        (), description="entries of the info of an episode's last step to write to episodes.jsonl; is_success always is"
    )
    trackers: tuple[Literal["tensorboard", "wandb", "mlflow"], ...] = Field(
        ("tensorboard",), description="where the run is tracked besides its logs: tensorboard, wandb, mlflow"
    )
    tensorboard: bool = Field(True, description="false: no TensorBoard events, even if the trackers name it")
