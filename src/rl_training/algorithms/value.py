"""What the algorithms that learn action values share: epsilon-greedy acting, the update step, the target network."""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor, nn

from rl_training.algorithms.base import Buffer, ExportModule, OffPolicyAlgorithm, Policy, Recorder
from rl_training.algorithms.compiled import CompiledStep, Stage
from rl_training.algorithms.config import ConvLayers, Count, Fraction, OffPolicyConfig, Positive
from rl_training.algorithms.optimizer import FlatAdam, flatten_parameters
from rl_training.data import FrameReplayBuffer, NStepAccumulator, PrioritizedReplayBuffer, ReplayBuffer, StepRecorder
from rl_training.models import ValueHead, ValueNetwork, make_value_body
from rl_training.models.cnn.nature import NATURE_LAYERS
from rl_training.models.noisy import noisy_layers
from rl_training.rng import RandomStreams
from rl_training.schedules import LinearSchedule, bias_correction
from rl_training.types import Array, Carry, PolicyOutput, SpaceSpec, State, TransitionBatch, UpdateResult


class QLearningConfig(OffPolicyConfig):
    """What everything that learns action values has."""

    double: bool = Field(False, description="choose the bootstrap action with the online network")
    tau: Fraction = Field(1.0, description="share of the online weights in a target update; 1: a copy")
    target_update_interval: Positive = Field(500, description="updates between target updates")
    exploration_initial_eps: Fraction = Field(1.0, description="chance of a random action at the start")
    exploration_final_eps: Fraction = Field(0.05, description="chance of a random action in the end")
    exploration_steps: Count = Field(10_000, description="env steps over which the chance falls")


class ValueConfig(QLearningConfig):
    """Settings of the value family. Rainbow (arXiv:1710.02298) is C51 with all of the switches on."""

    hidden_sizes: tuple[Positive, ...] = Field((64, 64), description="widths of the hidden layers")
    cnn_layers: ConvLayers = Field(NATURE_LAYERS, description="filters, kernel and stride of the convolutions on images")
    frame_stack: Positive = Field(1, description="frames in an image observation; each is stored once")
    dueling: bool = Field(False, description="separate streams for the state's value and the actions' advantages")
    noisy: bool = Field(
        False,
        description="explore by noise in the last layers instead of epsilon; one sample of it drives all environments until "
        "the next update",
    )
    n_step: Positive = Field(1, description="rewards summed in one transition")
    prioritized: bool = Field(False, description="sample by priority instead of uniformly")
    priority_alpha: Fraction = Field(0.5, description="how much priorities count; 0: not at all")
    priority_beta: Fraction = Field(0.4, description="how much their bias is corrected at the start; 0: not at all")
    priority_beta_steps: Count = Field(
        50_000, description="env steps over which the correction becomes complete; 0: it stays as it is"
    )


class EpsilonPolicy(Policy):
    """Acting on Q-values with epsilon: each environment draws for itself whether to act at random."""

    def __init__(self, network: nn.Module, spec: SpaceSpec, config: QLearningConfig) -> None:
        super().__init__(network, spec)
        self._warm_up = config.learning_starts
        self._schedule = LinearSchedule(
            config.exploration_initial_eps, config.exploration_final_eps, config.exploration_steps
        )

    def epsilon(self, env_steps: int) -> float:
        return 1.0 if env_steps < self._warm_up else self._schedule(env_steps)

    def epsilons(self, env_steps: int, envs: int) -> Array | float:
        """Epsilon of each environment, or one for all."""
        return self.epsilon(env_steps)

    def draw(
        self, rng: np.random.Generator, env_steps: int, envs: int, action_mask: NDArray[np.bool_] | None
    ) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
        """Which environments act at random, and a random action for each."""
        explore: NDArray[np.bool_] = rng.random(envs) < self.epsilons(env_steps, envs)
        return explore, _random_actions(rng, envs, self.spec.action.count, action_mask)


def greedy_actions(q_values: Array, action_mask: NDArray[np.bool_] | None) -> NDArray[np.int64]:
    """The best action of each row (env, action), of those that are allowed."""
    if action_mask is not None:
        q_values = np.where(action_mask, q_values, -np.inf)
    greedy: NDArray[np.int64] = q_values.argmax(axis=1)
    return greedy


