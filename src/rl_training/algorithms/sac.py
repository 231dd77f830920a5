"""Soft actor-critic (Haarnoja et al., arXiv:1801.01290) with a learned or fixed temperature (arXiv:1812.05905)."""

from __future__ import annotations

import math

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn

from rl_training.algorithms.config import Number, Positive, PositiveNumber
from rl_training.algorithms.continuous import ContinuousAlgorithm, ContinuousConfig, ContinuousPolicy, Loss, Views
from rl_training.algorithms.optimizer import FlatAdam
from rl_training.models.continuous import GaussianActorCritic, MLPActorCritic, squashed_sample
from rl_training.rng import RandomStreams
from rl_training.types import Array, SpaceSpec, State, TransitionBatch


class EntropyConfig(ContinuousConfig):
    """Settings of SAC and of what stands on it."""

    alpha: PositiveNumber = Field(1.0, description="temperature: the weight of the entropy, or its first value if learned")
    learn_alpha: bool = Field(True, description="adjust the temperature until the entropy is target_entropy")
    target_entropy: Number | None = Field(None, description="none: minus the number of the action's dimensions")


class SACConfig(EntropyConfig):
    """Settings of SAC."""

    buffer_size: Positive = Field(1_000_000, description="transitions kept for replay")


def sac_target(
    reward: Tensor,  # (batch,)
    discount: Tensor,  # (batch,) complete: gamma^k, 0 where the episode terminated
    next_q: Tensor,  # (2, batch) of the target critics at next_obs and an action drawn there
    next_log_prob: Tensor,  # (batch,) of that action
    alpha: Tensor,  # ()
) -> Tensor:
    """What the critics should say, (batch,): the smaller value and the entropy of the next step (arXiv:1812.05905, eq. 3)."""
    assert reward.shape == discount.shape == next_log_prob.shape == next_q.shape[1:]
    return reward + discount * (torch.minimum(next_q[0], next_q[1]) - alpha * next_log_prob)


def twin_critic_loss(q: Tensor, target: Tensor) -> Loss:
    """Squared errors of both critics, added: (2, batch), (batch,) -> one number per sample."""
    assert q.shape == (2, *target.shape)
    loss = (q - target.detach()).square().sum(dim=0)
    return Loss(loss, {"q_value_mean": q.detach()[0], "target_q_mean": target.detach()})


def sac_actor_loss(log_prob: Tensor, q: Tensor, alpha: Tensor) -> Loss:
    """``alpha * log_prob - min Q`` of actions drawn from the actor, (batch,), (2, batch) -> one number per sample (eq. 7)."""
    assert q.shape == (2, *log_prob.shape)
    cost = alpha * log_prob
    loss = cost - torch.minimum(q[0], q[1])
    return Loss(loss, {"log_prob_mean": log_prob.detach(), "entropy_term": -cost.detach()})


def temperature_loss(log_alpha: Tensor, log_prob: Tensor, target_entropy: float) -> Tensor:
    """Raises alpha where the entropy, -log_prob, is below its target (eq. 18); (batch,)."""
    return -log_alpha.exp() * (log_prob.detach() + target_entropy)


class Temperature(nn.Module):
    """alpha, as its logarithm."""

    def __init__(self, initial: float) -> None:
        super().__init__()
        self.log_alpha = nn.Parameter(torch.tensor(math.log(initial)))


class GaussianPolicy(ContinuousPolicy):
    """Draws from the tanh-squashed Gaussian."""

    network: GaussianActorCritic

    def explore(self, output: Array, rng: np.random.Generator, env_steps: int) -> Array:
        mean, std = self.network.numpy_distribution(output)
        action: Array = np.tanh(mean + std * rng.standard_normal(mean.shape, np.float32))
        return action


class SoftActorCritic(ContinuousAlgorithm):
    """The losses of SAC and the temperature, for any Gaussian actor."""

    policy: GaussianPolicy
    config: EntropyConfig

    def __init__(self, policy: GaussianPolicy, config: EntropyConfig, streams: RandomStreams) -> None:
        super().__init__(policy, config, streams)
        target = config.target_entropy
        self.target_entropy = -float(policy.network.actions) if target is None else target
        self.temperature = Temperature(config.alpha).to(self._target_parameters.device)
        self._temperature_optimizer = FlatAdam(self.temperature, eps=config.adam_eps, max_norm=None)

    @property
    def alpha(self) -> Tensor:
        return self.temperature.log_alpha.detach().exp()

    def critic_loss(self, views: Views, batch: TransitionBatch, env_steps: int) -> Loss:
        with torch.no_grad():
            target = self.target_values(views.next_obs, batch.reward, batch.discount)
        critic = self.policy.network.critic
        return twin_critic_loss(critic.values(critic.encode(views.obs), batch.action), target)

    def target_values(self, next_obs: Tensor, reward: Tensor, discount: Tensor) -> Tensor:
        """One target for each row of ``next_obs``."""
        network = self.policy.network
        seen = network.critic.encode(next_obs) if network.shared_encoder else next_obs
        action, log_prob = self.draw(seen)
        return sac_target(reward, discount, self.target.values(self.target.encode(next_obs), action), log_prob, self.alpha)

    def actor_loss(self, obs: Tensor, features: Tensor | None, env_steps: int) -> Loss:
        with torch.no_grad():
            judged = self.judge.encode(obs)  # once more, for the critic's step has moved its encoder
        action, log_prob = self.draw(judged if self.policy.network.shared_encoder else obs)
        return sac_actor_loss(log_prob, self.judge.values(judged, action), self.alpha)

    def draw(self, seen: Tensor) -> tuple[Tensor, Tensor]:
        """An action for each row of what the actor sees, and its log-density."""
        network = self.policy.network
        mean, log_std = network.distribution(network.actor(seen))
        return squashed_sample(mean, log_std, self.noise(len(seen)))

    def actor_updated(self, actor: Loss, learning_rate: float) -> None:
        self._actor_metrics["alpha"] = self.alpha
        if self.config.learn_alpha:
            loss = temperature_loss(self.temperature.log_alpha, actor.metrics["log_prob_mean"], self.target_entropy)
            self._temperature_optimizer.step(loss, learning_rate)

    def state_dict(self) -> State:
        return {
            **super().state_dict(),
            "log_alpha": self.temperature.log_alpha.detach().clone(),
            "temperature_optimizer": self._temperature_optimizer.state_dict(),
        }

    def load_state_dict(self, state: State) -> None:
        super().load_state_dict(state)
        self.temperature.log_alpha.data.copy_(state["log_alpha"])
        self._temperature_optimizer.load_state_dict(state["temperature_optimizer"])


class SAC(SoftActorCritic):
    """Soft actor-critic on vectors."""

    config_class = SACConfig

    @classmethod
    def make_policy(cls, config: SACConfig, spec: SpaceSpec, generator: torch.Generator) -> GaussianPolicy:
        actions = len(spec.action.low)
        network = MLPActorCritic(spec.observation.shape[0], actions, config.hidden_sizes, generator)
        return GaussianPolicy(network, spec, config)
