"""QR-DQN: quantile regression of the return (Dabney et al., arXiv:1710.10044)."""

from __future__ import annotations

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from rl_training.algorithms.config import Positive, PositiveNumber
from rl_training.algorithms.value import (
    EpsilonGreedyPolicy,
    LossOutput,
    ValueAlgorithm,
    ValueConfig,
    Values,
    make_body,
    select_actions,
    take_action,
)
from rl_training.models import QuantileQNetwork
from rl_training.types import SpaceSpec, TransitionBatch


class QRDQNConfig(ValueConfig):
    """Settings of QR-DQN."""

    num_quantiles: Positive = Field(51, description="quantiles of the return, for each action")
    kappa: PositiveNumber = Field(1.0, description="where the Huber loss turns from square to linear")


def quantile_huber_loss(quantiles: Tensor, targets: Tensor, taus: Tensor, kappa: float = 1.0) -> Tensor:
    """The loss of quantiles (batch, i) at levels taus (i,) against target samples (batch, j): (batch,).

    |tau_i - 1{u < 0}| * Huber(u), u = target_j - quantile_i: the mean over targets j, the sum over quantiles i (equation 10
    with its Huber loss not divided by kappa).
    """
    assert quantiles.shape[0] == targets.shape[0]
    assert taus.shape == quantiles.shape[1:]
    shape = (*quantiles.shape, targets.shape[1])  # (batch, i, j)
    mine, theirs = quantiles.unsqueeze(2).expand(shape), targets.unsqueeze(1).expand(shape)
    huber = F.huber_loss(mine, theirs, reduction="none", delta=kappa)
    level = taus.unsqueeze(1)
    return (torch.where(theirs < mine, 1.0 - level, level) * huber).mean(dim=2).sum(dim=1)


def quantile_levels(count: int, device: torch.device | None = None) -> Tensor:
    """The midpoints (i + 1/2) / count."""
    return (torch.arange(count, device=device) + 0.5) / count


class QRDQN(ValueAlgorithm):
    """Deep Q-learning of the whole distribution of the return, by its quantiles."""

    config_class = QRDQNConfig
    config: QRDQNConfig

    @classmethod
    def make_policy(cls, config: QRDQNConfig, spec: SpaceSpec, generator: torch.Generator) -> EpsilonGreedyPolicy:
        body = make_body(config, spec, generator, atoms=config.num_quantiles)
        return EpsilonGreedyPolicy(QuantileQNetwork(*body), spec, config)

    def compile_repaid_after(self) -> int:
        pairs = self.config.batch_size * self.config.num_quantiles**2  # the loss goes over them: at 70 000, half of the gain
        return int(super().compile_repaid_after() / (1.0 + pairs / 70_000))

    def loss(self, online: Values, target: Values, batch: TransitionBatch) -> LossOutput:
        with torch.no_grad():
            next_quantiles = target(batch.next_obs)
            chooser = online(batch.next_obs) if self.config.double else next_quantiles
            # all quantiles of ONE action: a maximum for each quantile would be of no policy
            bootstrap = take_action(next_quantiles, select_actions(chooser.mean(dim=2), batch))
            targets = batch.reward.unsqueeze(1) + batch.discount.unsqueeze(1) * bootstrap
        quantiles = take_action(online(batch.obs), batch.action)
        taus = quantile_levels(self.config.num_quantiles, quantiles.device)
        loss = quantile_huber_loss(quantiles, targets, taus, self.config.kappa)
        value, target_mean = quantiles.detach().mean(dim=1), targets.mean(dim=1)
        error = (target_mean - value).abs()
        return LossOutput(loss, {"q_value_mean": value, "target_mean": target_mean, "td_error_mean": error}, error)
