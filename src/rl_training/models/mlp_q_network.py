"""DQN's network on vector observations."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from rl_training.models.value_network import QNetwork, make_value_body
from rl_training.types import ObservationSpec


class MLPQNetwork(QNetwork):
    """``QNetwork`` on vectors, with hidden layers of these widths."""

    def __init__(self, obs_dim: int, action_dim: int, hidden: Sequence[int], generator: torch.Generator) -> None:
        super().__init__(*make_value_body(ObservationSpec.vector(obs_dim), action_dim, hidden, generator))
