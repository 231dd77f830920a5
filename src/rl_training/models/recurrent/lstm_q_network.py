"""Q-values of one who remembers: encoder, LSTM, head (Hausknecht & Stone 2015, arXiv:1507.06527)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from rl_training.models.cnn.nature import NATURE_LAYERS, Layer, NatureCNN
from rl_training.models.mlp import MLP, through_torch
from rl_training.models.recurrent.lstm_core import LSTMCore
from rl_training.models.value_head import ValueHead
from rl_training.types import Array, Carry

#: (h, c), each (batch, layer, hidden)
LSTMState = tuple[Tensor, ...]


class LSTMQOutput(NamedTuple):
    """One step of a batch."""

    q_values: Tensor  # (batch, action)
    action: Tensor  # (batch,) the greedy ones
    state: LSTMState  # after the step


class LSTMQNetwork(nn.Module):
    """An MLP on vectors (or a CNN on images), an LSTM, and a Q-value for each action.

    With ``takes_previous`` the LSTM also sees ``previous``: the action before, one-hot, and its reward; all zero where an
    episode starts.
    """

    def __init__(
        self,
        obs_shape: Sequence[int],
        action_dim: int,
        generator: torch.Generator,
        *,
        encoder_sizes: Sequence[int] = (64,),
        lstm_size: int = 64,
        lstm_layers: int = 1,
        forget_bias: float = 0.0,
        hidden_sizes: Sequence[int] = (64,),
        dueling: bool = False,
        takes_previous: bool = False,
        cnn_layers: Sequence[Layer] = NATURE_LAYERS,
    ) -> None:
        """``encoder_sizes`` are the layers before the LSTM (after the convolutions), ``hidden_sizes`` those after it."""
        super().__init__()
        self.cnn: NatureCNN | None = None
        inputs = obs_shape[0]
        if len(obs_shape) == 3:
            self.cnn = NatureCNN(obs_shape, generator, None, cnn_layers)
            inputs = self.cnn.features
        self.encoder = MLP([inputs, *encoder_sizes], generator, activate_last=True)
        extra = action_dim + 1 if takes_previous else 0
        self.core = LSTMCore(self.encoder.features + extra, lstm_size, lstm_layers, generator, forget_bias=forget_bias)
        self.head = ValueHead(lstm_size, hidden_sizes, action_dim, generator, dueling=dueling)
        self.action_dim, self.takes_previous = action_dim, takes_previous

    def initial_state(self, batch: int = 1) -> LSTMState:
        """The state in which an episode starts: zero."""
        device = next(self.parameters()).device
        return tuple(torch.from_numpy(array).to(device) for array in self.core.initial_state(batch))

    def reset_state(self, state: LSTMState, ended: Tensor) -> LSTMState:
        """The state with the rows (batch,) of ended episodes set back to the start."""
        keep = (~ended.bool()).to(state[0].dtype)[:, None, None]
        return tuple(tensor * keep for tensor in state)

    def q_values_sequence(self, obs: Tensor, state: LSTMState, previous: Tensor | None = None) -> tuple[Tensor, LSTMState]:
        """(time, batch, ...) observations of one episode each, from a state -> Q-values (time, batch, action) and the state
        after the last."""
        time, batch = obs.shape[:2]
        x = self._encode(obs.flatten(0, 1)).view(time, batch, -1)
        memory, h, c = self.core(self._with_previous(x, previous), *state)
        return self._values(memory.flatten(0, 1)).view(time, batch, -1), (h, c)

    def q_values_step(self, obs: Tensor, state: LSTMState, previous: Tensor | None = None) -> tuple[Tensor, LSTMState]:
        """One step in plain operations, which any runtime has: (batch, ...) -> Q-values (batch, action), the state after."""
        h, c = self.core.step(self._with_previous(self._encode(obs), previous), *state)
        return self._values(h[:, -1]), (h, c)

    @torch.no_grad()
    def act(self, obs: Tensor, state: LSTMState, previous: Tensor | None = None) -> LSTMQOutput:
        """The greedy actions for one observation per row, given the state before it."""
        q_values, after = self.q_values_step(obs, state, previous)
        return LSTMQOutput(q_values, q_values.argmax(dim=1), after)

    def _encode(self, obs: Tensor) -> Tensor:
        features: Tensor = self.encoder(obs if self.cnn is None else self.cnn(obs))
        return features

    def _with_previous(self, features: Tensor, previous: Tensor | None) -> Tensor:
        if not self.takes_previous:
            return features
        assert previous is not None, "this network takes the previous action and reward"
        return torch.cat([features, previous], dim=-1)

    def _values(self, memory: Tensor) -> Tensor:
        values: Tensor = self.head(memory).squeeze(2)
        return values

    def numpy_step(self) -> Callable[[Array, Carry, Array | None], tuple[Array, Carry]]:
        """(obs, (h, c), previous) -> (Q-values, (h, c) after) on numpy arrays, the fastest way there is. Good as long as the
        parameters stay where they are."""
        if next(self.parameters()).device.type != "cpu":
            return self._torch_step
        encode: Callable[[Array], Array] = self.encoder.numpy_forward()
        head, core_step = self.head.numpy_forward(noisy=False), self.core.numpy_step()
        look = None if self.cnn is None else through_torch(self.cnn)

        def step(obs: Array, state: Carry, previous: Array | None) -> tuple[Array, Carry]:
            x = encode(obs if look is None else look(obs))
            if previous is not None:
                x = np.concatenate([x, previous], axis=1)
            h, c = core_step(x, *state)
            return head(h[:, -1])[:, :, 0], (h, c)

        return step

    @torch.no_grad()
    def _torch_step(self, obs: Array, state: Carry, previous: Array | None) -> tuple[Array, Carry]:
        device = next(self.parameters()).device
        h, c = (torch.as_tensor(array, device=device) for array in state)
        before = None if previous is None else torch.as_tensor(previous, device=device)
        q_values, after = self.q_values_step(torch.as_tensor(obs, device=device), (h, c), before)
        return q_values.cpu().numpy(), tuple(tensor.cpu().numpy() for tensor in after)
