"""QR-DQN: quantile regression of the return (Dabney et al., arXiv:1710.10044)."""

from __future__ import annotations

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from rl_training.algorithms.config import Positive, PositiveNumber
from rl_training.algorithms.epsilon_greedy import EpsilonGreedyPolicy
from rl_training.algorithms.q_values import Values, select_actions, take_action
from rl_training.algorithms.update import NOTHING, Known
from rl_training.algorithms.value import LossOutput, ValueAlgorithm, ValueConfig, ValueRangeConfig, make_body
from rl_training.models import QuantileQNetwork
from rl_training.types import SpaceSpec, TransitionBatch

__all__ = ["QRDQN", "QRDQNConfig", "quantile_huber_loss", "quantile_levels"]


class QRDQNConfig(ValueRangeConfig, ValueConfig):
    """Settings of QR-DQN."""

    num_quantiles: Positive = Field(51, description="number of quantiles per action")
    kappa: PositiveNumber = Field(1.0, description="threshold of the quantile Huber loss")


def quantile_huber_loss(quantiles: Tensor, targets: Tensor, taus: Tensor, kappa: float = 1.0) -> Tensor:
    """The loss of quantiles (batch, i) at levels taus (i,) or (batch, i) against target samples (batch, j): (batch,).

    ``|tau_i - 1{u < 0}| * Huber(u)``, u = target_j - quantile_i, averaged over targets j and summed over quantiles i
    (equation 10, except that the Huber loss is not divided by kappa).
    """
    assert quantiles.shape[0] == targets.shape[0]
    assert taus.shape in (quantiles.shape[1:], quantiles.shape)
    shape = (*quantiles.shape, targets.shape[1])  # (batch, i, j)
    predicted, target = quantiles.unsqueeze(2).expand(shape), targets.unsqueeze(1).expand(shape)
    huber = F.huber_loss(predicted, target, reduction="none", delta=kappa)
    level = taus.unsqueeze(-1)
    return (torch.where(target < predicted, 1.0 - level, level) * huber).mean(dim=2).sum(dim=1)


def quantile_levels(count: int, device: torch.device | None = None) -> Tensor:
    """The midpoints (i + 1/2) / count."""
    return (torch.arange(count, device=device) + 0.5) / count


class QRDQN(ValueAlgorithm[QRDQNConfig]):
    """Deep Q-learning of the distribution of the return, by its quantiles (Dabney et al. 2017)."""

    name = "qr_dqn"
    summary = "quantile regression of the return, with DQN's options"

    @classmethod
    def make_policy(cls, config: QRDQNConfig, spec: SpaceSpec, generator: torch.Generator) -> EpsilonGreedyPolicy:
        body = make_body(config, spec, generator, atoms=config.num_quantiles)
        return EpsilonGreedyPolicy(QuantileQNetwork(*body), spec, config, noisy=config.noisy)

    def loss_terms(self) -> int:
        return self.config.batch_size * self.config.num_quantiles**2

    def loss(self, online: Values, target: Values, batch: TransitionBatch, known: Known = NOTHING) -> LossOutput:
        with torch.no_grad():
            next_quantiles = target(batch.next_obs)
            chooser = online(batch.next_obs) if self.config.double else next_quantiles
            # all quantiles of ONE action: a maximum per quantile would mix actions, which no policy can do
            bootstrap = take_action(next_quantiles, select_actions(chooser.mean(dim=2), batch))
            targets = batch.reward.unsqueeze(1) + batch.discount.unsqueeze(1) * self.config.clip_values(bootstrap)
        quantiles = take_action(online(batch.obs), batch.action)
        taus = quantile_levels(self.config.num_quantiles, quantiles.device)
        loss = quantile_huber_loss(quantiles, targets, taus, self.config.kappa)
        value, target_mean = quantiles.detach().mean(dim=1), targets.mean(dim=1)
        error = (target_mean - value).abs()
        return LossOutput(loss, {"q_value_mean": value, "target_mean": target_mean, "td_error_mean": error}, error)
