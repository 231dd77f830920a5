"""What the algorithms for continuous actions share: acting, the order of an update, the target critic, the replay."""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from rl_training.algorithms.base import Buffer, ExportModule, OffPolicyAlgorithm, Policy, Recorder
from rl_training.algorithms.config import Fraction, OffPolicyConfig, Positive, PositiveNumber
from rl_training.algorithms.optimizer import FlatAdam, flatten_parameters, place_parameters
from rl_training.algorithms.value import encode_observation
from rl_training.data import NStepAccumulator, ReplayBuffer
from rl_training.models.action_head import scale_to_env
from rl_training.models.continuous import ContinuousActorCritic
from rl_training.rng import RandomStreams
from rl_training.types import Array, Carry, PolicyOutput, SpaceSpec, State, TransitionBatch, UpdateResult


class ContinuousConfig(OffPolicyConfig):
    """Settings of the algorithms for continuous actions."""

    learning_rate: PositiveNumber = Field(3e-4, description="Adam's step size, of actor, critic and temperature")
    max_grad_norm: PositiveNumber | None = Field(None, description="gradients are clipped to this norm; none: never")
    batch_size: Positive = Field(256, description="transitions in one update")
    hidden_sizes: tuple[Positive, ...] = Field((256, 256), description="widths of the hidden layers")
    n_step: Positive = Field(1, description="rewards summed in one transition")
    reward_scale: PositiveNumber = Field(
        1.0, description="rewards are multiplied by this in an update: values far from 1 are learned slowly"
    )
    tau: Fraction = Field(0.005, description="share of the critic's weights in a target update")
    target_update_interval: Positive = Field(1, description="updates between target updates")
    actor_update_interval: Positive = Field(1, description="updates of the critic for each of the actor")


class ContinuousPolicy(Policy):
    """Acts in [-1, 1]: at random in the warm-up, then as ``explore`` says; without a generator the tanh of the mean."""

    network: ContinuousActorCritic

    def __init__(self, network: ContinuousActorCritic, spec: SpaceSpec, config: ContinuousConfig) -> None:
        super().__init__(network, spec)
        self._warm_up = config.learning_starts
        self._output: Callable[[Array], Array] | None = None

    def act(
        self,
        obs: Array,
        carry: Carry,
        *,
        rng: np.random.Generator | None = None,
        env_steps: int = 0,
        action_mask: NDArray[np.bool_] | None = None,
    ) -> PolicyOutput:
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
        """Actions to learn from, of the actor's output: each environment draws for itself."""

    def parameters_moved(self) -> None:
        self._output = None

    def export_module(self) -> ExportModule:
        return MeanActionModule(self.network, self.spec)


class MeanActionModule(ExportModule):
    """Raw observations -> the actions of an evaluation in the environment's terms, and the same in [-1, 1]."""

    output_names = ("action", "mean")

    def __init__(self, network: ContinuousActorCritic, spec: SpaceSpec) -> None:
        super().__init__()
        self.network = network
        self.spec = spec

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        mean = torch.tanh(self.network(encode_observation(obs, self.spec))[:, : self.network.actions])
        return scale_to_env(mean, self.spec.action), mean


class Loss(NamedTuple):
    """A loss before reduction, what to report, and what the critic's encoder saw on the way, if that is to be used again."""

    loss: Tensor  # (batch,)
    metrics: Mapping[str, Tensor]
    features: Tensor | None = None


class Views(NamedTuple):
    """A batch as the networks look at it, images augmented. There may be several views of each transition: view v of
    transition i is row v * batch + i."""

    obs: Tensor
    next_obs: Tensor