class EpsilonGreedyPolicy(EpsilonPolicy):
    """Acts on the largest Q-value of a feed-forward network.

    A noisy network explores by its noise: epsilon is then 0 after the warm-up.
    """

    network: ValueNetwork

    def __init__(self, network: ValueNetwork, spec: SpaceSpec, config: ValueConfig) -> None:
        super().__init__(network, spec, config)
        self._noisy = config.noisy
        self._q_functions: dict[bool, Callable[[Array], Array]] = {}

    def epsilon(self, env_steps: int) -> float:
        return 0.0 if self._noisy and env_steps >= self._warm_up else super().epsilon(env_steps)

    def act(
        self,
        obs: Array,
        carry: Carry,
        *,
        rng: np.random.Generator | None = None,
        env_steps: int = 0,
        action_mask: NDArray[np.bool_] | None = None,
    ) -> PolicyOutput:
        if rng is None:
            return PolicyOutput(greedy_actions(self.q(obs), action_mask), carry, {})
        explore, action = self.draw(rng, env_steps, len(obs), action_mask)
        if not explore.all():
            action = np.where(explore, action, greedy_actions(self.q(obs, self._noisy), action_mask))
        return PolicyOutput(action, carry, {})

    def q(self, obs: Array, noisy: bool = False) -> Array:
        """Q-values (env, action), with the exploration noise or without."""
        if noisy not in self._q_functions:
            self._q_functions[noisy] = self.network.q_function(noisy)
        return self._q_functions[noisy](obs)

    def parameters_moved(self) -> None:
        self._q_functions.clear()

    def export_module(self) -> ExportModule:
        return GreedyModule(self.network, self.spec).eval()


def _random_actions(
    rng: np.random.Generator, envs: int, count: int, action_mask: NDArray[np.bool_] | None
) -> NDArray[np.int64]:
    """One action per environment, uniform over the allowed ones."""
    if action_mask is None:
        return rng.integers(0, count, envs)
    rank = np.floor(rng.random(envs) * action_mask.sum(axis=1))  # take the rank-th allowed action
    action: NDArray[np.int64] = (action_mask.cumsum(axis=1) > rank[:, None]).argmax(axis=1)
    return action


class GreedyModule(ExportModule):
    """Raw observations -> greedy actions in the environment's terms, and the Q-values behind them."""

    def __init__(self, network: ValueNetwork, spec: SpaceSpec) -> None:
        super().__init__()
        self.network = copy.deepcopy(network)
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
    """A loss before reduction, what to report, and how surprising each sample was."""

    loss: Tensor  # (batch,)
    metrics: Mapping[str, Tensor]  # each (batch,)
    priority: Tensor  # (batch,)


#: a network as a function of observations
Values = Callable[[Tensor], Tensor]


def allowed(q_values: Tensor, batch: TransitionBatch) -> Tensor:
    """Q-values at the next observation, minus infinity where the action is not allowed there."""
    if batch.next_action_mask is None:
        return q_values
    return q_values.masked_fill(~batch.next_action_mask, -torch.inf)


def select_actions(q_values: Tensor, batch: TransitionBatch) -> Tensor:
    """The action to bootstrap from, (batch,): the best of those allowed at the next observation."""
    return allowed(q_values, batch).argmax(dim=1)


def take_action(values: Tensor, action: Tensor) -> Tensor:
    """(batch, action, ...) and (batch,) -> the values of these actions, (batch, ...)."""
    index = action.unsqueeze(1)
    if values.dim() == 3:
        index = index.unsqueeze(2).expand(-1, 1, values.shape[2])
    return values.gather(1, index).squeeze(1)


def tensors_of(batch: TransitionBatch) -> list[Tensor]:
    """The fields that a compiled update takes."""
    return [field for field in batch if isinstance(field, Tensor)]


class QLearning(OffPolicyAlgorithm):
    """An online network that learns and a target network that follows it."""

    policy: EpsilonPolicy
    config: QLearningConfig
    target: nn.Module

    def __init__(self, policy: EpsilonPolicy, config: QLearningConfig) -> None:
        super().__init__(policy, config)
        self.config = config
        self.target = copy.deepcopy(policy.network).requires_grad_(False)
        self.optimizer = FlatAdam(policy.network, eps=config.adam_eps, max_norm=config.max_grad_norm)
        policy.parameters_moved()
        self._target_parameters = flatten_parameters(self.target)
        self.updates = 0

    def _descend(self, losses: Tensor, env_steps: int, share: Tensor | None = None) -> None:
        """One step of the online network and, when due, of the target network."""
        self.optimizer.step(losses, self.learning_rate(env_steps), share)
        tau = self._count_update()
        if tau:
            self._target_parameters.lerp_(self.optimizer.parameters, tau)

    def _count_update(self) -> float:
        """Counts it, and says the share of the online weights that the target network takes over: 0 if that is not due."""
        self.updates += 1
        return 0.0 if self.updates % self.config.target_update_interval else self.config.tau

    def schedule_values(self, env_steps: int) -> dict[str, float]:
        return {**super().schedule_values(env_steps), "epsilon": self.policy.epsilon(env_steps)}

    def policy_loaded(self) -> None:
        self._target_parameters.copy_(self.optimizer.parameters)

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


