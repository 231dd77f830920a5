"""Munchausen DQN (Vieillard et al. 2020, arXiv:2007.14430): the agent's own log-policy is added to the reward."""

from __future__ import annotations

import torch
from munchausen.network import ResidualTrunk
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from rl_training.algorithms.config import Fraction, Positive, PositiveNumber
from rl_training.algorithms.dqn import dqn_loss
from rl_training.algorithms.epsilon_greedy import EpsilonGreedyPolicy
from rl_training.algorithms.q_values import Values, take_action
from rl_training.algorithms.update import NOTHING, Known
from rl_training.algorithms.value import LossOutput, ValueAlgorithm, ValueConfig
from rl_training.models import QNetwork, ValueHead
from rl_training.types import SpaceSpec, TransitionBatch


class MunchausenConfig(ValueConfig):
    """Settings of Munchausen DQN."""

    blocks: Positive = Field(2, description="residual blocks of the network")
    width: Positive = Field(32, description="width of the network")
    temperature: PositiveNumber = Field(0.03, description="entropy temperature")
    munchausen_alpha: Fraction = Field(0.9, description="weight of the log-policy in the reward")
    lowest_log_policy: float = Field(-1.0, le=0.0, description="clip the scaled log-policy from below")


def munchausen_target(
    reward: Tensor, discount: Tensor, q: Tensor, next_q: Tensor, action: Tensor, config: MunchausenConfig
) -> Tensor:
    """(batch,): r + alpha * clip(tau log pi(a|s)) + discount * sum_a' pi(a'|s') (q(s', a') - tau log pi(a'|s'))."""
    tau = config.temperature
    log_policy = take_action(tau * F.log_softmax(q / tau, dim=1), action)
    bonus = config.munchausen_alpha * log_policy.clamp(config.lowest_log_policy, 0.0)
    next_log_policy = F.log_softmax(next_q / tau, dim=1)
    soft_value = (next_log_policy.exp() * (next_q - tau * next_log_policy)).sum(dim=1)
    return reward + bonus + discount * soft_value


class MunchausenDQN(ValueAlgorithm[MunchausenConfig]):
    """Deep Q-learning with the log-policy as an additional reward."""

    name = "munchausen"
    summary = "DQN with the log-policy as an additional reward"
    observations = ("vector",)

    @classmethod
    def make_policy(cls, config: MunchausenConfig, spec: SpaceSpec, generator: torch.Generator) -> EpsilonGreedyPolicy:
        trunk = ResidualTrunk(spec.observation.shape[0], config.width, config.blocks, generator)
        head = ValueHead(trunk.out_features, (), spec.action.count, generator)
        return EpsilonGreedyPolicy(QNetwork(trunk, head), spec, config)

    def loss(self, online: Values, target: Values, batch: TransitionBatch, known: Known = NOTHING) -> LossOutput:
        with torch.no_grad():
            y = munchausen_target(
                batch.reward, batch.discount, target(batch.obs), target(batch.next_obs), batch.action, self.config
            )
        return dqn_loss(online(batch.obs), batch.action, y, torch.zeros_like(y), torch.zeros_like(y))
