"""DQN (Mnih et al. 2015, doi:10.1038/nature14236) with the double estimator (van Hasselt et al., arXiv:1509.06461)."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from rl_training.algorithms.epsilon_greedy import EpsilonGreedyPolicy
from rl_training.algorithms.q_values import Values, allowed, select_actions, take_action
from rl_training.algorithms.update import NOTHING, Known
from rl_training.algorithms.value import LossOutput, TDErrorConfig, ValueAlgorithm, ValueConfig, make_body
from rl_training.models import QNetwork
from rl_training.types import SpaceSpec, TransitionBatch

__all__ = ["DQN", "DQNConfig", "dqn_loss"]

#: F.huber_loss without its checks, which take longer than the loss of a small batch; 0: no reduction
_huber_loss: Callable[[Tensor, Tensor, int, float], Tensor] = torch._C._nn.huber_loss  # type: ignore[assignment]


class DQNConfig(TDErrorConfig, ValueConfig):
    """Settings of DQN: those of the value family, and the threshold of its loss."""


def dqn_loss(
    q_values: Tensor,  # (batch, action) of the online network at obs
    action: Tensor,  # (batch,)
    reward: Tensor,  # (batch,)
    discount: Tensor,  # (batch,) gamma^k, or 0 where the episode terminated
    next_value: Tensor,  # (batch,) of the target network at next_obs
    huber_delta: float = 1.0,
) -> LossOutput:
    """Huber loss between Q(s, a) and ``reward + discount * next_value``, one number per sample."""
    assert action.shape == reward.shape == discount.shape == next_value.shape == q_values.shape[:1]
    target = (reward + discount * next_value).detach()
    chosen = take_action(q_values, action)
    loss = _huber_loss(chosen, target, 0, huber_delta)
    value = chosen.detach()
    error = (target - value).abs()
    return LossOutput(loss, {"q_value_mean": value, "target_mean": target, "td_error_mean": error}, error)


class DQN(ValueAlgorithm[DQNConfig]):
    """Deep Q-learning (Mnih et al. 2015)."""

    name = "dqn"
    summary = "deep Q-learning; double, dueling, noisy, n-step and prioritised as options"

    @classmethod
    def make_policy(cls, config: DQNConfig, spec: SpaceSpec, generator: torch.Generator) -> EpsilonGreedyPolicy:
        return EpsilonGreedyPolicy(QNetwork(*make_body(config, spec, generator)), spec, config, noisy=config.noisy)

    def loss(self, online: Values, target: Values, batch: TransitionBatch, known: Known = NOTHING) -> LossOutput:
        with torch.no_grad():
            next_q_values = target(batch.next_obs)
            if self.config.double:
                next_value = take_action(next_q_values, select_actions(online(batch.next_obs), batch))
            else:
                next_value = allowed(next_q_values, batch).amax(dim=1)
            next_value = self.config.clip_values(next_value)
        q_values = online(batch.obs)
        return dqn_loss(q_values, batch.action, batch.reward, batch.discount, next_value, self.config.huber_delta)
