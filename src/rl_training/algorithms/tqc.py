"""TQC: truncated quantile critics (Kuznetsov et al., arXiv:2005.04269). SAC whose critics learn quantiles of the return."""

from __future__ import annotations

import torch
from pydantic import Field, model_validator
from torch import Tensor

from rl_training.algorithms.config import Count, Positive
from rl_training.algorithms.continuous import make_actor_critic
from rl_training.algorithms.qr_dqn import quantile_huber_loss, quantile_levels
from rl_training.algorithms.sac import GaussianPolicy, SACConfig, SoftActorCritic
from rl_training.algorithms.update import Known, StageLoss
from rl_training.models.continuous import GaussianActorCritic
from rl_training.types import SpaceSpec, TransitionBatch

__all__ = ["TQC", "TQCConfig", "tqc_actor_loss", "tqc_critic_loss", "tqc_target"]


class TQCConfig(SACConfig):
    """Settings of TQC. The paper has five critics."""

    n_critics: Positive = Field(2, description="critics (N)")
    num_quantiles: Positive = Field(25, description="quantiles per critic (M)")
    dropped_quantiles: Count = Field(2, description="largest quantiles per critic left out of a target (d)")

    @model_validator(mode="after")
    def _some_quantiles_are_kept(self) -> TQCConfig:
        if self.dropped_quantiles >= self.num_quantiles:
            raise ValueError(
                f"dropped_quantiles ({self.dropped_quantiles}) must be below num_quantiles ({self.num_quantiles}), or no "
                "target would be left"
            )
        return self


def tqc_target(
    reward: Tensor,  # (batch,)
    discount: Tensor,  # (batch,) gamma^k, or 0 where the episode terminated
    next_quantiles: Tensor,  # (critic, batch, quantile) of the target critics at next_obs and an action drawn there
    next_log_prob: Tensor,  # (batch,) of that action
    alpha: Tensor,  # ()
    dropped: int,  # quantiles per critic
) -> Tensor:
    """Target samples, (batch, kept): all critics' quantiles together, without the largest, less the entropy's cost."""
    critics, rows, quantiles = next_quantiles.shape
    assert reward.shape == discount.shape == next_log_prob.shape == (rows,)
    together = next_quantiles.transpose(0, 1).reshape(rows, critics * quantiles)
    kept = together.sort(dim=1).values[:, : critics * (quantiles - dropped)]
    return reward.unsqueeze(1) + discount.unsqueeze(1) * (kept - (alpha * next_log_prob).unsqueeze(1))


def tqc_critic_loss(quantiles: Tensor, targets: Tensor) -> StageLoss:
    """Each critic's quantile Huber loss, (critic, batch, quantile), against the same targets, (batch, kept): one number per
    sample, averaged over quantiles and critics (section 3)."""
    critics, rows, count = quantiles.shape
    predicted = quantiles.transpose(0, 1).reshape(rows, critics * count)
    levels = quantile_levels(count, quantiles.device).repeat(critics)
    loss = quantile_huber_loss(predicted, targets.detach(), levels) / (critics * count)
    value, target = quantiles.detach().mean(dim=(0, 2)), targets.detach().mean(dim=1)
    return StageLoss(loss, {"q_value_mean": value, "target_q_mean": target})


def tqc_actor_loss(log_prob: Tensor, quantiles: Tensor, alpha: Tensor) -> StageLoss:
    """``alpha * log_prob`` less the mean of all quantiles, none dropped: (batch,), (critic, batch, quantile) -> (batch,)."""
    assert quantiles.shape[1:2] == log_prob.shape
    cost = alpha * log_prob
    return StageLoss(cost - quantiles.mean(dim=(0, 2)), {"log_prob_mean": log_prob.detach(), "entropy_term": -cost.detach()})


class TQC(SoftActorCritic[TQCConfig]):
    """Truncated quantile critics (Kuznetsov et al. 2020)."""

    name = "tqc"
    summary = "SAC with several quantile critics, whose largest quantiles are left out of the targets"
    observations = ("vector", "image", "mixed")

    @classmethod
    def make_policy(cls, config: TQCConfig, spec: SpaceSpec, generator: torch.Generator) -> GaussianPolicy:
        critics, quantiles = config.n_critics, config.num_quantiles
        network = make_actor_critic(GaussianActorCritic, config, spec, generator, critics=critics, critic_outputs=quantiles)
        return GaussianPolicy(network, spec, config)

    def loss_terms(self) -> int:
        config = self.config
        kept = config.n_critics * (config.num_quantiles - config.dropped_quantiles)
        return config.batch_size * config.n_critics * config.num_quantiles * kept

    def critic_loss(self, batch: TransitionBatch, known: Known) -> StageLoss:
        with torch.no_grad():
            action, log_prob = self.draw(batch.next_obs, known["critic_noise"])
            next_quantiles = self.target.outputs(self.target.encode(batch.next_obs), action)
            dropped = self.config.dropped_quantiles
            targets = tqc_target(batch.reward, batch.discount, next_quantiles, log_prob, self.alpha, dropped)
        critic = self.policy.network.critic
        return tqc_critic_loss(critic.outputs(critic.encode(batch.obs), batch.action), targets)

    def actor_loss(self, batch: TransitionBatch, known: Known) -> StageLoss:
        action, log_prob = self.draw(batch.obs, known["actor_noise"])
        quantiles = self.frozen_critic.outputs(self.frozen_critic.encode(batch.obs), action)
        output = tqc_actor_loss(log_prob, quantiles, self.alpha)
        return output._replace(metrics={**output.metrics, "alpha": self.alpha})
