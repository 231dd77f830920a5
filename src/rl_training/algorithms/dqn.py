"""DQN (Mnih et al. 2015, doi:10.1038/nature14236) with the double estimator (van Hasselt et al., arXiv:1509.06461)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from rl_training.algorithms.value import EpsilonGreedyPolicy, LossOutput, ValueAlgorithm, ValueConfig
from rl_training.models import MLPQNetwork
from rl_training.types import SpaceSpec, TransitionBatch


class DQNConfig(ValueConfig):
    """Settings of DQN: those of the value family."""


def dqn_loss(
    q_values: Tensor,  # (batch, action) of the online network at obs
    action: Tensor,  # (batch,)
    reward: Tensor,  # (batch,)
    discount: Tensor,  # (batch,) complete: gamma^k, 0 where the episode terminated
    next_q_values: Tensor,  # (batch, action) of the target network at next_obs
    next_q_selector: Tensor | None = None,  # (batch, action) that chooses the next action; default: next_q_values
) -> LossOutput:
    """Huber loss between Q(s, a) and ``reward + discount * Q'(s', a*)``, one number per sample."""
    assert q_values.shape == next_q_values.shape
    assert action.shape == reward.shape == discount.shape == q_values.shape[:1]
    if next_q_selector is None:
        next_value = next_q_values.amax(dim=1)
    else:
        next_value = next_q_values.gather(1, next_q_selector.argmax(dim=1, keepdim=True)).squeeze(1)
    target = (reward + discount * next_value).detach()
    chosen = q_values.gather(1, action.unsqueeze(1)).squeeze(1)
    loss = F.smooth_l1_loss(chosen, target, reduction="none")
    value = chosen.detach()
    return LossOutput(loss, {"q_value_mean": value, "target_mean": target, "td_error_mean": (target - value).abs()})


class DQN(ValueAlgorithm):
    """Deep Q-learning."""

    config_class = DQNConfig

    @classmethod
    def make_policy(cls, config: Any, spec: SpaceSpec, generator: torch.Generator) -> EpsilonGreedyPolicy:
        network = MLPQNetwork(spec.observation.shape[0], spec.action.count, config.hidden_sizes, generator)
        return EpsilonGreedyPolicy(network, spec, config)

    def loss(
        self, online: Callable[[Tensor], Tensor], target: Callable[[Tensor], Tensor], batch: TransitionBatch
    ) -> LossOutput:
        with torch.no_grad():
            next_q_values = target(batch.next_obs)
            selector = online(batch.next_obs) if self.config.double else None
        return dqn_loss(online(batch.obs), batch.action, batch.reward, batch.discount, next_q_values, selector)
