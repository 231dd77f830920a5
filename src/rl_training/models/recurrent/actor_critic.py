"""A policy and a value function with memory: encoder, recurrent core, then an MLP for each."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from rl_training.models.action_head import make_action_head
from rl_training.models.actor_critic import POLICY_GAIN, VALUE_GAIN
from rl_training.models.mlp import MLP
from rl_training.models.observation import EncoderConfig, make_encoder
from rl_training.models.recurrent.make_core import Cell, make_core
from rl_training.types import Array, Carry, SpaceSpec


class RecurrentActorCritic(nn.Module):
    """The critic has a separate core or shares the actor's. A state holds the state of each core, the actor's first."""

    def __init__(
        self,
        spec: SpaceSpec,
        hidden: Sequence[int],
        generator: torch.Generator,
        *,
        lstm_size: int,
        lstm_layers: int = 1,
        shared_lstm: bool = False,
        cell: Cell = "lstm",
        encoder: EncoderConfig = EncoderConfig(),  # noqa: B008 - frozen
        activation: str = "tanh",
        initial_log_std: float = 0.0,
    ) -> None:
        super().__init__()
        self.encoder = make_encoder(spec.observation, encoder, generator)
        self.head = make_action_head(spec.action, initial_log_std)
        self.cores = [
            make_core(cell, self.encoder.out_features, lstm_size, lstm_layers, generator)
            for _ in range(1 if shared_lstm else 2)
        ]
        self.core_modules = nn.ModuleList(self.cores)
        self.actor = MLP([lstm_size, *hidden, self.head.outputs], generator, activation=activation, output_gain=POLICY_GAIN)
        self.critic = MLP([lstm_size, *hidden, 1], generator, activation=activation, output_gain=VALUE_GAIN)

    @property
    def state_names(self) -> tuple[str, ...]:
        """The names of the actor's state arrays."""
        return self.cores[0].state_names

    def initial_state(self, batch: int) -> Carry:
        return tuple(array for core in self.cores for array in core.initial_state(batch))

    def unroll(self, prepared: Tensor, state: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """(time, batch, ...) from a state -> the core outputs for actor and critic, (time, batch, hidden) each."""
        time, batch = prepared.shape[:2]
        features = self.encoder(prepared.flatten(0, 1)).view(time, batch, -1)
        memories = [core(features, *part)[0] for core, part in zip(self.cores, self._by_core(state), strict=True)]
        return memories[0], memories[-1]

    def _by_core(self, state: Sequence[Tensor]) -> list[Sequence[Tensor]]:
        size = len(self.state_names)
        return [state[start : start + size] for start in range(0, len(state), size)]

    def outputs(self, actor_memory: Tensor, critic_memory: Tensor) -> tuple[Tensor, Tensor]:
        """(batch, hidden) each -> action output, value (batch,)."""
        return self.actor(actor_memory), self.critic(critic_memory).squeeze(1)

    def value(self, prepared: Tensor, state: Sequence[Tensor]) -> Tensor:
        """The value of one observation per row, given the state before it."""
        h = self.cores[-1].step(self.encoder(prepared), *self._by_core(state)[-1])[0]
        value: Tensor = self.critic(h[:, -1]).squeeze(1)
        return value

    def action_step(self, obs: Tensor, *state: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Observations that are not prepared and the actor's state -> action output and the next state."""
        after = self.cores[0].step(self.encoder(self.encoder.prepare(obs)), *state)
        return self.actor(after[0][:, -1]), after

    def numpy_step(self) -> Callable[[Array, Carry], tuple[Array, Carry]]:
        """(obs, state) -> (action output, next state) on numpy arrays. Valid until the parameters move to other memory."""
        encode, actor = self.encoder.numpy_forward(), self.actor.numpy_forward()
        steps, size = [core.numpy_step() for core in self.cores], len(self.state_names)

        def step(obs: Array, state: Carry) -> tuple[Array, Carry]:
            features = encode(obs)
            after: list[Array] = []
            for k, core_step in enumerate(steps):
                after.extend(core_step(features, *state[size * k : size * (k + 1)]))
            return actor(after[0][:, -1]), tuple(after)

        return step
