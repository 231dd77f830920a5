"""Shared by the recurrent value learners: acting with an LSTM, and the TD error over whole sequences."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Literal, NamedTuple, TypeVar

import numpy as np
import torch
from pydantic import Field, model_validator
from torch import Tensor
from torch.nn import functional as F
from typing_extensions import Self

from rl_training.algorithms.config import Count, Fraction, Number, Positive
from rl_training.algorithms.epsilon_greedy import EpsilonPolicy, greedy_actions
from rl_training.algorithms.policy import ActInput, ExportModule, Observations, Policy
from rl_training.algorithms.update import Known, StageLoss
from rl_training.algorithms.value import QLearning, QLearningConfig, TDErrorConfig
from rl_training.data import RecurrentRecorder, RecurrentReplayBuffer, cutting_problem
from rl_training.data.replay import Replay
from rl_training.errors import ConfigError
from rl_training.models import LSTMQNetwork
from rl_training.models.action_head import index_to_env
from rl_training.models.observation import encode_observation
from rl_training.models.recurrent.make_core import Cell
from rl_training.schedules import Schedule
from rl_training.types import Array, Carry, ObservationKind, PolicyOutput, SequenceBatch, SpaceSpec


class RecurrentValueConfig(TDErrorConfig, QLearningConfig):
    """Settings of the value-based algorithms with an LSTM."""

    buffer_size: Positive = Field(100_000, description="steps kept for replay")
    batch_size: Positive = Field(32, description="sequences in one update")
    trace_lambda: Fraction = Field(
        0.0,
        description="lambda of Watkins's Q(lambda): a target extends along its sequence while the actions are greedy or "
        "have values within 1 % of the best; 0: n-step targets, whatever the actions",
    )
    sequence_length: Positive = Field(20, description="steps in a sequence: the length of backpropagation through time")
    burn_in: Count = Field(0, description="steps before each sequence that only warm up the LSTM's state")
    overlap: Count = Field(0, description="steps shared by neighbouring sequences")
    encoder_sizes: tuple[Positive, ...] = Field((64,), description="widths of the layers before the LSTM; none with network")
    recurrent_cell: Cell = Field("lstm", description="lstm or gru; the lstm_* settings are those of either")
    lstm_size: Positive = Field(64, description="width of the LSTM")
    lstm_layers: Positive = Field(1, description="layers of the LSTM")
    forget_bias: Number = Field(1.0, description="initial forget-gate bias of the LSTM, for a longer memory; a GRU has none")
    hidden_sizes: tuple[Positive, ...] = Field((64,), description="widths of the hidden layers after the LSTM")
    shortcut: bool = Field(False, description="these layers also take the encoder's features, besides the output of the LSTM")
    loss_over_time: Literal["mean", "sum"] = Field(
        "mean",
        description="mean: over all steps of a batch; sum: over the steps of each sequence, then the mean over sequences, "
        "which makes gradients up to sequence_length times as large",
    )

    @model_validator(mode="after")
    def _one_kind_of_target(self) -> Self:
        if self.trace_lambda and self.n_step != 1:
            raise ValueError(f"trace_lambda makes targets of as many steps as it can: set n_step to 1, not {self.n_step}")
        return self

    @model_validator(mode="after")
    def _sequences_advance(self) -> Self:
        problem = cutting_problem(self.sequence_length, self.overlap, self.burn_in)
        if problem:
            raise ValueError(problem)
        return self


RecurrentConfigT = TypeVar("RecurrentConfigT", bound=RecurrentValueConfig)


class RecurrentQPolicy(EpsilonPolicy):
    """Epsilon-greedy on Q-values that depend on everything the LSTM has seen in the episode.

    The carry is the LSTM's state, followed by the previous action (one-hot) and reward if the network takes them.
    """

    network: LSTMQNetwork

    def __init__(self, network: LSTMQNetwork, spec: SpaceSpec, config: RecurrentValueConfig) -> None:
        super().__init__(network, spec, config)
        self.takes_reward = network.takes_previous
        self._reward_limit = config.clip_reward or float("inf")  # acting clips rewards as learning does
        self._states = len(network.core.state_names)
        self._steps: dict[bool, Callable[[Array, Carry, Array | None], tuple[Array, Carry]]] = {}

    def choose(self, given: ActInput) -> PolicyOutput:
        obs, carry, rng, env_steps, action_mask, learning = given
        if learning not in self._steps:
            self._steps[learning] = self.acting(learning=learning).numpy_step()
        previous = carry[self._states] if self.takes_reward else None
        q_values, after = self._steps[learning](obs, carry[: self._states], previous)
        action = greedy_actions(q_values, action_mask)
        if rng is not None:
            explore, drawn = self.draw(rng, env_steps, len(obs), action_mask)
            action = np.where(explore, drawn, action)
        if previous is not None:
            taken = np.zeros_like(previous)  # its last column, the reward, is set by ``note_reward``
            taken[np.arange(len(action)), action] = 1.0
            after = (*after, taken)
        return PolicyOutput(action, after, {"q_values": q_values} if self.passes_q_values else {})

    def initial_carry(self, num_envs: int) -> Carry:
        state = self.network.core.initial_state(num_envs)
        if not self.takes_reward:
            return state
        return (*state, np.zeros((num_envs, self.network.action_dim + 1), np.float32))

    def note_reward(self, carry: Carry, reward: Array) -> Carry:
        if not self.takes_reward:
            return carry
        *state, previous = carry
        noted = previous.copy()
        noted[:, -1] = np.clip(reward, -self._reward_limit, self._reward_limit)
        return (*state, noted)

    def parameters_moved(self) -> None:
        self._steps.clear()

    def export_module(self) -> ExportModule:
        if self.takes_reward:
            return RewardedGreedyModule(self.acting(), self.spec, self._reward_limit)
        return RecurrentGreedyModule(self.acting(), self.spec)


class RecurrentGreedyModule(ExportModule):
    """One step: raw observations and the state -> greedy actions, the Q-values they come from, the next state."""

    def __init__(self, network: LSTMQNetwork, spec: SpaceSpec) -> None:
        super().__init__()
        self.network = network
        self.spec = spec
        self.state_names = network.core.state_names

    def forward(self, obs: Observations, *state: Tensor) -> tuple[Tensor, ...]:
        q_values, after = self.network.q_values_step(encode_observation(obs, self.spec.observation), state)
        return index_to_env(q_values.argmax(dim=1), self.spec.action), q_values, *after

    def initial_state(self, batch: int) -> tuple[Tensor, ...]:
        return self.network.initial_state(batch)


class RewardedGreedyModule(RecurrentGreedyModule):
    """``RecurrentGreedyModule`` for a network that takes the previous action and reward. The one-hot action is part of the
    state; the reward is an input, 0 at the start of an episode."""

    takes_reward = True

    def __init__(self, network: LSTMQNetwork, spec: SpaceSpec, reward_limit: float) -> None:
        super().__init__(network, spec)
        self.state_names = (*network.core.state_names, "previous_action")
        self.reward_limit = reward_limit

    def forward(self, obs: Observations, *further: Tensor) -> tuple[Tensor, ...]:
        reward, *state, previous_action = further
        reward = reward.clamp(-self.reward_limit, self.reward_limit)
        previous = torch.cat([previous_action, reward.unsqueeze(1)], dim=1)
        encoded = encode_observation(obs, self.spec.observation)
        q_values, after = self.network.q_values_step(encoded, tuple(state), previous)
        action = q_values.argmax(dim=1)
        one_hot = F.one_hot(action, self.network.action_dim).float()
        return index_to_env(action, self.spec.action), q_values, *after, one_hot

    def initial_state(self, batch: int) -> tuple[Tensor, ...]:
        return (*super().initial_state(batch), torch.zeros(batch, self.network.action_dim))


class SequenceLoss(NamedTuple):
    """A loss before reduction, and the metrics to report."""

    loss: Tensor  # (time, batch)
    metrics: Mapping[str, Tensor]  # each (time, batch)
    error: Tensor  # (time, batch) absolute TD errors


def sequence_td_loss(
    q_values: Tensor,  # (time, batch, action) of the online network along the sequences
    action: Tensor,  # (time, batch)
    target: Tensor,  # (time, batch)
    huber_delta: float = 1.0,
) -> SequenceLoss:
    """Huber loss between Q(o_t, h_t, a_t) and its target, one number per step. Callers must mask padding."""
    assert action.shape == target.shape == q_values.shape[:2]
    chosen = q_values.gather(2, action.unsqueeze(2)).squeeze(2)
    loss = F.huber_loss(chosen, target, reduction="none", delta=huber_delta)
    value = chosen.detach()
    error = (target - value).abs()
    return SequenceLoss(loss, {"q_value_mean": value, "target_mean": target, "td_error_mean": error}, error)


def state_values(q_values: Tensor, chooser: Tensor | None, action_mask: Tensor | None) -> Tensor:
    """(row, batch, action) -> (row, batch): the value of the best allowed action. If ``chooser`` is given, it selects the
    action (double Q-learning: van Hasselt et al., arXiv:1509.06461)."""
    if chooser is None:
        allowed = q_values if action_mask is None else q_values.masked_fill(~action_mask, -torch.inf)
        return allowed.amax(dim=2)
    allowed = chooser if action_mask is None else chooser.masked_fill(~action_mask, -torch.inf)
    return q_values.gather(2, allowed.argmax(dim=2, keepdim=True)).squeeze(2)


#: How far from the best an action may be, as a share of the best value, to count as greedy (Kapturowski et al. 2022).
GREEDY_TOLERANCE = 0.01


def trace_targets(
    batch: SequenceBatch,  # of one-step rewards
    value: Tensor,  # (time, batch) of the observation after each step
    taken: Tensor,  # (time, batch) the target network's value of each action
    greedy: Tensor,  # (time, batch) whether the action was greedy
    trace_lambda: float,
) -> Tensor:
    """Q(lambda) of Watkins (1989) within sequences, in the form of Retrace (Munos et al., arXiv:1606.02647):
    G(t) = r(t) + discount(t) * (V(t+1) + lambda * c(t+1) * (G(t+1) - Q(t+1))), where c is 1 for greedy actions and 0 for
    others, so that a target ends before the first action that the greedy policy would not take."""
    target = batch.reward + batch.discount * value
    going_on = trace_lambda * batch.discount[:-1] * (greedy & batch.mask.bool())[1:]
    for t in range(len(target) - 2, -1, -1):
        target[t] += going_on[t] * (target[t + 1] - taken[t + 1])
    return target


def is_greedy(q_values: Tensor, action: Tensor, action_mask: Tensor | None) -> Tensor:
    """(row, batch, action) and (row, batch) -> whether the actions are the best allowed ones, or nearly."""
    best = state_values(q_values, None, action_mask)
    return q_values.gather(2, action.unsqueeze(2)).squeeze(2) >= best - GREEDY_TOLERANCE * best.abs()


class RecurrentQLearning(QLearning[RecurrentConfigT, SequenceBatch]):
    """The update over sequences."""

    observations: ClassVar[tuple[ObservationKind, ...]] = ("vector", "image", "mixed")
    policy: RecurrentQPolicy
    target: LSTMQNetwork

    @classmethod
    @abstractmethod
    def make_policy(cls, config: RecurrentConfigT, spec: SpaceSpec, generator: torch.Generator) -> RecurrentQPolicy:
        """A freshly initialised policy."""

    def why_not_compiled(self) -> str | None:
        return "compiling an unrolled LSTM takes minutes"

    def stage_loss(self, batch: SequenceBatch, known: Known) -> StageLoss:
        output = self.loss(batch)
        share = batch.mask / batch.mask.sum()  # the mean over real steps
        reduction = share if self.config.loss_over_time == "mean" else batch.mask / batch.mask.shape[1]
        loss = output.loss if batch.weights is None else output.loss * batch.weights
        kept = {"share": share}
        priorities = self.priorities(output.error, batch.mask)
        if priorities is not None:
            kept["priority"] = priorities
        return StageLoss(loss, output.metrics, kept, reduction)

    def loss(self, batch: SequenceBatch) -> SequenceLoss:
        """The per-step loss. Both networks unroll from the stored state through the rows from which the targets bootstrap."""
        steps = len(batch.action)
        with torch.no_grad():
            next_q_values = self._unroll(self.target, batch)
        if self.config.double:  # one pass of the online network gives the loss and the bootstrap actions
            online = self._unroll(self.policy.network, batch)
            q_values, chooser = online[:steps], online.detach()
        else:
            q_values, chooser = self._unroll(self.policy.network, batch, steps), None
        with torch.no_grad():
            values = state_values(next_q_values, chooser, batch.action_mask)
            value = values.gather(0, batch.bootstrap)
            if self.config.trace_lambda:
                value = self.clipped_returns(value)
                taken = self.clipped_returns(next_q_values[:steps].gather(2, batch.action.unsqueeze(2)).squeeze(2))
                mask = None if batch.action_mask is None else batch.action_mask[:steps]
                greedy = is_greedy((next_q_values if chooser is None else chooser)[:steps], batch.action, mask)
                target = self.from_returns(trace_targets(batch, value, taken, greedy, self.config.trace_lambda))
            else:
                target = self.targets(batch.reward, batch.discount, value)
        return sequence_td_loss(q_values, batch.action, target, self.config.huber_delta)

    def targets(self, reward: Tensor, discount: Tensor, value: Tensor) -> Tensor:
        """The targets of the Q-values; ``value`` is the value to bootstrap from."""
        return self.from_returns(reward + discount * self.clipped_returns(value))

    def clipped_returns(self, value: Tensor) -> Tensor:
        """The network's values as returns, within the range of possible ones."""
        return self.config.clip_values(self.to_returns(value))

    def to_returns(self, value: Tensor) -> Tensor:
        """Converts the network's values to returns."""
        return value

    def from_returns(self, target: Tensor) -> Tensor:
        """The inverse of ``to_returns``."""
        return target

    def _targets_of_arrays(self, reward: Array, discount: Array, value: Array) -> Array:
        target: Array = self.targets(*map(torch.from_numpy, (reward, discount, value))).numpy()
        return target

    def priorities(self, error: Tensor, mask: Tensor) -> Tensor | None:
        """The new priorities of the sequences, (batch,); None if replay is uniform."""
        return None

    def _unroll(self, network: LSTMQNetwork, batch: SequenceBatch, steps: int | None = None) -> Tensor:
        """Q-values of the sequences and of the rows after them, or only of the first ``steps`` rows."""
        rows = slice(batch.burn_in, None if steps is None else batch.burn_in + steps)
        previous = None if batch.previous is None else batch.previous[rows]
        return network.q_values_sequence(batch.obs[rows], self._begin(network, batch), previous)[0]

    def _begin(self, network: LSTMQNetwork, batch: SequenceBatch) -> tuple[Tensor, ...]:
        """The state before the sequences: the stored state, after a burn-in with the current weights if there is one."""
        if batch.has_burn_in is None:
            return batch.state
        rows = slice(0, batch.burn_in)
        previous = None if batch.previous is None else batch.previous[rows]
        with torch.no_grad():
            _, burned = network.q_values_sequence(batch.obs[rows], batch.state, previous)
            chosen = batch.has_burn_in[:, None, None]
            return tuple(torch.where(chosen, after, stored) for after, stored in zip(burned, batch.state, strict=True))

    def make_replay(self, num_envs: int) -> Replay[SequenceBatch]:
        config, spec = self.config, self.policy.spec
        least = config.sequence_length * (config.batch_size + num_envs)
        if config.buffer_size < least:  # otherwise the buffer might never hold a batch of whole sequences
            raise ConfigError(
                f"algo_kwargs.buffer_size ({config.buffer_size}) must be at least sequence_length * (batch_size + num_envs) "
                f"= {least}"
            )
        state = self.policy.network.core.initial_state(num_envs)
        buffer = self.make_buffer(
            {
                "capacity": config.buffer_size,
                "obs_shape": spec.observation.shape,
                "obs_dtype": spec.observation.dtype,
                "observation": spec.observation,
                "stack": config.frame_stack if spec.observation.images else 1,
                "sequence_length": config.sequence_length,
                "overlap": config.overlap,
                "burn_in": config.burn_in,
                "n_step": config.n_step,
                "state_shapes": tuple(array.shape[1:] for array in state),
                "gamma": config.gamma,
                "num_envs": num_envs,
                "masked_actions": spec.action.masked_count,
                "rng": self.streams["replay"],
                "device": self.device,
                "targets": self._targets_of_arrays if self.actor_priorities else None,
            }
        )
        return Replay(
            RecurrentRecorder(state),
            buffer,
            batch_size=config.batch_size,
            beta=self.importance_exponent(),
            clip_reward=config.clip_reward,
        )

    @classmethod
    def make_recorder(cls, config: RecurrentConfigT, policy: Policy, num_envs: int) -> RecurrentRecorder:
        assert isinstance(policy, RecurrentQPolicy)
        stride = config.sequence_length - config.overlap
        return RecurrentRecorder(policy.network.core.initial_state(num_envs), stride, config.burn_in)

    def make_buffer(self, options: dict[str, Any]) -> RecurrentReplayBuffer:
        """The buffer; ``options`` are the arguments that all buffers of sequences take."""
        return RecurrentReplayBuffer(**options)

    def importance_exponent(self) -> Schedule | None:
        """The importance-sampling exponent as a function of the env steps; None if replay is uniform."""
        return None


def network_options(config: RecurrentValueConfig) -> dict[str, Any]:
    """The keyword arguments that the network takes from the config."""
    return {
        "encoder": config.encoder(),
        "encoder_sizes": config.encoder_sizes,
        "lstm_size": config.lstm_size,
        "lstm_layers": config.lstm_layers,
        "forget_bias": config.forget_bias,
        "cell": config.recurrent_cell,
        "hidden_sizes": config.hidden_sizes,
        "shortcut": config.shortcut,
        "initial": config.initial_outputs(),
    }
