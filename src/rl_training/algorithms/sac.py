"""Soft actor-critic (Haarnoja et al., arXiv:1801.01290) with a learned or fixed temperature (arXiv:1812.05905)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn

from rl_training.algorithms.compiled import CompiledStep, Stage
from rl_training.algorithms.config import Number, Positive, PositiveNumber
from rl_training.algorithms.continuous import ContinuousAlgorithm, ContinuousConfig, ContinuousPolicy, Loss, Views
from rl_training.algorithms.optimizer import FlatAdam
from rl_training.models.continuous import GaussianActorCritic, MLPActorCritic, squashed_sample
from rl_training.rng import RandomStreams
from rl_training.types import Array, SpaceSpec, State, TransitionBatch

#: of the actor's step, which not every update has
ACTOR_METRICS = ("actor_loss", "log_prob_mean", "entropy_term", "alpha")


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

    def critic_loss(self, views: Views, batch: TransitionBatch, noise: Tensor, env_steps: int) -> Loss:
        with torch.no_grad():
            target = self.target_values(views.next_obs, batch.reward, batch.discount, noise)
        critic = self.policy.network.critic
        return twin_critic_loss(critic.values(critic.encode(views.obs), batch.action), target)

    def target_values(self, next_obs: Tensor, reward: Tensor, discount: Tensor, noise: Tensor) -> Tensor:
        """One target for each row of ``next_obs``."""
        network = self.policy.network
        seen = network.critic.encode(next_obs) if network.shared_encoder else next_obs
        action, log_prob = self.draw(seen, noise)
        return sac_target(reward, discount, self.target.values(self.target.encode(next_obs), action), log_prob, self.alpha)

    def actor_loss(self, obs: Tensor, features: Tensor | None, noise: Tensor, env_steps: int) -> Loss:
        with torch.no_grad():
            judged = self.judge.encode(obs)  # once more, for the critic's step has moved its encoder
        action, log_prob = self.draw(judged if self.policy.network.shared_encoder else obs, noise)
        return sac_actor_loss(log_prob, self.judge.values(judged, action), self.alpha)

    def draw(self, seen: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """An action for each row of what the actor sees, and its log-density."""
        network = self.policy.network
        mean, log_std = network.distribution(network.actor(seen))
        return squashed_sample(mean, log_std, noise)

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

    def __init__(self, policy: GaussianPolicy, config: SACConfig, streams: RandomStreams) -> None:
        super().__init__(policy, config, streams)
        self._compiled: dict[bool, CompiledStep] = {}  # by whether the actor is due

    @classmethod
    def make_policy(cls, config: SACConfig, spec: SpaceSpec, generator: torch.Generator) -> GaussianPolicy:
        actions = len(spec.action.low)
        network = MLPActorCritic(spec.observation.shape[0], actions, config.hidden_sizes, generator)
        return GaussianPolicy(network, spec, config)

    def learn(
        self, views: Views, batch: TransitionBatch, noise: Sequence[Tensor], tau: float, env_steps: int
    ) -> Mapping[str, Tensor]:
        if not self._compiled:
            return super().learn(views, batch, noise, tau, env_steps)
        due = len(noise) > 1
        tensors = [*views, batch.action, batch.reward, batch.discount, *noise]
        measured = self._compiled[due](tensors, learning_rate=self.learning_rate(env_steps), tau=tau)
        measured.pop("temperature_loss", None)
        if due:
            self._actor_metrics = {name: measured.pop(name) for name in ACTOR_METRICS}
        return measured

    def why_not_compiled(self) -> str | None:
        return None

    def compile_repaid_after(self) -> int:
        return 7_000

    def compile(self, source: Any) -> None:
        blank: TransitionBatch = source.gather(np.zeros(self.config.batch_size, np.int64))
        network, critic_parameters = self.policy.network, self.critic_optimizer.parameters
        networks: list[tuple[nn.Module, Tensor]] = [
            (network.critic, critic_parameters),
            (self.judge, critic_parameters),
            (network.actor, self.actor_optimizer.parameters),
            (self.target, self._target_parameters),
            (self.temperature, self._temperature_optimizer.parameters),
        ]

        def critic(tensors: Sequence[Tensor], known: Mapping[str, Tensor]) -> tuple[Tensor, Mapping[str, Tensor]]:
            obs, next_obs, action, reward, discount, noise, *_ = tensors
            batch = TransitionBatch(obs, action, reward, next_obs, discount)
            loss = self.critic_loss(Views(obs, next_obs), batch, noise, 0)
            return loss.loss, loss.metrics

        def actor(tensors: Sequence[Tensor], known: Mapping[str, Tensor]) -> tuple[Tensor, Mapping[str, Tensor]]:
            loss = self.actor_loss(tensors[0], None, tensors[-1], 0)
            return loss.loss, {**loss.metrics, "alpha": self.alpha}

        def temperature(tensors: Sequence[Tensor], known: Mapping[str, Tensor]) -> tuple[Tensor, Mapping[str, Tensor]]:
            return temperature_loss(self.temperature.log_alpha, known["log_prob_mean"], self.target_entropy), {}

        stages = [Stage("critic_loss", self.critic_optimizer, critic), Stage("actor_loss", self.actor_optimizer, actor)]
        if self.config.learn_alpha:
            stages.append(Stage("temperature_loss", self._temperature_optimizer, temperature))
        tensors = [*self.views(blank), blank.action, blank.reward, blank.discount]
        compiled = {}
        for due in (True, False) if self.config.actor_update_interval > 1 else (True,):
            target = (self._target_parameters, critic_parameters)
            compiled[due] = CompiledStep(stages if due else stages[:1], networks, target=target)
            noise = [torch.zeros_like(blank.action) for _ in range(1 + due)]  # one tensor twice would be traced as one input
            compiled[due].prepare([*tensors, *noise])
        self._compiled = compiled