class ValueAlgorithm(QLearning):
    """The update that DQN, QR-DQN and C51 share; each adds its network and its ``loss``."""

    policy: EpsilonGreedyPolicy
    config: ValueConfig
    target: ValueNetwork

    def __init__(self, policy: EpsilonGreedyPolicy, config: ValueConfig, streams: RandomStreams) -> None:
        super().__init__(policy, config)
        self._beta = bias_correction(config.priority_beta, config.priority_beta_steps)
        self._noise_rng = streams["noise"]
        self._noisy_layers = [*noisy_layers(policy.network), *noisy_layers(self.target)]
        self._resample_noise()
        self._compiled: CompiledStep | None = None

    @abstractmethod
    def loss(self, online: Values, target: Values, batch: TransitionBatch) -> LossOutput:
        """The per-sample loss, from two functions of the observations and nothing else."""

    def update(self, batch: TransitionBatch, env_steps: int = 0) -> UpdateResult:
        self._resample_noise()
        if self._compiled is not None:
            rate, tau = self.learning_rate(env_steps), self._count_update()
            measured = self._compiled(tensors_of(batch), learning_rate=rate, tau=tau)
            return UpdateResult(measured, measured.pop("priority"))
        output = self.weighted_loss(batch)
        self._descend(output.loss, env_steps)
        return UpdateResult({"loss": output.loss.detach(), **output.metrics}, output.priority)

    def weighted_loss(self, batch: TransitionBatch) -> LossOutput:
        """The loss of the networks as they are, with the weights of prioritised replay."""
        output = self.loss(self.policy.network, self.target, batch)
        return output if batch.weights is None else output._replace(loss=output.loss * batch.weights)

    def why_not_compiled(self) -> str | None:
        return None

    def compile_repaid_after(self) -> int:
        return 40_000

    def compile(self, source: Any) -> None:
        blank: TransitionBatch = source.gather(np.zeros(self.config.batch_size, np.int64))
        if self.config.prioritized:
            blank = blank._replace(weights=torch.ones_like(blank.reward))
        names = [name for name, field in blank._asdict().items() if isinstance(field, Tensor)]

        def losses(tensors: Sequence[Tensor], settings: Mapping[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
            fields: dict[str, Any] = dict(zip(names, tensors, strict=True))
            output = self.weighted_loss(TransitionBatch(**fields))
            return output.loss, {**output.metrics, "priority": output.priority}

        online, target = self.optimizer.parameters, self._target_parameters
        networks = [(self.policy.network, online), (self.target, target)]
        compiled = CompiledStep([Stage("loss", self.optimizer, losses)], networks, target=(target, online))
        compiled.prepare(tensors_of(blank))
        self._compiled = compiled

    def _resample_noise(self) -> None:
        """New noise for each update, in both networks; acting uses the online network's until the next."""
        for layer in self._noisy_layers:
            layer.resample(self._noise_rng)

    def make_recorder(self, num_envs: int) -> Recorder:
        if self.policy.spec.observation.kind == "image":
            return StepRecorder()
        return NStepAccumulator(num_envs, self.config.gamma, self.config.n_step)

    def make_buffer(self, num_envs: int, streams: RandomStreams) -> Buffer:
        spec, config = self.policy.spec, self.config
        options: dict[str, Any] = {
            "masked_actions": spec.action.count if spec.action.masked else 0,
            "rng": streams["replay"],
            "device": self._target_parameters.device,
        }
        if config.prioritized:
            options["alpha"] = config.priority_alpha
        if spec.observation.kind == "image":
            options.update(stack=config.frame_stack, num_envs=num_envs, n_step=config.n_step, gamma=config.gamma)
            return FrameReplayBuffer(config.buffer_size, spec.observation.shape, **options)
        options["reuse_batches"] = True  # an update is done with its batch before the next is drawn
        buffer = PrioritizedReplayBuffer if config.prioritized else ReplayBuffer
        return buffer(config.buffer_size, spec.observation.shape, **options)

    def sample(self, buffer: Any, env_steps: int) -> TransitionBatch:
        if not self.config.prioritized:
            return super().sample(buffer, env_steps)  # type: ignore[no-any-return]
        batch: TransitionBatch = buffer.sample(self.config.batch_size, beta=self._beta(env_steps))
        return batch


def make_body(
    config: ValueConfig, spec: SpaceSpec, generator: torch.Generator, atoms: int = 1
) -> tuple[nn.Module, ValueHead]:
    """The trunk and the head that a config asks for."""
    return make_value_body(
        spec.observation.shape,
        spec.action.count,
        config.hidden_sizes,
        generator,
        atoms=atoms,
        dueling=config.dueling,
        noisy=config.noisy,
        cnn_layers=config.cnn_layers,
    )
