"""What the algorithms that learn action values share: epsilon-greedy acting, the update step, the target network."""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn

from rl_training.algorithms.base import ExportModule, OffPolicyAlgorithm, Policy
from rl_training.algorithms.config import Count, Fraction, OffPolicyConfig, Positive
from rl_training.algorithms.optimizer import FlatAdam, flatten_parameters
from rl_training.data import NStepAccumulator, ReplayBuffer
from rl_training.models import ValueNetwork
from rl_training.rng import RandomStreams
from rl_training.schedules import LinearSchedule
from rl_training.types import Array, Carry, PolicyOutput, SpaceSpec, State, TransitionBatch, UpdateResult


class ValueConfig(OffPolicyConfig):
    """Settings of the value family."""

    hidden_sizes: tuple[Positive, ...] = Field((64, 64), description="widths of the hidden layers")
    n_step: Positive = Field(1, description="rewards summed in one transition")
    double: bool = Field(False, description="choose the bootstrap action with the online network")
    tau: Fraction = Field(1.0, description="share of the online weights in a target update; 1: a copy")
    target_update_interval: Positive = Field(500, description="updates between target updates")
    exploration_initial_eps: Fraction = Field(1.0, description="chance of a random action at the start")
    exploration_final_eps: Fraction = Field(0.05, description="chance of a random action in the end")
    exploration_steps: Count = Field(10_000, description="env steps over which the chance falls")


class EpsilonGreedyPolicy(Policy):
    """Acts on the largest Q-value; exploring, each environment draws for itself whether to act at random."""

    network: ValueNetwork

    def __init__(self, network: ValueNetwork, spec: SpaceSpec, config: ValueConfig) -> None:
        super().__init__(network, spec)
        self._warm_up = config.learning_starts
        self._schedule = LinearSchedule(
            config.exploration_initial_eps, config.exploration_final_eps, config.exploration_steps
        )
        self._q_function: Callable[[Array], Array] | None = None

    def epsilon(self, env_steps: int) -> float:
        return 1.0 if env_steps < self._warm_up else self._schedule(env_steps)

    def act(self, obs: Array, carry: Carry, *, rng: np.random.Generator | None = None, env_steps: int = 0) -> PolicyOutput:
        if rng is None:
            return PolicyOutput(self.q(obs).argmax(axis=1), carry, {})
        explore = rng.random(len(obs)) < self.epsilon(env_steps)
        action = rng.integers(0, self.spec.action.count, len(obs))
        if not explore.all():
            action = np.where(explore, action, self.q(obs).argmax(axis=1))
        return PolicyOutput(action, carry, {})

    def q(self, obs: Array) -> Array:
        if self._q_function is None:
            self._q_function = self.network.q_function()
        return self._q_function(obs)

    def parameters_moved(self) -> None:
        self._q_function = None

    def export_module(self) -> ExportModule:
        return GreedyModule(self.network, self.spec)


class GreedyModule(ExportModule):
    """Raw observations -> greedy actions in the environment's terms, and the Q-values behind them."""

    def __init__(self, network: ValueNetwork, spec: SpaceSpec) -> None:
        super().__init__()
        self.network = network
        self.spec = spec

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        q_values = self.network.q_values(encode_observation(obs, self.spec))
        return q_values.argmax(dim=1) + self.spec.action.start, q_values


def encode_observation(obs: Tensor, spec: SpaceSpec) -> Tensor:
    """``ObservationSpec.encode`` as torch operations, so that an exported policy carries its preprocessing."""
    observation = spec.observation
    if not observation.one_hot_sizes:
        return obs.reshape(-1, *observation.shape)
    starts = torch.tensor(observation.one_hot_starts)
    indices = obs.reshape(-1, len(observation.one_hot_sizes)).long() - starts
    blocks = [nn.functional.one_hot(indices[:, i], size) for i, size in enumerate(observation.one_hot_sizes)]
    return torch.cat(blocks, dim=1).float()


class LossOutput(NamedTuple):
    """A loss before reduction, and what to report."""

    loss: Tensor  # (batch,)
    metrics: Mapping[str, Tensor]  # each (batch,)


class ValueAlgorithm(OffPolicyAlgorithm):
    """The update that DQN, QR-DQN and C51 share; each adds its network and its ``loss``."""

    policy: EpsilonGreedyPolicy
    config: ValueConfig

    def __init__(self, policy: EpsilonGreedyPolicy, config: ValueConfig) -> None:
        super().__init__(policy, config)
        self.config = config
        self.target = copy.deepcopy(policy.network).requires_grad_(False)
        self.optimizer = FlatAdam(policy.network, eps=config.adam_eps, max_norm=config.max_grad_norm)
        policy.parameters_moved()
        self._target_parameters = flatten_parameters(self.target)
        self.updates = 0

    @abstractmethod
    def loss(
        self, online: Callable[[Tensor], Tensor], target: Callable[[Tensor], Tensor], batch: TransitionBatch
    ) -> LossOutput:
        """The per-sample loss, from two functions of the observations and nothing else."""

    def update(self, batch: TransitionBatch, env_steps: int = 0) -> UpdateResult:
        output = self.loss(self.policy.network, self.target, batch)
        self.optimizer.step(output.loss.mean(), self.learning_rate(env_steps))
        self.updates += 1
        if self.updates % self.config.target_update_interval == 0:
            self._target_parameters.lerp_(self.optimizer.parameters, self.config.tau)
        return UpdateResult({"loss": output.loss.detach(), **output.metrics})

    def schedule_values(self, env_steps: int) -> dict[str, float]:
        return {**super().schedule_values(env_steps), "epsilon": self.policy.epsilon(env_steps)}

    def make_recorder(self, num_envs: int) -> NStepAccumulator:
        return NStepAccumulator(num_envs, self.config.gamma, self.config.n_step)

    def make_buffer(self, streams: RandomStreams) -> ReplayBuffer:
        spec = self.policy.spec
        return ReplayBuffer(
            self.config.buffer_size,
            spec.observation.shape,
            obs_dtype=spec.observation.dtype,
            rng=streams["replay"],
            device=self._target_parameters.device,
        )

    def state_dict(self) -> State:
        return {
            "target": self._target_parameters.clone(),
            "optimizer": self.optimizer.state_dict(),
            "updates": self.updates,
        }

    def load_state_dict(self, state: State) -> None:
        self._target_parameters.copy_(state["target"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.updates = int(state["updates"])
