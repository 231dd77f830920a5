"""A policy and a value function with memory: encoder, recurrent core, then an MLP for each."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from rl_training.errors import ConfigError
from rl_training.models.action_head import make_action_head
from rl_training.models.actor_critic import ON_POLICY, POLICY_GAIN, VALUE_GAIN
from rl_training.models.encoder import through_torch
from rl_training.models.mlp import Style, make_mlp
from rl_training.models.observation import EncoderConfig, make_encoders
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
        forget_bias: float = 0.0,
        encoder: EncoderConfig = EncoderConfig(),  # noqa: B008 - frozen
        style: Style = ON_POLICY,
        initial_log_std: float = 0.0,
    ) -> None:
        super().__init__()
        self.encoder, self.critic_encoder = make_encoders(spec.observation, encoder, generator)
        self.head = make_action_head(spec.action, initial_log_std)
        if shared_lstm and self.critic_encoder is not None:
            raise ConfigError("with shared_lstm, actor and critic have one network: it cannot be a pair of modules")
        encoders = [self.encoder] if shared_lstm else [self.encoder, self.critic_encoder or self.encoder]
        self.cores = [
            make_core(cell, one.out_features, lstm_size, lstm_layers, generator, forget_bias=forget_bias) for one in encoders
        ]
        self.core_modules = nn.ModuleList(self.cores)
        self.actor = make_mlp([lstm_size, *hidden, self.head.outputs], generator, style, output_gain=POLICY_GAIN)
        self.critic = make_mlp([lstm_size, *hidden, 1], generator, style, output_gain=VALUE_GAIN)

    @property
    def state_names(self) -> tuple[str, ...]:
        """The names of the actor's state arrays."""
        return self.cores[0].state_names

    def initial_state(self, batch: int) -> Carry:
        return tuple(array for core in self.cores for array in core.initial_state(batch))

    def unroll(self, prepared: Tensor, state: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """(time, batch, ...) from a state -> the core outputs for actor and critic, (time, batch, hidden) each."""
        time, batch = prepared.shape[:2]
        features = self._features(prepared.flatten(0, 1))
        memories = [
            core(x.view(time, batch, -1), *part)[0]
            for core, x, part in zip(self.cores, features, self._by_core(state), strict=True)
        ]
        return memories[0], memories[-1]

    def _features(self, prepared: Tensor) -> list[Tensor]:
        """The input of each core."""
        features = self.encoder(prepared)
        if self.critic_encoder is not None:
            return [features, self.critic_encoder(prepared)]
        return [features] * len(self.cores)

    def _by_core(self, state: Sequence[Tensor]) -> list[Sequence[Tensor]]:
        size = len(self.state_names)
        return [state[start : start + size] for start in range(0, len(state), size)]

    def outputs(self, actor_memory: Tensor, critic_memory: Tensor) -> tuple[Tensor, Tensor]:
        """(batch, hidden) each -> action output, value (batch,)."""
        return self.actor(actor_memory), self.critic(critic_memory).squeeze(1)

    def value(self, prepared: Tensor, state: Sequence[Tensor]) -> Tensor:
        """The value of one observation per row, given the state before it."""
        h = self.cores[-1].step((self.critic_encoder or self.encoder)(prepared), *self._by_core(state)[-1])[0]
        value: Tensor = self.critic(h[:, -1]).squeeze(1)
        return value

    def action_step(self, obs: Tensor, *state: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Observations that are not prepared and the actor's state -> action output and the next state."""
        after = self.cores[0].step(self.encoder(self.encoder.prepare(obs)), *state)
        return self.actor(after[0][:, -1]), after

    def numpy_step(self) -> Callable[[Array, Carry], tuple[Array, Carry]]:
        """(obs, state) -> (action output, next state) on numpy arrays. Valid until the parameters move to other memory."""
        encode, actor = self._numpy_features(), self.actor.numpy_forward()
        steps, size = [core.numpy_step() for core in self.cores], len(self.state_names)

        def step(obs: Array, state: Carry) -> tuple[Array, Carry]:
            features = encode(obs)
            after: list[Array] = []
            for k, core_step in enumerate(steps):
                after.extend(core_step(features[k], *state[size * k : size * (k + 1)]))
            return actor(after[0][:, -1]), tuple(after)

        return step

    def _numpy_features(self) -> Callable[[Array], Sequence[Array]]:
        """Observations that are not prepared -> the input of each core, on numpy arrays."""
        encode, cores = self.encoder.numpy_forward(), len(self.cores)
        critic_encoder = self.critic_encoder
        if critic_encoder is None:
            return lambda obs: [encode(obs)] * cores
        encode_for_critic = through_torch(lambda obs: critic_encoder(self.encoder.prepare(obs)), self)
        return lambda obs: [encode(obs), encode_for_critic(obs)]
