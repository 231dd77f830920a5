"""Shared by the actor-critics for continuous actions: acting, and the random inputs of their losses."""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Callable
from typing import ClassVar, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from rl_training.algorithms.encoders import finish_network, separate_encoders
from rl_training.algorithms.off_policy import (
    ActorCriticConfigT,
    AnyObservationConfig,
    OffPolicyActorCritic,
    OffPolicyActorCriticConfig,
)
from rl_training.algorithms.policy import ActInput, ExportModule, Observations, Policy
from rl_training.algorithms.update import Draw
from rl_training.models.action_head import scale_to_env
from rl_training.models.continuous import ContinuousActorCritic, Critics, make_actor, make_critics
from rl_training.models.observation import encode_observation
from rl_training.schedules import Schedule
from rl_training.types import ActionKind, Array, PolicyOutput, SpaceSpec, TransitionBatch

NetworkT = TypeVar("NetworkT", bound=ContinuousActorCritic)


class ContinuousPolicy(Policy):
    """Acts in [-1, 1]: uniformly at random in the warm-up, then with ``explore``. The deterministic action is tanh(mean)."""

    network: ContinuousActorCritic

    def __init__(self, network: ContinuousActorCritic, spec: SpaceSpec, config: OffPolicyActorCriticConfig) -> None:
        super().__init__(network, spec)
        self._warm_up = config.learning_starts
        self._output: Callable[[Array], Array] | None = None

    def choose(self, given: ActInput) -> PolicyOutput:
        obs, carry, rng, env_steps = given[:4]
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


class NoisyPolicy(ContinuousPolicy):
    """Adds noise with a scheduled standard deviation to the action of a deterministic actor."""

    def __init__(
        self, network: ContinuousActorCritic, spec: SpaceSpec, config: OffPolicyActorCriticConfig, noise: Schedule
    ) -> None:
        super().__init__(network, spec, config)
        self.noise = noise

    def explore(self, output: Array, rng: np.random.Generator, env_steps: int) -> Array:
        noise = rng.standard_normal(output.shape, np.float32)
        action: Array = np.clip(np.tanh(output) + np.float32(self.noise(env_steps)) * noise, -1.0, 1.0)
        return action


def noisy_action(mean: Tensor, noise: Tensor, std: float, clip: float) -> Tensor:
    """The mean plus clipped noise, clipped to [-1, 1]; the gradient reaches the mean as if the sum were not clipped."""
    assert mean.shape == noise.shape
    action = mean + (std * noise).clamp(-clip, clip)
    return action + (action.clamp(-1.0, 1.0) - action).detach()


class MeanActionModule(ExportModule):
    """Raw observations -> deterministic environment actions, and the same actions in [-1, 1]."""

    output_names = ("action", "mean")

    def __init__(self, network: ContinuousActorCritic, spec: SpaceSpec) -> None:
        super().__init__()
        self.network = network
        self.spec = spec

    def forward(self, obs: Observations) -> tuple[Tensor, Tensor]:
        encoded = encode_observation(obs, self.spec.observation)
        mean = torch.tanh(self.network(encoded)[:, : self.network.actions])
        return scale_to_env(mean, self.spec.action), mean


class ContinuousAlgorithm(OffPolicyActorCritic[ActorCriticConfigT]):
    """The update of actor-critics for continuous actions.

    A batch may hold several views of each observation, each augmented differently: view v of transition i is row
    v * batch + i. Actions and rewards have one row per transition.
    """

    actions: ClassVar[tuple[ActionKind, ...]] = ("continuous",)
    policy: ContinuousPolicy
    target: Critics
    frozen_critic: Critics
    target_encoder: ClassVar[bool] = True  # whether the target critic has a separate encoder

    @classmethod
    @abstractmethod
    def make_policy(cls, config: ActorCriticConfigT, spec: SpaceSpec, generator: torch.Generator) -> ContinuousPolicy:
        """A freshly initialised policy."""

    def make_target_critic(self) -> nn.Module:
        target = copy.deepcopy(self.policy.network.critic)
        if not self.target_encoder:
            target.encoder = None
        return target

    def critic_draws(self) -> dict[str, Draw[TransitionBatch]]:
        """The random inputs of the critic's loss: standard normal noise, one row per next observation."""
        actions = self.policy.network.actions
        return {"critic_noise": Draw(lambda batch: (len(batch.next_obs), actions))}

    def actor_draws(self) -> dict[str, Draw[TransitionBatch]]:
        """The random inputs of the actor's loss: standard normal noise, one row per transition."""
        actions = self.policy.network.actions
        return {"actor_noise": Draw(lambda batch: (len(batch.reward), actions))}


def make_actor_critic(
    kind: type[NetworkT],
    config: AnyObservationConfig,
    spec: SpaceSpec,
    generator: torch.Generator,
    *,
    critics: int = 2,
    critic_outputs: int = 1,
) -> NetworkT:
    """An actor and its critics on vectors, images or both."""
    inputs, actions, hidden = spec.observation.shape[0], len(spec.action.low), config.hidden_sizes
    encoders, style = separate_encoders(config, spec, generator), config.style()
    actor = make_actor(inputs, hidden, kind.outputs_per_action * actions, generator, style, encoders)
    critic = make_critics(inputs, actions, hidden, generator, style, encoders, count=critics, outputs=critic_outputs)
    network = kind(actor, critic, actions)
    finish_network(network, config, spec, generator)
    return network
