"""Shared by the off-policy actor-critics: the stages of an update and the target critic."""

from __future__ import annotations

import copy
from abc import abstractmethod
from typing import TypeVar

from pydantic import Field
from torch import Tensor, nn

from rl_training.algorithms.config import (
    Fraction,
    Init,
    ObservationConfig,
    Positive,
    PositiveNumber,
    ScheduledPositive,
)
from rl_training.algorithms.optimizer import FlatOptimizer, make_optimizer, place_parameters
from rl_training.algorithms.strict_model import searched
from rl_training.algorithms.transitions import TransitionAlgorithm, TransitionConfig
from rl_training.algorithms.update import Draw, Known, Stage, StageLoss, TargetNetwork, Update
from rl_training.models.interfaces import SeparateActorCritic
from rl_training.schedules import Schedule
from rl_training.types import TransitionBatch


class OffPolicyActorCriticConfig(TransitionConfig):
    """Settings of the off-policy actor-critics."""

    learning_rate: ScheduledPositive = Field(3e-4, description="learning rate of all networks, a number or a schedule")
    max_grad_norm: PositiveNumber | None = Field(None, description="clip gradients to this norm; null: no clipping")
    batch_size: Positive = Field(256, description="transitions in one update")
    hidden_sizes: tuple[Positive, ...] = Field((256, 256), description="widths of the hidden layers")
    reward_scale: PositiveNumber = Field(
        1.0, description="multiply rewards by this in an update; returns far from 1 are learned slowly"
    )
    tau: Fraction = Field(
        0.005, description="share of the online weights in a target update", json_schema_extra=searched(log=[1e-3, 0.05])
    )
    target_update_interval: Positive = Field(1, description="updates between target updates")
    actor_update_interval: Positive = Field(1, description="critic updates per actor update")


class AnyObservationConfig(ObservationConfig, OffPolicyActorCriticConfig):
    """Settings of the off-policy actor-critics that learn from vectors, images or both."""

    buffer_size: Positive = Field(1_000_000, description="transitions kept for replay")
    cnn_features: Positive = Field(512, description="width of the layer after the convolutions")
    init: Init = Field(
        "default", description="initial weights: PyTorch's default on vectors and orthogonal on images, or orthogonal on both"
    )


ActorCriticConfigT = TypeVar("ActorCriticConfigT", bound=OffPolicyActorCriticConfig)


class OffPolicyActorCritic(TransitionAlgorithm[ActorCriticConfigT]):
    """First the critic learns, then the actor against it, then the target critic follows."""

    target: nn.Module
    frozen_critic: nn.Module

    def build(self) -> None:
        super().build()
        config, network = self.config, self.network
        self.critic_optimizer = make_optimizer(network.critic, config, max_norm=config.max_grad_norm)
        self.actor_optimizer = make_optimizer(network.actor, config, max_norm=config.max_grad_norm)
        self.target = self.make_target_critic()
        self.target_network = self.follow(self.target, self.critic_optimizer)
        # Shares the critic's weights but takes no gradient: the actor's loss backpropagates through it without changing them.
        self.frozen_critic = copy.deepcopy(network.critic).requires_grad_(False)
        place_parameters(self.frozen_critic, self.critic_optimizer.parameters)

    @property
    def network(self) -> SeparateActorCritic:
        network = self.policy.network
        assert isinstance(network, SeparateActorCritic)
        return network

    def make_target_critic(self) -> nn.Module:
        """A copy of the critic, or of its last parts."""
        return copy.deepcopy(self.network.critic)

    def follow(self, module: nn.Module, optimizer: FlatOptimizer) -> TargetNetwork:
        """Makes a copy of a network the target network of what ``optimizer`` trains, with the configured tau and interval."""
        return TargetNetwork(module, optimizer, tau=self.config.tau, every=self.config.target_update_interval)

    @abstractmethod
    def critic_loss(self, batch: TransitionBatch, known: Known) -> StageLoss:
        """The critic's loss, with the random inputs of ``critic_draws`` in ``known``."""

    @abstractmethod
    def actor_loss(self, batch: TransitionBatch, known: Known) -> StageLoss:
        """The actor's loss, with the random inputs of ``actor_draws`` in ``known``. It goes through ``frozen_critic``."""

    def critic_draws(self) -> dict[str, Draw[TransitionBatch]]:
        """The random inputs of the critic's loss, by name, if it has any."""
        return {}

    def actor_draws(self) -> dict[str, Draw[TransitionBatch]]:
        """The random inputs of the actor's loss, by name, if it has any."""
        return {}

    def make_update(self) -> Update[TransitionBatch]:
        return Update(
            self.make_stages(),
            rng=self.streams["noise"],
            schedules=self.schedules(),
            targets=self.make_targets(),
            networks=self.further_networks(),
        )

    def schedules(self) -> dict[str, Schedule]:
        """Scheduled values that the losses take by name."""
        return {"learning_rate": self.learning_rate}

    def make_targets(self) -> dict[str, TargetNetwork]:
        """The networks that follow others, by name."""
        return {"target": self.target_network}

    def make_stages(self) -> list[Stage[TransitionBatch]]:
        """Critic and actor, in this order."""
        every = self.config.actor_update_interval
        return [
            Stage("critic_loss", self.critic_optimizer, self.critic_loss, self.critic_draws()),
            Stage("actor_loss", self.actor_optimizer, self.actor_loss, self.actor_draws(), every),
        ]

    def further_networks(self) -> list[tuple[nn.Module, Tensor]]:
        """Other networks that the losses use, apart from actor, critic and target, each with its flat parameters."""
        return [(self.frozen_critic, self.critic_optimizer.parameters)]

    def inputs(self, batch: TransitionBatch) -> TransitionBatch:
        """The batch as input of the networks, with scaled rewards."""
        batch = super().inputs(batch)
        if self.config.reward_scale != 1.0:
            batch = batch._replace(reward=batch.reward * self.config.reward_scale)
        return self.views(batch)

    def views(self, batch: TransitionBatch) -> TransitionBatch:
        """The batch with prepared observations."""
        prepare = self.network.prepare
        return batch._replace(obs=prepare(batch.obs), next_obs=prepare(batch.next_obs))
