"""PPO with an LSTM: the same loss over sequences (recurrent states: Hausknecht & Stone 2015, arXiv:1507.06527)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from rl_training.algorithms.config import Number, Positive
from rl_training.algorithms.on_policy import (
    Evaluated,
    MinibatchInput,
    Phase,
    StochasticPolicy,
    choose_actions,
    network_options,
)
from rl_training.algorithms.policy import ActInput, ExportModule, Observations
from rl_training.algorithms.ppo import ClippedActorCritic, ClippedConfig
from rl_training.data import Rollout, Sequences
from rl_training.models import RecurrentActorCritic
from rl_training.models.observation import encode_observation
from rl_training.models.recurrent.make_core import Cell
from rl_training.types import Array, Carry, PolicyOutput, SpaceSpec

__all__ = ["RecurrentPPO", "RecurrentPPOConfig"]


class RecurrentPPOConfig(ClippedConfig):
    """Settings of recurrent PPO."""

    hidden_sizes: tuple[Positive, ...] = Field((64,), description="widths of the hidden layers after the LSTM")
    recurrent_cell: Cell = Field("lstm", description="lstm or gru; the lstm_* settings are those of either")
    lstm_size: Positive = Field(64, description="width of the LSTM")
    lstm_layers: Positive = Field(1, description="layers of the LSTM")
    forget_bias: Number = Field(0.0, description="initial forget-gate bias of the LSTM, for a longer memory; a GRU has none")
    shared_lstm: bool = Field(False, description="actor and critic share one LSTM")
    sequence_length: Positive | None = Field(
        None, description="maximum steps of backpropagation through time; null: to the start of the episode or rollout"
    )


class RecurrentPolicy(StochasticPolicy):
    """Samples from a distribution that depends on everything the LSTM has seen in the episode."""

    network: RecurrentActorCritic

    def __init__(self, network: RecurrentActorCritic, spec: SpaceSpec) -> None:
        super().__init__(network, spec)
        self._step: Callable[[Array, Carry], tuple[Array, Carry]] | None = None

    def choose(self, given: ActInput) -> PolicyOutput:
        if self._step is None:
            self._step = self.network.numpy_step()
        output, after = self._step(given.obs, given.carry)
        return choose_actions(self.network.head, output, after, given)

    def initial_carry(self, num_envs: int) -> Carry:
        return self.network.initial_state(num_envs)

    def parameters_moved(self) -> None:
        self._step = None

    def export_module(self) -> ExportModule:
        return RecurrentActorModule(self.network, self.spec)


class RecurrentActorModule(ExportModule):
    """One step: raw observations and the actor's state -> actions, the logits or means they come from, the next state."""

    def __init__(self, network: RecurrentActorCritic, spec: SpaceSpec) -> None:
        super().__init__()
        self.network = network
        self.spec = spec
        self.output_names = ("action", network.head.output_name)
        self.state_names = network.state_names

    def forward(self, obs: Observations, *state: Tensor) -> tuple[Tensor, ...]:
        output, after = self.network.action_step(encode_observation(obs, self.spec.observation), *state)
        return self.network.head.env_mode(output), output, *after

    def initial_state(self, batch: int) -> tuple[Tensor, ...]:
        return tuple(torch.from_numpy(array) for array in self.network.cores[0].initial_state(batch))


class SequenceMinibatch(NamedTuple):
    """Some sequences as tensors of indices."""

    padded: Tensor  # (time, sequence) indices of steps
    real: Tensor  # (step,) positions in the flattened ``padded`` that are not padding
    steps: Tensor  # (step,) indices of those steps
    sequences: Tensor  # (sequence,)


class RecurrentPhase(Phase):
    """One training phase over sequences.

    The LSTM runs over whole padded sequences from the state that acting had at their start, which is zero at the start of an
    episode. Padding is dropped after the LSTM, so it affects no mean and no gradient.
    """

    network: RecurrentActorCritic

    def __init__(self, network: RecurrentActorCritic, rollout: Rollout, longest: int | None = None) -> None:
        super().__init__(network, rollout)
        self.sequences = Sequences.of(rollout.start, longest)
        if rollout.present is not None:  # where there was no step, there is a sequence of one row
            real = rollout.present[self.sequences.begin, self.sequences.env]
            self.sequences = Sequences(*(column[real] for column in self.sequences))
        begin, env = self.sequences.begin, self.sequences.env
        self.state = [self.tensor(array[begin, env]) for array in rollout.carry]

    def minibatches(self, count: int, rng: np.random.Generator) -> Sequence[SequenceMinibatch]:
        """Every sequence once, in random order, in at most ``count`` parts of about equal size."""
        return [self._minibatch(chosen) for chosen in self.sequences.split(count, rng)]

    def _minibatch(self, chosen: Array) -> SequenceMinibatch:
        padded, real = self.sequences.pad(chosen, self.rollout.reward.shape[1])
        steps = padded.reshape(-1)[real]
        return SequenceMinibatch(*(self.tensor(array) for array in (padded, real, steps, chosen)))

    def steps(self, minibatch: SequenceMinibatch) -> Tensor:
        return minibatch.steps

    def evaluate(self, given: MinibatchInput) -> Evaluated:
        padded, real, steps, sequences = given.minibatch
        x = given.prepared.index_select(0, padded.view(-1)).view(*padded.shape, *given.prepared.shape[1:])
        memories = self.network.unroll(x, [array.index_select(0, sequences) for array in self.state])
        actor_memory, critic_memory = (memory.flatten(0, 1).index_select(0, real) for memory in memories)
        output, value = self.network.outputs(actor_memory, critic_memory)
        return self.score(given, steps, output, value)

    def next_value(self, time: NDArray[np.int64], env: NDArray[np.int64]) -> Tensor:
        """Uses the state after the step, which is the LSTM's state when it sees the next observation."""
        state = [self.tensor(array[time, env]) for array in self.rollout.carry_after]
        return self.network.value(self.prepare(self.rollout.next_obs[time, env]), state)


class RecurrentPPO(ClippedActorCritic[RecurrentPPOConfig]):
    """PPO with an LSTM."""

    name = "recurrent_ppo"
    summary = "PPO with an LSTM, for tasks that need memory"
    policy: RecurrentPolicy

    @classmethod
    def make_policy(cls, config: RecurrentPPOConfig, spec: SpaceSpec, generator: torch.Generator) -> RecurrentPolicy:
        network = RecurrentActorCritic(
            spec,
            config.hidden_sizes,
            generator,
            lstm_size=config.lstm_size,
            lstm_layers=config.lstm_layers,
            shared_lstm=config.shared_lstm,
            cell=config.recurrent_cell,
            forget_bias=config.forget_bias,
            **network_options(config),
        )
        return RecurrentPolicy(network, spec)

    def why_not_compiled(self) -> str | None:
        return "the shapes of its sequences change with every update"

    def begin_phase(self, rollout: Rollout) -> RecurrentPhase:
        return RecurrentPhase(self.policy.network, rollout, self.config.sequence_length)
