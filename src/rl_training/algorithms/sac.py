"""Soft actor-critic (Haarnoja et al., arXiv:1801.01290) with a learned or fixed temperature (arXiv:1812.05905)."""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import TypeVar

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn

from rl_training.algorithms.config import Number, Positive, PositiveNumber
from rl_training.algorithms.continuous import ContinuousAlgorithm, ContinuousPolicy, make_actor_critic
from rl_training.algorithms.off_policy import AnyObservationConfig, OffPolicyActorCritic, OffPolicyActorCriticConfig
from rl_training.algorithms.optimizer import make_optimizer
from rl_training.algorithms.update import Known, Stage, StageLoss
from rl_training.models.continuous import GaussianActorCritic, squashed_sample
from rl_training.types import Array, SpaceSpec, State, TransitionBatch

__all__ = ["SAC", "SACConfig", "sac_actor_loss", "sac_target", "temperature_loss", "twin_critic_loss"]


SOFT_N_STEP = (
    "rewards summed in one transition; above 1, the target leaves out the entropy of the states between: it would need the "
    "current policy's log-probabilities there, but a transition in replay does not hold these states"
)


class EntropyConfig(OffPolicyActorCriticConfig):
    """Settings of SAC and of the algorithms based on it."""

    n_step: Positive = Field(1, description=SOFT_N_STEP)
    alpha: PositiveNumber = Field(1.0, description="temperature, the weight of the entropy; its initial value if learned")
    learn_alpha: bool = Field(True, description="learn the temperature so that the entropy approaches target_entropy")
    target_entropy: Number | None = Field(
        None, description="entropy that the temperature aims for; null: minus the number of action dimensions"
    )


EntropyConfigT = TypeVar("EntropyConfigT", bound=EntropyConfig)


class SACConfig(AnyObservationConfig, EntropyConfig):
    """Settings of SAC."""

    n_step: Positive = Field(1, description=SOFT_N_STEP)


def sac_target(
    reward: Tensor,  # (batch,)
    discount: Tensor,  # (batch,) gamma^k, or 0 where the episode terminated
    next_q: Tensor,  # (2, batch) of the target critics at next_obs and an action drawn there
    next_log_prob: Tensor,  # (batch,) of that action
    alpha: Tensor,  # ()
) -> Tensor:
    """The critics' target, (batch,), from the smaller value and the entropy of the next step (arXiv:1812.05905, eq. 3)."""
    assert reward.shape == discount.shape == next_log_prob.shape == next_q.shape[1:]
    return reward + discount * (torch.minimum(next_q[0], next_q[1]) - alpha * next_log_prob)


def twin_critic_loss(q: Tensor, target: Tensor) -> StageLoss:
    """Squared errors of all critics, summed: (critic, batch), (batch,) -> one number per sample."""
    assert q.shape[1:] == target.shape
    loss = (q - target.detach()).square().sum(dim=0)
    return StageLoss(loss, {"q_value_mean": q.detach()[0], "target_q_mean": target.detach()})


def sac_actor_loss(log_prob: Tensor, q: Tensor, alpha: Tensor) -> StageLoss:
    """``alpha * log_prob - min Q`` of actions drawn from the actor, (batch,), (2, batch) -> one number per sample (eq. 7)."""
    assert q.shape == (2, *log_prob.shape)
    cost = alpha * log_prob
    loss = cost - torch.minimum(q[0], q[1])
    return StageLoss(loss, {"log_prob_mean": log_prob.detach(), "entropy_term": -cost.detach()})


def temperature_loss(log_alpha: Tensor, log_prob: Tensor, target_entropy: float) -> Tensor:
    """The loss of alpha, (batch,). It raises alpha where the entropy, -log_prob, is below its target (eq. 18)."""
    return -log_alpha.exp() * (log_prob.detach() + target_entropy)


class Temperature(nn.Module):
    """The temperature alpha, stored as its logarithm."""

    def __init__(self, initial: float) -> None:
        super().__init__()
        self.log_alpha = nn.Parameter(torch.tensor(math.log(initial)))


class GaussianPolicy(ContinuousPolicy):
    """Samples from the tanh-squashed Gaussian."""

    network: GaussianActorCritic

    def explore(self, output: Array, rng: np.random.Generator, env_steps: int) -> Array:
        mean, std = self.network.numpy_distribution(output)
        action: Array = np.tanh(mean + std * rng.standard_normal(mean.shape, np.float32))
        return action


