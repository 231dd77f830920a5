"""TD3 (Fujimoto et al., arXiv:1802.09477): deterministic policy gradients with twin critics, smoothed targets and a delayed
actor."""

from __future__ import annotations

import copy
from typing import TypeVar

import torch
from pydantic import Field
from torch import Tensor, nn

from rl_training.algorithms.config import Number, Positive, PositiveNumber
from rl_training.algorithms.continuous import ContinuousAlgorithm, NoisyPolicy, make_actor_critic, noisy_action
from rl_training.algorithms.off_policy import AnyObservationConfig
from rl_training.algorithms.sac import twin_critic_loss
from rl_training.algorithms.strict_model import MAY_CHANGE, searched
from rl_training.algorithms.update import Draw, Known, StageLoss, TargetNetwork
from rl_training.models.continuous import ContinuousActorCritic
from rl_training.schedules import LinearSchedule
from rl_training.types import SpaceSpec, TransitionBatch

__all__ = ["TD3", "TD3Config", "td3_target"]


class DeterministicConfig(AnyObservationConfig):
    """Settings of TD3 and DDPG."""

    n_critics: Positive = Field(2, description="critics; a target uses the smallest of their values")
    exploration_noise: Number = Field(
        0.1,
        ge=0.0,
        description="standard deviation of the noise on actions while acting",
        json_schema_extra={**MAY_CHANGE, **searched(uniform=[0.05, 0.5])},
    )
    target_noise: Number = Field(0.2, ge=0.0, description="standard deviation of the noise on actions in targets; 0: none")
    noise_clip: PositiveNumber = Field(0.5, description="clip the noise on actions in targets to +-x")


DeterministicConfigT = TypeVar("DeterministicConfigT", bound=DeterministicConfig)


class TD3Config(DeterministicConfig):
    """Settings of TD3."""

    target_update_interval: Positive = Field(2, description="updates between target updates")
    actor_update_interval: Positive = Field(2, description="critic updates per actor update")


def td3_target(reward: Tensor, discount: Tensor, next_q: Tensor) -> Tensor:
    """``reward + discount * min Q'``: (batch,), (batch,), (critic, batch) -> (batch,) (algorithm 1)."""
    assert reward.shape == discount.shape == next_q.shape[1:]
    return reward + discount * next_q.amin(dim=0)


class DeterministicActorCritic(ContinuousAlgorithm[DeterministicConfigT]):
    """The losses of TD3 and DDPG, which differ only in their settings. The actor has a target network too."""

    observations = ("vector", "image", "mixed")
    policy: NoisyPolicy

    @classmethod
    def make_policy(cls, config: DeterministicConfigT, spec: SpaceSpec, generator: torch.Generator) -> NoisyPolicy:
        network = make_actor_critic(ContinuousActorCritic, config, spec, generator, critics=config.n_critics)
        noise = LinearSchedule(config.exploration_noise, config.exploration_noise, 0)
        return NoisyPolicy(network, spec, config, noise)

    def build(self) -> None:
        super().build()
        self.target_actor: nn.Module = copy.deepcopy(self.policy.network.actor)
        self.target_actor_network = self.follow(self.target_actor, self.actor_optimizer)

    def make_targets(self) -> dict[str, TargetNetwork]:
        return {**super().make_targets(), "target_actor": self.target_actor_network}

    def critic_draws(self) -> dict[str, Draw[TransitionBatch]]:
        return super().critic_draws() if self.config.target_noise else {}

    def actor_draws(self) -> dict[str, Draw[TransitionBatch]]:
        return {}

    def critic_loss(self, batch: TransitionBatch, known: Known) -> StageLoss:
        config = self.config
        with torch.no_grad():
            action = torch.tanh(self.target_actor(batch.next_obs))
            if config.target_noise:
                action = noisy_action(action, known["critic_noise"], config.target_noise, config.noise_clip)
            next_q = self.target.values(self.target.encode(batch.next_obs), action)
            target = td3_target(batch.reward, batch.discount, next_q)
        critic = self.policy.network.critic
        return twin_critic_loss(critic.values(critic.encode(batch.obs), batch.action), target)

    def actor_loss(self, batch: TransitionBatch, known: Known) -> StageLoss:
        """``-Q1`` of the actor's actions."""
        action = torch.tanh(self.policy.network.actor(batch.obs))
        return StageLoss(-self.frozen_critic.values(self.frozen_critic.encode(batch.obs), action, first=1)[0])


class TD3(DeterministicActorCritic[TD3Config]):
    """Twin delayed deep deterministic policy gradient (Fujimoto et al. 2018)."""

    name = "td3"
    summary = "a deterministic actor, updated less often than its twin critics, with smoothed targets"
