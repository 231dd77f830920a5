"""SAC for discrete actions (Christodoulou, arXiv:1910.07207): exact expectations in place of sampled actions."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn

from rl_training.algorithms.config import Number
from rl_training.algorithms.encoders import finish_network, separate_encoders
from rl_training.algorithms.on_policy import ActorCriticPolicy, choose_actions
from rl_training.algorithms.policy import ActInput
from rl_training.algorithms.sac import EntropyAlgorithm, SACConfig, twin_critic_loss
from rl_training.algorithms.update import Known, StageLoss
from rl_training.models.action_head import FORBIDDEN, CategoricalHead
from rl_training.models.continuous import Actor, make_actor
from rl_training.models.encoder import Encoder
from rl_training.models.interfaces import ActionNetwork, SeparateActorCritic
from rl_training.models.mlp import PLAIN, Style, make_mlp
from rl_training.types import Array, PolicyOutput, SpaceSpec, TransitionBatch

__all__ = ["DiscreteSAC", "DiscreteSACConfig", "discrete_sac_actor_loss", "discrete_sac_target"]


class DiscreteSACConfig(SACConfig):
    """Settings of discrete SAC."""

    target_entropy: Number | None = Field(
        None, description="entropy that the temperature aims for; null: 0.98 times the largest possible"
    )


def discrete_sac_target(reward: Tensor, discount: Tensor, next_q: Tensor, log_policy: Tensor, alpha: Tensor) -> Tensor:
    """The critics' target, (batch,), from their values, (2, batch, action), and the policy, (batch, action), at next_obs:
    the expectation of the smaller value and of the entropy's bonus (equation 10)."""
    assert reward.shape == discount.shape == next_q.shape[1:2]
    value = log_policy.exp() * (next_q.amin(dim=0) - alpha * log_policy)
    return reward + discount * value.sum(dim=1)


def discrete_sac_actor_loss(log_policy: Tensor, q: Tensor, alpha: Tensor) -> StageLoss:
    """The expectation of ``alpha * log_policy - min Q``: (batch, action), (2, batch, action) -> (batch,) (equation 12)."""
    assert q.shape[1:] == log_policy.shape
    policy = log_policy.exp()
    log_prob = (policy * log_policy).sum(dim=1)
    loss = alpha * log_prob - (policy * q.detach().amin(dim=0)).sum(dim=1)
    return StageLoss(loss, {"log_prob_mean": log_prob.detach(), "entropy_term": -alpha * log_prob.detach()})


class DiscreteCritics(nn.Module):
    """Two critics, each with a value per action. ``forward``: (batch, obs) -> (2, batch, action)."""

    def __init__(
        self, sizes: Sequence[int], generator: torch.Generator, style: Style = PLAIN, encoder: Encoder | None = None
    ) -> None:
        super().__init__()
        self.encoder = encoder
        self.q1 = make_mlp(sizes, generator, style)
        self.q2 = make_mlp(sizes, generator, style)

    def forward(self, obs: Tensor) -> Tensor:
        features = obs if self.encoder is None else self.encoder(obs)
        return torch.stack([self.q1(features), self.q2(features)])


class DiscreteActorCritic(ActionNetwork, SeparateActorCritic):
    """An actor that gives logits, and twin critics."""

    actor: Actor

    def __init__(
        self,
        spec: SpaceSpec,
        hidden: Sequence[int],
        generator: torch.Generator,
        *,
        style: Style = PLAIN,
        encoders: tuple[Encoder, Encoder] | None = None,
    ) -> None:
        super().__init__()
        inputs, actions = spec.observation.shape[0], spec.action.count
        self.head = CategoricalHead(spec.action)
        self.actor = make_actor(inputs, hidden, actions, generator, style, encoders)
        encoder = None if encoders is None else encoders[1]
        sizes = (inputs if encoder is None else encoder.out_features, *hidden, actions)
        self.critic = DiscreteCritics(sizes, generator, style, encoder)

    def action_output(self, obs: Tensor) -> Tensor:
        logits: Tensor = self.actor(self.prepare(obs))
        return logits

    def numpy_action_output(self) -> Callable[[Array], Array]:
        if self.normalizer is None and self.actor.encoder is None:
            return self.actor.mlp.numpy_forward()
        return super().numpy_action_output()


class DiscreteSACPolicy(ActorCriticPolicy):
    """Samples from the actor's distribution, after a warm-up with uniform actions."""

    network: DiscreteActorCritic

    def __init__(self, network: DiscreteActorCritic, spec: SpaceSpec, config: DiscreteSACConfig) -> None:
        super().__init__(network, spec)
        self._warm_up = config.learning_starts

    def choose(self, given: ActInput) -> PolicyOutput:
        if given.rng is None or given.env_steps >= self._warm_up:
            return super().choose(given)
        uniform = np.zeros((len(given.obs), self.spec.action.count), np.float32)
        return choose_actions(self.network.head, uniform, given.carry, given)


class DiscreteSAC(EntropyAlgorithm[DiscreteSACConfig]):
    """Soft actor-critic for discrete actions (Christodoulou 2019)."""

    name = "discrete_sac"
    summary = "soft actor-critic for discrete actions, with twin critics and a learned or fixed temperature"
    observations = ("vector", "image", "mixed")
    actions = ("discrete",)
    policy: DiscreteSACPolicy

    @classmethod
    def make_policy(cls, config: DiscreteSACConfig, spec: SpaceSpec, generator: torch.Generator) -> DiscreteSACPolicy:
        encoders = separate_encoders(config, spec, generator)
        network = DiscreteActorCritic(spec, config.hidden_sizes, generator, style=config.style(), encoders=encoders)
        finish_network(network, config, spec, generator)
        return DiscreteSACPolicy(network, spec, config)

    def default_target_entropy(self) -> float:
        return 0.98 * math.log(self.policy.spec.action.count)

    def log_policy(self, obs: Tensor, mask: Tensor | None) -> Tensor:
        """The log-probabilities of all actions, (batch, action)."""
        logits: Tensor = self.policy.network.actor(obs)
        return (logits if mask is None else logits.where(mask, FORBIDDEN)).log_softmax(dim=1)

    def critic_loss(self, batch: TransitionBatch, known: Known) -> StageLoss:
        with torch.no_grad():
            log_policy = self.log_policy(batch.next_obs, batch.next_action_mask)
            target = discrete_sac_target(batch.reward, batch.discount, self.target(batch.next_obs), log_policy, self.alpha)
        index = batch.action.expand(2, -1).unsqueeze(2)
        return twin_critic_loss(self.policy.network.critic(batch.obs).gather(2, index).squeeze(2), target)

    def actor_loss(self, batch: TransitionBatch, known: Known) -> StageLoss:
        """The actor's loss at the sampled observations. Action masks are stored for next observations only, so with masks it
        is taken at those of the next observations that are not terminal."""
        masked = batch.next_action_mask is not None
        obs = batch.next_obs if masked else batch.obs
        with torch.no_grad():
            q = self.frozen_critic(obs)
        output = discrete_sac_actor_loss(self.log_policy(obs, batch.next_action_mask), q, self.alpha)
        loss = output.loss * (batch.discount > 0) if masked else output.loss
        return output._replace(loss=loss, metrics={**output.metrics, "alpha": self.alpha})
