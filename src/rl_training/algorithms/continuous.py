"""Shared by the algorithms for continuous actions: acting, the stages of an update, the target critic and the replay."""

from __future__ import annotations

import copy
import functools
from abc import abstractmethod
from collections.abc import Callable
from typing import ClassVar, TypeVar

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn

from rl_training.algorithms.base import OffPolicyAlgorithm
from rl_training.algorithms.config import Fraction, OffPolicyConfig, Positive, PositiveNumber, ScheduledPositive
from rl_training.algorithms.optimizer import FlatOptimizer, make_optimizer, place_parameters
from rl_training.algorithms.policy import ActInput, ExportModule, Policy
from rl_training.algorithms.update import Draw, Known, Stage, StageLoss, TargetNetwork, Update
from rl_training.data.replay import Replay
from rl_training.data.transition_replay import make_transition_replay
from rl_training.models.action_head import scale_to_env
from rl_training.models.continuous import ContinuousActorCritic
from rl_training.models.encoder import Encoder
from rl_training.models.observation import encode_observation, unpack
from rl_training.schedules import Schedule
from rl_training.types import Array, PolicyOutput, SpaceSpec, TransitionBatch


class ContinuousConfig(OffPolicyConfig):
    """Settings of the algorithms for continuous actions."""

    learning_rate: ScheduledPositive = Field(3e-4, description="learning rate of all networks, a number or a schedule")
    max_grad_norm: PositiveNumber | None = Field(None, description="clip gradients to this norm; null: no clipping")
    batch_size: Positive = Field(256, description="transitions in one update")
    hidden_sizes: tuple[Positive, ...] = Field((256, 256), description="widths of the hidden layers")
    n_step: Positive = Field(1, description="rewards summed in one transition")
    reward_scale: PositiveNumber = Field(
        1.0, description="multiply rewards by this in an update; returns far from 1 are learned slowly"
    )
    tau: Fraction = Field(0.005, description="share of the online weights in a target update")
    target_update_interval: Positive = Field(1, description="updates between target updates")
    actor_update_interval: Positive = Field(1, description="critic updates per actor update")


ContinuousConfigT = TypeVar("ContinuousConfigT", bound=ContinuousConfig)


class ContinuousPolicy(Policy):
    """Acts in [-1, 1]: uniformly at random in the warm-up, then with ``explore``. The deterministic action is tanh(mean)."""

    network: ContinuousActorCritic

    def __init__(self, network: ContinuousActorCritic, spec: SpaceSpec, config: ContinuousConfig) -> None:
        super().__init__(network, spec)
        self._warm_up = config.learning_starts
        self._output: Callable[[Array], Array] | None = None

    def choose(self, given: ActInput) -> PolicyOutput:
        obs, carry, rng, env_steps, _ = given
        actions = self.network.actions
        if rng is not None and env_steps < self._warm_up:
            return PolicyOutput(rng.uniform(-1.0, 1.0, (len(obs), actions)).astype(np.float32), carry, {})
        if self._output is None:
            self._output = self.network.numpy_forward()
        output = self._output(obs)
        action = np.tanh(output[:, :actions]) if rng is None else self.explore(output, rng, env_steps)
        return PolicyOutput(action, carry, {})

    @abstractmethod
    def explore(self, output: Array, rng: np.random.Generator, env_steps: int) -> Array:
        """Exploratory actions from the actor's output; each environment draws separately."""

    def parameters_moved(self) -> None:
        self._output = None

    def export_module(self) -> ExportModule:
        return MeanActionModule(self.network, self.spec)


class MeanActionModule(ExportModule):
    """Raw observations -> deterministic environment actions, and the same actions in [-1, 1]."""

    output_names = ("action", "mean")

    def __init__(self, network: ContinuousActorCritic, spec: SpaceSpec) -> None:
        super().__init__()
        self.network = network
        self.spec = spec

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        encoded = encode_observation(obs, self.spec.observation)
        mean = torch.tanh(self.network(encoded)[:, : self.network.actions])
        return scale_to_env(mean, self.spec.action), mean


class ContinuousAlgorithm(OffPolicyAlgorithm[ContinuousConfigT, TransitionBatch]):
    """The update of SAC, DrQ and DrQ-v2: first the critic, then the actor against it, then the target critic.

    A batch may hold several views of each observation, each augmented differently: view v of transition i is row
    v * batch + i. Actions and rewards have one row per transition.
    """

    actions: ClassVar[tuple[str, ...]] = ("continuous",)
    policy: ContinuousPolicy
    target_encoder: ClassVar[bool] = True  # whether the target critic has a separate encoder

    def build(self) -> None:
        super().build()
        config, network = self.config, self.policy.network
        self.critic_optimizer = make_optimizer(network.critic, config, max_norm=config.max_grad_norm)
        self.actor_optimizer = make_optimizer(network.actor, config, max_norm=config.max_grad_norm)
        self.target = copy.deepcopy(network.critic)
        if not self.target_encoder:
            self.target.encoder = None
        self.target_network = self.follow(self.target, self.critic_optimizer)
        # Shares the critic's weights but takes no gradient: the actor's loss backpropagates through it without changing them.
        self.frozen_critic = copy.deepcopy(network.critic).requires_grad_(False)
        place_parameters(self.frozen_critic, self.critic_optimizer.parameters)

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
        """The random inputs of the critic's loss: standard normal noise, one row per next observation."""
        actions = self.policy.network.actions
        return {"critic_noise": Draw(lambda batch: (len(batch.next_obs), actions))}

    def actor_draws(self) -> dict[str, Draw[TransitionBatch]]:
        """The random inputs of the actor's loss: standard normal noise, one row per transition."""
        actions = self.policy.network.actions
        return {"actor_noise": Draw(lambda batch: (len(batch.reward), actions))}

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
        prepare = self.policy.network.prepare
        return batch._replace(obs=prepare(batch.obs), next_obs=prepare(batch.next_obs))

    def make_replay(self, num_envs: int) -> Replay[TransitionBatch]:
        config = self.config
        return make_transition_replay(
            self.policy.spec,
            capacity=config.buffer_size,
            batch_size=config.batch_size,
            num_envs=num_envs,
            n_step=config.n_step,
            gamma=config.gamma,
            frame_stack=self.frame_stack(),
            clip_reward=config.clip_reward,
            rng=self.streams["replay"],
            device=self.target_network.vector.device,
        )

    def frame_stack(self) -> int:
        """The number of frames in an image observation."""
        return 1


def custom_encoders(config: ContinuousConfig, spec: SpaceSpec, generator: torch.Generator) -> tuple[Encoder, Encoder] | None:
    """The user's own encoders of actor and critic, if there are any."""
    custom, observation = config.custom_network(), spec.observation
    return None if custom is None else custom.make_pair(observation, generator, functools.partial(unpack, observation))
