"""Proximal policy optimisation (Schulman et al. 2017, arXiv:1707.06347)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

import torch
from pydantic import Field, model_validator
from torch import Tensor

from rl_training.algorithms.config import (
    ActorCriticConfig,
    Count,
    Positive,
    PositiveNumber,
    ScheduledPositive,
    decaying,
    require_decay,
)
from rl_training.algorithms.on_policy import ActorCriticAlgorithm, Evaluated, MinibatchInput, Recorded
from rl_training.algorithms.strict_model import MAY_CHANGE, searched
from rl_training.algorithms.update import Known, Stage, StageLoss
from rl_training.schedules import Schedule

__all__ = ["PPO", "PPOConfig", "ppo_loss"]


class ClippedConfig(ActorCriticConfig):
    """Settings of PPO and recurrent PPO."""

    n_epochs: Positive = Field(4, description="passes over a rollout", json_schema_extra=searched(choice=[1, 4, 10, 20]))
    n_minibatches: Positive = Field(4, description="updates in one pass", json_schema_extra=searched(choice=[1, 4, 8, 16]))
    clip_range: ScheduledPositive = Field(
        0.2,
        description="clip the probability ratio to 1 +- x, a number or a schedule",
        json_schema_extra={**MAY_CHANGE, **searched(choice=[0.1, 0.2, 0.3])},
    )
    final_clip_range: PositiveNumber | None = Field(
        None,
        description="short form of a linear schedule: clip_range at its end; null: clip_range alone decides",
        json_schema_extra=MAY_CHANGE,
    )
    clip_range_decay_steps: Count = Field(
        0, description="env steps over which clip_range decays", json_schema_extra=MAY_CHANGE
    )
    clip_value: PositiveNumber | None = Field(None, description="clip the change of the value to +-x; null: no clipping")
    target_kl: PositiveNumber | None = Field(
        None, description="end a training phase early when the KL divergence exceeds this; null: no early stopping"
    )

    def passes(self) -> tuple[int, int]:
        return self.n_epochs, self.n_minibatches

    def check_run(self, total_timesteps: int, num_envs: int) -> None:
        super().check_run(total_timesteps, num_envs)
        size = self.n_steps * num_envs
        if self.n_minibatches > size:
            raise ValueError(
                f"algo_kwargs.n_minibatches ({self.n_minibatches}) exceeds the number of steps in a rollout "
                f"(algo_kwargs.n_steps {self.n_steps} * num_envs {num_envs} = {size}): lower it"
            )

    @model_validator(mode="after")
    def _clip_decay_is_complete(self) -> ClippedConfig:
        require_decay(self, "clip_range")
        return self


class PPOConfig(ClippedConfig):
    """Settings of PPO."""


ClippedConfigT = TypeVar("ClippedConfigT", bound=ClippedConfig)


def ppo_loss(
    log_prob: Tensor,  # (batch,) of the actions under the current policy
    old_log_prob: Tensor,  # (batch,) of the actions under the policy that acted
    advantage: Tensor,  # (batch,)
    value: Tensor,  # (batch,) current
    target: Tensor,  # (batch,) for the value
    entropy: Tensor,  # (batch,) of the current policy
    *,
    clip_range: float | Tensor,
    value_coef: float = 0.5,
    entropy_coef: float | Tensor = 0.0,
    clip_value: float | None = None,
    old_value: Tensor | None = None,  # (batch,) the value at the time of acting, for clip_value
) -> StageLoss:
    """The clipped surrogate, value and entropy terms, one number per sample."""
    assert log_prob.shape == old_log_prob.shape == advantage.shape == value.shape == target.shape == entropy.shape
    log_ratio = log_prob - old_log_prob
    ratio = log_ratio.exp()
    clipped_ratio = ratio.clamp(1.0 - clip_range, 1.0 + clip_range)  # type: ignore[arg-type]
    surrogate = torch.minimum(ratio * advantage, clipped_ratio * advantage)
    value_loss = (value - target).square()
    if clip_value is not None:
        assert old_value is not None
        near = old_value + (value - old_value).clamp(-clip_value, clip_value)
        value_loss = torch.maximum(value_loss, (near - target).square())
    loss = value_coef * value_loss - surrogate
    if isinstance(entropy_coef, Tensor) or entropy_coef:
        loss = loss - entropy_coef * entropy
    with torch.no_grad():
        change = ratio - 1.0
        metrics = {
            "policy_loss": -surrogate.detach(),
            "value_loss": value_loss.detach(),
            "entropy": entropy.detach(),
            "approx_kl": change - log_ratio,  # never negative; http://joschu.net/blog/kl-approx.html
            "clip_fraction": (change.abs() > clip_range).float(),
        }
    return StageLoss(loss, metrics)


class ClippedActorCritic(ActorCriticAlgorithm[ClippedConfigT]):
    """Optimises the clipped surrogate for several epochs over each rollout, with feed-forward and recurrent networks."""

    def build(self) -> None:
        super().build()
        config = self.config
        self.clip_range = decaying(config.clip_range, config.final_clip_range, config.clip_range_decay_steps)

    def schedules(self) -> dict[str, Schedule]:
        return {**super().schedules(), "clip_range": self.clip_range}

    def make_stage(self) -> Stage[MinibatchInput]:
        limit = self.config.target_kl

        def too_far(metrics: Mapping[str, Tensor]) -> bool:
            return limit is not None and bool(metrics["approx_kl"].mean() > limit)

        return Stage("loss", self.optimizer, self.minibatch_loss, stop=None if limit is None else too_far)

    def loss(self, now: Evaluated, recorded: Recorded, known: Known) -> StageLoss:
        config = self.config
        return ppo_loss(
            now.log_prob,
            recorded.log_prob,
            recorded.advantage,
            now.value,
            recorded.target,
            now.entropy,
            clip_range=known["clip_range"],
            value_coef=config.value_coef,
            entropy_coef=self.entropy_coef(known),
            clip_value=config.clip_value,
            old_value=recorded.value,
        )

    def why_not_compiled(self) -> str | None:
        return None if self.config.target_kl is None else "target_kl is checked between a loss and its step"


class PPO(ClippedActorCritic[PPOConfig]):
    """Proximal policy optimisation (Schulman et al. 2017)."""

    name = "ppo"
    summary = "proximal policy optimisation, optionally with normalisation, value clipping and early stopping on KL"