class ContinuousAlgorithm(OffPolicyAlgorithm):
    """The update of SAC, DrQ and DrQ-v2: the critic, then the actor against it, then the target critic."""

    policy: ContinuousPolicy
    config: ContinuousConfig
    target_encoder: ClassVar[bool] = True  # whether the target critic has an encoder of its own

    def __init__(self, policy: ContinuousPolicy, config: ContinuousConfig, streams: RandomStreams) -> None:
        super().__init__(policy, config)
        self.config = config
        network = policy.network
        options: dict[str, Any] = {"eps": config.adam_eps, "max_norm": config.max_grad_norm}
        self.critic_optimizer = FlatAdam(network.critic, **options)
        self.actor_optimizer = FlatAdam(network.actor, **options)
        policy.parameters_moved()
        self.target = copy.deepcopy(network.critic).requires_grad_(False)
        if not self.target_encoder:
            self.target.encoder = None
        self._target_parameters = flatten_parameters(self.target)
        self._followed = self.critic_optimizer.parameters[-len(self._target_parameters) :]  # the encoder's come first
        # The critic's own weights without a gradient: the actor's loss passes through them and leaves nothing there.
        self.judge = copy.deepcopy(network.critic).requires_grad_(False)
        place_parameters(self.judge, self.critic_optimizer.parameters)
        self._noise_rng = streams["noise"]
        self._actor_metrics: dict[str, Tensor] = {}
        self.updates = 0

    # -- what differs between the algorithms

    @abstractmethod
    def critic_loss(self, views: Views, batch: TransitionBatch, noise: Tensor, env_steps: int) -> Loss:
        """``noise`` has a row for each next observation."""

    @abstractmethod
    def actor_loss(self, obs: Tensor, features: Tensor | None, noise: Tensor, env_steps: int) -> Loss:
        """From one view of the observations, and from what the critic's loss has seen of them."""

    def views(self, batch: TransitionBatch) -> Views:
        return Views(self.policy.network.prepare(batch.obs), self.policy.network.prepare(batch.next_obs))

    # -- what they share

    def update(self, batch: TransitionBatch, env_steps: int = 0) -> UpdateResult:
        config = self.config
        views = self.views(batch)
        if config.reward_scale != 1.0:
            batch = batch._replace(reward=batch.reward * config.reward_scale)
        self.updates += 1
        noise = [self.noise(len(views.next_obs))]
        if self.updates % config.actor_update_interval == 0:
            noise.append(self.noise(len(batch.reward)))
        tau = config.tau if self.updates % config.target_update_interval == 0 else 0.0
        measured = self.learn(views, batch, noise, tau, env_steps)
        return UpdateResult({**measured, **self._actor_metrics})

    def learn(
        self, views: Views, batch: TransitionBatch, noise: Sequence[Tensor], tau: float, env_steps: int
    ) -> Mapping[str, Tensor]:
        """A step of the critic; if there is noise for it too, one of the actor; and of the target by the share ``tau``."""
        learning_rate = self.learning_rate(env_steps)
        critic = self.critic_loss(views, batch, noise[0], env_steps)
        self.critic_optimizer.step(critic.loss, learning_rate)
        for drawn in noise[1:]:
            actor = self.actor_loss(views.obs[: len(batch.reward)], critic.features, drawn, env_steps)
            self.actor_optimizer.step(actor.loss, learning_rate)
            self._actor_metrics = {"actor_loss": actor.loss.detach(), **actor.metrics}
            self.actor_updated(actor, learning_rate)
        if tau:
            self._target_parameters.lerp_(self._followed, tau)
        return {"critic_loss": critic.loss.detach(), **critic.metrics}

    def actor_updated(self, actor: Loss, learning_rate: float) -> None:
        """Called after each step of the actor."""
        return

    def noise(self, rows: int) -> Tensor:
        """Standard normal noise (rows, action) from the run's own stream."""
        drawn = torch.empty(rows, self.policy.network.actions)
        self._noise_rng.standard_normal(dtype=np.float32, out=drawn.numpy())
        return drawn.to(self._target_parameters.device)

    def make_recorder(self, num_envs: int) -> Recorder:
        return NStepAccumulator(num_envs, self.config.gamma, self.config.n_step)

    def make_buffer(self, num_envs: int, streams: RandomStreams) -> Buffer:
        spec, config = self.policy.spec, self.config
        return ReplayBuffer(
            config.buffer_size,
            spec.observation.shape,
            action_shape=spec.action.shape,
            action_dtype=np.float32,
            rng=streams["replay"],
            device=self._target_parameters.device,
            reuse_batches=True,  # an update is done with its batch before the next is drawn
        )

    def policy_loaded(self) -> None:
        self._target_parameters.copy_(self._followed)

    def state_dict(self) -> State:
        return {
            "target": self._target_parameters.clone(),
            "critic_optimizer": self.critic_optimizer.state_dict(),
            "actor_optimizer": self.actor_optimizer.state_dict(),
            "actor_metrics": {name: value.mean() for name, value in self._actor_metrics.items()},
            "updates": self.updates,
        }

    def load_state_dict(self, state: State) -> None:
        self._target_parameters.copy_(state["target"])
        self.critic_optimizer.load_state_dict(state["critic_optimizer"])
        self.actor_optimizer.load_state_dict(state["actor_optimizer"])
        self._actor_metrics = dict(state["actor_metrics"])
        self.updates = int(state["updates"])
