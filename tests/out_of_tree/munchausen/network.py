"""A trunk of residual blocks."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from rl_training.models.encoder import Encoder
from rl_training.models.mlp import MLP


class ResidualTrunk(Encoder):
    """x + MLP(x), several times."""

    def __init__(self, inputs: int, width: int, blocks: int, generator: torch.Generator) -> None:
        super().__init__()
        self.first = MLP([inputs, width], generator)
        self.blocks = nn.ModuleList(MLP([width, width, width], generator) for _ in range(blocks))
        self.out_features = width

    def forward(self, prepared: Tensor) -> Tensor:
        x: Tensor = self.first(prepared)
        for block in self.blocks:
            x = x + block(x)
        return torch.relu(x)
