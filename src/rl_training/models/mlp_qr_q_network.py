"""QR-DQN's network on vector observations."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from rl_training.models.value_network import QuantileQNetwork, make_value_body
from rl_training.types import ObservationSpec


class MLPQRQNetwork(QuantileQNetwork):
    """``QuantileQNetwork`` on vectors, with hidden layers of these widths."""

    def __init__(
        self, obs_dim: int, action_dim: int, num_quantiles: int, hidden: Sequence[int], generator: torch.Generator
    ) -> None:
        body = make_value_body(ObservationSpec.vector(obs_dim), action_dim, hidden, generator, atoms=num_quantiles)
        super().__init__(*body)