class EntropyAlgorithm(OffPolicyActorCritic[EntropyConfigT]):
    """An actor-critic with an entropy bonus and its temperature. The actor's loss measures ``log_prob_mean``."""

    @abstractmethod
    def default_target_entropy(self) -> float:
        """The entropy that the temperature aims for unless another one is configured."""

    def build(self) -> None:
        super().build()
        config, target = self.config, self.config.target_entropy
        self.target_entropy = self.default_target_entropy() if target is None else target
        self.temperature = Temperature(config.alpha).to(self.target_network.vector.device)
        self.temperature_optimizer = make_optimizer(self.temperature, config, max_norm=None, weight_decay=0.0)

    @property
    def alpha(self) -> Tensor:
        return self.temperature.log_alpha.detach().exp()

    def temperature_stage_loss(self, batch: TransitionBatch, known: Known) -> StageLoss:
        """The temperature's loss, from the log-probabilities of the actor's stage."""
        return StageLoss(temperature_loss(self.temperature.log_alpha, known["log_prob_mean"], self.target_entropy))

    def make_stages(self) -> list[Stage[TransitionBatch]]:
        stages = super().make_stages()
        if self.config.learn_alpha:
            stages.append(
                Stage(
                    "temperature_loss",
                    self.temperature_optimizer,
                    self.temperature_stage_loss,
                    every=self.config.actor_update_interval,
                    reported=False,
                )
            )
        return stages

    def further_networks(self) -> list[tuple[nn.Module, Tensor]]:
        networks = super().further_networks()
        if not self.config.learn_alpha:
            networks.append((self.temperature, self.temperature_optimizer.parameters))
        return networks

    def state_dict(self) -> State:
        return {**super().state_dict(), "log_alpha": self.temperature.log_alpha.detach().clone()}

    def load_state_dict(self, state: State) -> None:
        super().load_state_dict(state)
        self.temperature.log_alpha.data.copy_(state["log_alpha"])


class SoftActorCritic(EntropyAlgorithm[EntropyConfigT], ContinuousAlgorithm[EntropyConfigT]):
    """SAC's losses, for any Gaussian actor."""

    policy: GaussianPolicy

    def default_target_entropy(self) -> float:
        return -float(self.policy.network.actions)

    def critic_loss(self, batch: TransitionBatch, known: Known) -> StageLoss:
        with torch.no_grad():
            target = self.target_values(batch.next_obs, batch.reward, batch.discount, known["critic_noise"])
        critic = self.policy.network.critic
        return twin_critic_loss(critic.values(critic.encode(batch.obs), batch.action), target)

    def target_values(self, next_obs: Tensor, reward: Tensor, discount: Tensor, noise: Tensor) -> Tensor:
        """One target for each row of ``next_obs``."""
        network = self.policy.network
        seen = network.critic.encode(next_obs) if network.shared_encoder else next_obs
        action, log_prob = self.draw(seen, noise)
        return sac_target(reward, discount, self.target.values(self.target.encode(next_obs), action), log_prob, self.alpha)

    def actor_loss(self, batch: TransitionBatch, known: Known) -> StageLoss:
        obs = batch.obs[: len(batch.reward)]  # the first view
        with torch.no_grad():
            encoded = self.frozen_critic.encode(obs)  # encoded again because the critic's step has changed the encoder
        action, log_prob = self.draw(encoded if self.policy.network.shared_encoder else obs, known["actor_noise"])
        output = sac_actor_loss(log_prob, self.frozen_critic.values(encoded, action), self.alpha)
        return output._replace(metrics={**output.metrics, "alpha": self.alpha})

    def draw(self, seen: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Samples an action for each row of the actor's input; returns it with its log-density."""
        network = self.policy.network
        mean, log_std = network.distribution(network.actor(seen))
        return squashed_sample(mean, log_std, noise)


class SAC(SoftActorCritic[SACConfig]):
    """Soft actor-critic (Haarnoja et al. 2018). On images, actor and critic each have a CNN; DrQ adds shifts."""

    name = "sac"
    summary = "soft actor-critic with twin critics, and a learned or fixed temperature"
    observations = ("vector", "image", "mixed")

    @classmethod
    def make_policy(cls, config: SACConfig, spec: SpaceSpec, generator: torch.Generator) -> GaussianPolicy:
        return GaussianPolicy(make_actor_critic(GaussianActorCritic, config, spec, generator), spec, config)
