"""Q-values with memory: encoder, LSTM, head (Hausknecht & Stone 2015, arXiv:1507.06527)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from rl_training.models.observation import EncoderConfig, make_encoder
from rl_training.models.recurrent.make_core import Cell, make_core
from rl_training.models.value_head import ValueHead
from rl_training.types import Array, Carry, ObservationSpec

#: (h, c) of an LSTM, (h,) of a GRU, each (batch, layer, hidden)
LSTMState = tuple[Tensor, ...]


class LSTMQOutput(NamedTuple):
    """One step of a batch."""

    q_values: Tensor  # (batch, action)
    action: Tensor  # (batch,) greedy
    state: LSTMState  # after the step


class LSTMQNetwork(nn.Module):
    """An encoder (an MLP on vectors, a CNN on images), an LSTM (or a GRU: ``cell``), and a Q-value for each action.

    With ``takes_previous`` the LSTM also takes ``previous``: the one-hot previous action and its reward, all zero at the
    start of an episode. With ``shortcut`` the layers after the LSTM see the encoder's features too, and not only what the
    LSTM makes of them (Ni et al., arXiv:2110.05038).
    """

    def __init__(
        self,
        observation: ObservationSpec | Sequence[int],
        action_dim: int,
        generator: torch.Generator,
        *,
        encoder_sizes: Sequence[int] = (64,),
        lstm_size: int = 64,
        lstm_layers: int = 1,
        forget_bias: float = 0.0,
        cell: Cell = "lstm",
        hidden_sizes: Sequence[int] = (64,),
        dueling: bool = False,
        takes_previous: bool = False,
        shortcut: bool = False,
        encoder: EncoderConfig = EncoderConfig(),  # noqa: B008 - frozen
        initial: Tensor | None = None,
    ) -> None:
        """``observation`` is a spec, or the shape of a vector or a channel-first image; ``encoder_sizes`` are the layers
        before the LSTM (after the convolutions), ``hidden_sizes`` those after it; ``initial`` (1,) is added to the initial
        Q-values."""
        super().__init__()
        if not isinstance(observation, ObservationSpec):
            plain = ObservationSpec.image if len(observation) == 3 else ObservationSpec.vector
            observation = plain(*observation)
        self.encoder = make_encoder(observation, replace(encoder, hidden=encoder_sizes), generator)
        extra = action_dim + 1 if takes_previous else 0
        inputs = self.encoder.out_features + extra
        self.core = make_core(cell, inputs, lstm_size, lstm_layers, generator, forget_bias=forget_bias)
        memory = lstm_size + self.encoder.out_features if shortcut else lstm_size
        self.head = ValueHead(
            memory, hidden_sizes, action_dim, generator, dueling=dueling, style=encoder.style, initial=initial
        )
        self.action_dim, self.takes_previous, self.shortcut = action_dim, takes_previous, shortcut

    def initial_state(self, batch: int = 1) -> LSTMState:
        """The state at the start of an episode, all zeros."""
        device = next(self.parameters()).device
        return tuple(torch.from_numpy(array).to(device) for array in self.core.initial_state(batch))

    def reset_state(self, state: LSTMState, ended: Tensor) -> LSTMState:
        """The state with the rows (batch,) of ended episodes reset to zero."""
        keep = (~ended.bool()).to(state[0].dtype)[:, None, None]
        return tuple(tensor * keep for tensor in state)

    def q_values_sequence(self, obs: Tensor, state: LSTMState, previous: Tensor | None = None) -> tuple[Tensor, LSTMState]:
        """(time, batch, ...) observations, each column within one episode, from a state -> Q-values (time, batch, action) and
        the final state."""
        time, batch = obs.shape[:2]
        x = self._encode(obs.flatten(0, 1)).view(time, batch, -1)
        memory, *after = self.core(self._with_previous(x, previous), *state)
        return self._values(memory.flatten(0, 1), x.flatten(0, 1)).view(time, batch, -1), tuple(after)

    def q_values_step(self, obs: Tensor, state: LSTMState, previous: Tensor | None = None) -> tuple[Tensor, LSTMState]:
        """One step: (batch, ...) -> Q-values (batch, action), next state. Uses operations that every runtime supports."""
        x = self._encode(obs)
        after = self.core.step(self._with_previous(x, previous), *state)
        return self._values(after[0][:, -1], x), after

    @torch.no_grad()
    def act(self, obs: Tensor, state: LSTMState, previous: Tensor | None = None) -> LSTMQOutput:
        """The greedy actions for one observation per row, given the state before it."""
        q_values, after = self.q_values_step(obs, state, previous)
        return LSTMQOutput(q_values, q_values.argmax(dim=1), after)

    def _encode(self, obs: Tensor) -> Tensor:
        features: Tensor = self.encoder(self.encoder.prepare(obs))
        return features

    def _with_previous(self, features: Tensor, previous: Tensor | None) -> Tensor:
        if not self.takes_previous:
            return features
        assert previous is not None, "this network takes the previous action and reward"
        return torch.cat([features, previous], dim=-1)

    def _values(self, memory: Tensor, features: Tensor) -> Tensor:
        values: Tensor = self.head(torch.cat([memory, features], dim=1) if self.shortcut else memory).squeeze(2)
        return values

    def numpy_step(self) -> Callable[[Array, Carry, Array | None], tuple[Array, Carry]]:
        """(obs, state, previous) -> (Q-values, next state) on numpy arrays. Valid until the parameters move to other
        memory."""
        encode, core_step, head = self.encoder.numpy_forward(), self.core.numpy_step(), self.head.numpy_forward(noisy=False)
        shortcut = self.shortcut

        def step(obs: Array, state: Carry, previous: Array | None) -> tuple[Array, Carry]:
            x = encode(obs)
            after = core_step(x if previous is None else np.concatenate([x, previous], axis=1), *state)
            memory = after[0][:, -1]
            return head(np.concatenate([memory, x], axis=1) if shortcut else memory)[:, :, 0], after

        return step
