"""A policy and a value function for the on-policy algorithms."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from rl_training.models.action_head import make_action_head
from rl_training.models.encoder import in_turn, on_cpu
from rl_training.models.interfaces import ActionNetwork
from rl_training.models.mlp import Style, make_mlp
from rl_training.models.observation import EncoderConfig, make_encoders
from rl_training.types import Array, SpaceSpec

POLICY_GAIN = 0.01  # the initial policy is nearly uniform
VALUE_GAIN = 1.0
ON_POLICY = Style("tanh", orthogonal=True)


class ActorCritic(ActionNetwork):
    """An MLP each for actor and critic, on a shared encoder; a user's own network may have an encoder for each. ``forward``:
    prepared observations -> action output, value (batch,)."""

    def __init__(
        self,
        spec: SpaceSpec,
        hidden: Sequence[int],
        generator: torch.Generator,
        *,
        encoder: EncoderConfig = EncoderConfig(),  # noqa: B008 - frozen
        style: Style = ON_POLICY,
        initial_log_std: float = 0.0,
    ) -> None:
        super().__init__()
        self.encoder, self.critic_encoder = make_encoders(spec.observation, encoder, generator)
        self.head = make_action_head(spec.action, initial_log_std)
        inputs, critic_inputs = self.encoder.out_features, (self.critic_encoder or self.encoder).out_features
        self.actor = make_mlp([inputs, *hidden, self.head.outputs], generator, style, output_gain=POLICY_GAIN)
        self.critic = make_mlp([critic_inputs, *hidden, 1], generator, style, output_gain=VALUE_GAIN)

    def forward(self, prepared: Tensor) -> tuple[Tensor, Tensor]:
        features = self.encoder(prepared)
        for_critic = features if self.critic_encoder is None else self.critic_encoder(prepared)
        return self.actor(features), self.critic(for_critic).squeeze(1)

    def value(self, prepared: Tensor) -> Tensor:
        value: Tensor = self.critic((self.critic_encoder or self.encoder)(prepared)).squeeze(1)
        return value

    def action_output(self, obs: Tensor) -> Tensor:
        output: Tensor = self.actor(self.encoder(self.encoder.prepare(obs)))
        return output

    def numpy_action_output(self) -> Callable[[Array], Array]:
        if not on_cpu(self):
            return super().numpy_action_output()
        return in_turn(self.encoder.numpy_forward(), self.actor.numpy_forward())
