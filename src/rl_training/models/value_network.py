"""The networks of the value family: an encoder, a head with one or more atoms per action, and the meaning of the atoms."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from rl_training.models.encoder import Encoder, in_turn, through_torch
from rl_training.models.noisy import noisy_layers
from rl_training.models.observation import EncoderConfig, make_encoder
from rl_training.models.value_head import ValueHead
from rl_training.types import Array, ObservationSpec


def make_value_body(
    spec: ObservationSpec,
    actions: int,
    hidden: Sequence[int],
    generator: torch.Generator,
    *,
    atoms: int = 1,
    dueling: bool = False,
    noisy: bool = False,
    encoder: EncoderConfig = EncoderConfig(),  # noqa: B008 - frozen
    initial: Tensor | None = None,
) -> tuple[Encoder, ValueHead]:
    """The trunk and the head of a value network; ``initial`` (atom,) is added to what it predicts before it has learned.

    On vectors all hidden layers except the last are in the trunk, so that each stream of a dueling head has one; on images
    only the convolutions are in the trunk, and a trunk of the user's is left as it is.
    """
    in_trunk = 0 if spec.images or encoder.custom is not None else max(0, len(hidden) - 1)
    trunk = make_encoder(spec, replace(encoder, hidden=hidden[:in_trunk]), generator)
    options: dict[str, Any] = {"atoms": atoms, "dueling": dueling, "noisy": noisy, "style": encoder.style, "initial": initial}
    return trunk, ValueHead(trunk.out_features, hidden[in_trunk:], actions, generator, **options)


class ValueNetwork(nn.Module, ABC):
    """A network that gives Q-values of discrete actions, whatever else it learns."""

    @abstractmethod
    def q_values(self, obs: Tensor) -> Tensor:
        """(batch, ...) observations -> (batch, action)."""

    @torch.no_grad()
    def act(self, obs: Tensor) -> Tensor:
        """The greedy actions, (batch,)."""
        return self.q_values(obs).argmax(dim=1)

    def q_function(self, noisy: bool = False) -> Callable[[Array], Array]:
        """``q_values`` on numpy arrays, with or without the noise of noisy layers. Valid until the parameters move to other
        memory. Uses torch unless a subclass has a faster way."""
        layers = list(noisy_layers(self))  # only these depend on the mode; switching every module takes as long as acting

        def q_values(obs: Tensor) -> Tensor:
            was_training = self.training
            for layer in layers:
                layer.train(noisy)
            values = self.q_values(obs)
            for layer in layers:
                layer.train(was_training)
            return values

        return through_torch(q_values, self)


class AtomNetwork(ValueNetwork):
    """A trunk, and a head with one or more atoms per action. Subclasses define what the atoms mean."""

    def __init__(self, trunk: Encoder, head: ValueHead) -> None:
        super().__init__()
        self.trunk = trunk
        self.head = head

    def atoms(self, obs: Tensor) -> Tensor:
        """(batch, ...) observations -> (batch, action, atom)."""
        trunk = self.trunk
        atoms: Tensor = self.head(trunk(trunk.prepare(obs)))
        return atoms

    @abstractmethod
    def numpy_reduce(self, atoms: Array) -> Array:
        """Q-values (batch, action) of the head's output (batch, action, atom), on numpy arrays."""

    def q_function(self, noisy: bool = False) -> Callable[[Array], Array]:
        if not (self.trunk.has_numpy() and self.head.has_numpy()):
            return super().q_function(noisy)
        return in_turn(in_turn(self.trunk.numpy_forward(), self.head.numpy_forward(noisy)), self.numpy_reduce)


class QNetwork(AtomNetwork):
    """DQN's network. ``forward``: (batch, ...) -> Q-values (batch, action)."""

    def forward(self, obs: Tensor) -> Tensor:
        return self.atoms(obs).squeeze(2)

    def q_values(self, obs: Tensor) -> Tensor:
        return self.forward(obs)

    def numpy_reduce(self, atoms: Array) -> Array:
        return atoms[:, :, 0]


class QuantileQNetwork(AtomNetwork):
    """QR-DQN's network. ``forward``: (batch, ...) -> quantiles of the return (batch, action, quantile); a Q-value is their
    mean."""

    def forward(self, obs: Tensor) -> Tensor:
        return self.atoms(obs)

    def q_values(self, obs: Tensor) -> Tensor:
        return self.forward(obs).mean(dim=2)

    def numpy_reduce(self, atoms: Array) -> Array:
        values: Array = atoms.mean(axis=2)
        return values


class CategoricalQNetwork(AtomNetwork):
    """C51's network. ``forward``: (batch, ...) -> logits (batch, action, atom) over ``support``; a Q-value is its
    mean."""

    support: Tensor

    def __init__(self, trunk: Encoder, head: ValueHead, v_min: float, v_max: float) -> None:
        super().__init__(trunk, head)
        self.register_buffer("support", torch.linspace(v_min, v_max, head.atoms))

    def forward(self, obs: Tensor) -> Tensor:
        return self.atoms(obs)

    def q_values(self, obs: Tensor) -> Tensor:
        return self.forward(obs).softmax(dim=2) @ self.support

    def numpy_reduce(self, atoms: Array) -> Array:
        weights = np.exp(atoms - atoms.max(axis=2, keepdims=True))
        values: Array = (weights @ self.support.numpy()) / weights.sum(axis=2)
        return values
