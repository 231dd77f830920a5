"""A policy and a value function that remember: encoder, LSTM, then an MLP each."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from rl_training.models.action_head import make_action_head
from rl_training.models.actor_critic import POLICY_GAIN, VALUE_GAIN, ObservationEncoder
from rl_training.models.cnn.nature import NATURE_LAYERS, Layer
from rl_training.models.mlp import MLP
from rl_training.models.recurrent.lstm_core import LSTMCore
from rl_training.types import Array, Carry, SpaceSpec


class RecurrentActorCritic(nn.Module):
    """The critic has an LSTM of its own or shares the actor's. A state is (h, c) of each LSTM, the actor's first."""

    def __init__(
        self,
        spec: SpaceSpec,
        hidden: Sequence[int],
        generator: torch.Generator,
        *,
        lstm_size: int,
        lstm_layers: int = 1,
        shared_lstm: bool = False,
        activation: str = "tanh",
        normalize: bool = False,
        initial_log_std: float = 0.0,
        cnn_layers: Sequence[Layer] = NATURE_LAYERS,
        cnn_features: int = 512,
    ) -> None:
        super().__init__()
        self.encoder = ObservationEncoder(
            spec, generator, normalize=normalize, cnn_layers=cnn_layers, cnn_features=cnn_features
        )
        self.head = make_action_head(spec.action, initial_log_std)
        self.cores = [
            LSTMCore(self.encoder.features, lstm_size, lstm_layers, generator) for _ in range(1 if shared_lstm else 2)
        ]
        self.core_modules = nn.ModuleList(self.cores)
        self.actor = MLP([lstm_size, *hidden, self.head.outputs], generator, activation=activation, output_gain=POLICY_GAIN)
        self.critic = MLP([lstm_size, *hidden, 1], generator, activation=activation, output_gain=VALUE_GAIN)

    def initial_state(self, batch: int) -> Carry:
        return tuple(array for core in self.cores for array in core.initial_state(batch))

    def unroll(self, prepared: Tensor, state: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """(time, batch, ...) from a state -> what actor and critic remember at each step, (time, batch, hidden) each."""
        time, batch = prepared.shape[:2]
        features = self.encoder(prepared.flatten(0, 1)).view(time, batch, -1)
        memories = [core(features, *state[2 * k : 2 * k + 2])[0] for k, core in enumerate(self.cores)]
        return memories[0], memories[-1]

    def outputs(self, actor_memory: Tensor, critic_memory: Tensor) -> tuple[Tensor, Tensor]:
        """(batch, hidden) each -> action output, value (batch,)."""
        return self.actor(actor_memory), self.critic(critic_memory).squeeze(1)

    def value(self, prepared: Tensor, state: Sequence[Tensor]) -> Tensor:
        """The value of one observation per row, given the state before it."""
        h, _ = self.cores[-1].step(self.encoder(prepared), *state[-2:])
        value: Tensor = self.critic(h[:, -1]).squeeze(1)
        return value

    def action_step(self, obs: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Raw observations and the actor's state -> action output and the state after."""
        h_after, c_after = self.cores[0].step(self.encoder(self.encoder.prepare(obs)), h, c)
        return self.actor(h_after[:, -1]), h_after, c_after

    def numpy_step(self) -> Callable[[Array, Carry], tuple[Array, Carry]]:
        """(obs, state) -> (action output, state after) on numpy arrays, the fastest way there is. Good as long as the
        parameters stay where they are."""
        if next(self.parameters()).device.type != "cpu":
            return self._torch_step
        encode, actor = self.encoder.numpy_forward(), self.actor.numpy_forward()
        steps = [core.numpy_step() for core in self.cores]

        def step(obs: Array, state: Carry) -> tuple[Array, Carry]:
            features = encode(obs)
            after: list[Array] = []
            for k, core_step in enumerate(steps):
                after.extend(core_step(features, *state[2 * k : 2 * k + 2]))
            return actor(after[0][:, -1]), tuple(after)

        return step

    @torch.no_grad()
    def _torch_step(self, obs: Array, state: Carry) -> tuple[Array, Carry]:
        device = next(self.parameters()).device
        features = self.encoder(self.encoder.prepare(torch.as_tensor(obs, device=device)))
        after: list[Array] = []
        for k, core in enumerate(self.cores):
            h, c = (torch.as_tensor(array, device=device) for array in state[2 * k : 2 * k + 2])
            after.extend(tensor.cpu().numpy() for tensor in core.step(features, h, c))
        output: Array = self.actor(torch.as_tensor(after[0][:, -1], device=device)).cpu().numpy()
        return output, tuple(after)
