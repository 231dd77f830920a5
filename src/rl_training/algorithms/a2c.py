"""Advantage actor-critic (A2C), the synchronous form of A3C (Mnih et al., arXiv:1602.01783)."""

from __future__ import annotations

from pydantic import Field
from torch import Tensor

from rl_training.algorithms.config import ActorCriticConfig, Fraction, Positive, ScheduledPositive
from rl_training.algorithms.on_policy import ActorCriticAlgorithm, Evaluated, Recorded
from rl_training.algorithms.strict_model import searched
from rl_training.algorithms.update import Known, StageLoss

__all__ = ["A2C", "A2CConfig", "a2c_loss"]


class A2CConfig(ActorCriticConfig):
    """Settings of A2C. With a lambda of 1, the advantages are those of n-step returns, as in the paper."""

    n_steps: Positive = Field(
        5, description="steps of each environment in one rollout", json_schema_extra=searched(choice=[5, 8, 16, 32, 64])
    )
    learning_rate: ScheduledPositive = Field(7e-4, description="the optimiser's learning rate, a number or a schedule")
    gae_lambda: Fraction = Field(1.0, description="lambda of generalised advantage estimation")
    normalize_advantage: bool = Field(False, description="standardise the advantages of each rollout")


def a2c_loss(
    log_prob: Tensor,  # (batch,) of the actions that were taken
    advantage: Tensor,  # (batch,)
    value: Tensor,  # (batch,)
    target: Tensor,  # (batch,) for the value
    entropy: Tensor,  # (batch,) of the policy
    *,
    value_coef: float = 0.5,
    entropy_coef: float | Tensor = 0.0,
) -> StageLoss:
    """The policy gradient, value and entropy terms, one number per sample (section 4.3)."""
    assert log_prob.shape == advantage.shape == value.shape == target.shape == entropy.shape
    policy_loss = -log_prob * advantage.detach()
    value_loss = (value - target.detach()).square()
    loss = policy_loss + value_coef * value_loss
    if isinstance(entropy_coef, Tensor) or entropy_coef:
        loss = loss - entropy_coef * entropy
    metrics = {"policy_loss": policy_loss.detach(), "value_loss": value_loss.detach(), "entropy": entropy.detach()}
    return StageLoss(loss, metrics)


class A2C(ActorCriticAlgorithm[A2CConfig]):
    """Advantage actor-critic (Mnih et al. 2016): one gradient step on each rollout, with Adam in place of RMSProp."""

    name = "a2c"
    summary = "advantage actor-critic: one gradient step on each short rollout"
    uses_old_policy = False

    def loss(self, now: Evaluated, recorded: Recorded, known: Known) -> StageLoss:
        return a2c_loss(
            now.log_prob,
            recorded.advantage,
            now.value,
            recorded.target,
            now.entropy,
            value_coef=self.config.value_coef,
            entropy_coef=self.entropy_coef(known),
        )
