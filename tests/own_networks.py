"""Networks as users write them, for vectors and for images."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from rl_training.types import ObservationSpec


class ResidualTrunk(nn.Module):
    """Whatever the observation is, flattened; then a residual block."""

    def __init__(self, spec: ObservationSpec, width: int = 8) -> None:
        super().__init__()
        self.out_features = width
        self.first = nn.Linear(torch.Size(spec.shape).numel(), width)
        self.block = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Linear(width, width))
        self.norm = nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.first(x.flatten(1)))
        normalised: Tensor = self.norm(x + self.block(x))
        return normalised


def make_trunk(spec: ObservationSpec, width: int = 8) -> nn.Module:
    return ResidualTrunk(spec, width)


def make_pair(spec: ObservationSpec, actor: int = 8, critic: int = 12) -> tuple[nn.Module, nn.Module]:
    return ResidualTrunk(spec, actor), ResidualTrunk(spec, critic)


def make_lazy(spec: ObservationSpec) -> nn.Module:
    """Without out_features, and with weights that are created in the first forward pass."""
    return nn.Sequential(nn.Flatten(), nn.LazyLinear(9), nn.ReLU())


def make_dropout(spec: ObservationSpec) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.LazyLinear(9), nn.Dropout(0.5))


def make_batch_norm(spec: ObservationSpec) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.LazyLinear(9), nn.BatchNorm1d(9))


def make_wrong_width(spec: ObservationSpec) -> nn.Module:
    trunk = ResidualTrunk(spec, 8)
    trunk.out_features = 9
    return trunk


def make_wrong_shape(spec: ObservationSpec) -> nn.Module:
    return nn.Unflatten(1, (1, -1))


def make_double(spec: ObservationSpec) -> nn.Module:
    return ResidualTrunk(spec).double()


def make_text(spec: ObservationSpec) -> Any:
    return "a network"


def make_fault(spec: ObservationSpec) -> nn.Module:
    raise ValueError("there is no such layer")


class Branching(nn.Module):
    """Cannot be one graph: what it does depends on its input."""

    def __init__(self, spec: ObservationSpec) -> None:
        super().__init__()
        self.linear = nn.Linear(spec.shape[0], 5)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.linear(x)
        return y if float(y.detach().sum()) > 0.0 else -y


not_a_function = 3


class EntriesTrunk(nn.Module):
    """One layer on all entries of a Dict with images, by their names."""

    def __init__(self, spec: ObservationSpec, width: int = 8) -> None:
        super().__init__()
        self.names = [".".join(map(str, leaf.path)) for leaf in spec.leaves]
        self.layer = nn.Linear(sum(torch.Size(leaf.shape).numel() for leaf in spec.leaves), width)

    def forward(self, entries: dict[str, Tensor]) -> Tensor:
        assert sorted(entries) == sorted(self.names)
        return torch.tanh(self.layer(torch.cat([entries[name].flatten(1) for name in self.names], dim=1)))


def make_entries(spec: ObservationSpec) -> nn.Module:
    return EntriesTrunk(spec)
