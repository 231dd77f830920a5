"""The last part of a value network: one or two streams from features to values per action and atom."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from rl_training.models.mlp import PLAIN, Style, make_mlp
from rl_training.types import Array


class ValueHead(nn.Module):
    """(batch, inputs) -> (batch, action, atom).

    Dueling (Wang et al., arXiv:1511.06581): V + A - mean of A over the ACTION axis, separately for each atom or quantile.
    """

    def __init__(
        self,
        inputs: int,
        hidden: Sequence[int],
        actions: int,
        generator: torch.Generator,
        *,
        atoms: int = 1,
        dueling: bool = False,
        noisy: bool = False,
        style: Style = PLAIN,
        initial: Tensor | None = None,
    ) -> None:
        """``initial`` (atom,), if given, is added to what the untrained head predicts for every action."""
        super().__init__()
        self.actions, self.atoms = actions, atoms
        self.advantage = make_mlp([inputs, *hidden, actions * atoms], generator, style, noisy=noisy)
        self.value = make_mlp([inputs, *hidden, atoms], generator, style, noisy=noisy) if dueling else None
        if initial is not None:
            stream = self.advantage if self.value is None else self.value
            with torch.no_grad():
                stream.output_bias.view(-1, atoms).add_(initial)

    def forward(self, features: Tensor) -> Tensor:
        advantage: Tensor = self.advantage(features).view(-1, self.actions, self.atoms)
        if self.value is None:
            return advantage
        value: Tensor = self.value(features).unsqueeze(1)
        return value + advantage - advantage.mean(dim=1, keepdim=True)

    def has_numpy(self) -> bool:
        """Whether ``numpy_forward`` avoids torch."""
        return self.advantage.has_numpy()

    def numpy_forward(self, noisy: bool) -> Callable[[Array], Array]:
        """``forward`` on numpy arrays, with views of the parameters."""
        advantage_stream = self.advantage.numpy_forward(noisy)
        value_stream = None if self.value is None else self.value.numpy_forward(noisy)
        actions, atoms = self.actions, self.atoms

        def forward(features: Array) -> Array:
            advantage = advantage_stream(features).reshape(-1, actions, atoms)
            if value_stream is None:
                return advantage
            values: Array = value_stream(features)[:, None] + advantage - advantage.mean(axis=1, keepdims=True)
            return values

        return forward
