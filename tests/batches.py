"""Batches of random transitions: four numbers observed and three actions, or three numbers and two continuous actions."""

from __future__ import annotations

import torch
from torch import Tensor

from rl_training.types import ActionSpec, ObservationSpec, SpaceSpec, TransitionBatch

SPEC = SpaceSpec(ObservationSpec.vector(4), ActionSpec("discrete", count=3))
CONTINUOUS_SPEC = SpaceSpec(
    ObservationSpec.vector(3), ActionSpec("continuous", low=(-2.0, 0.0), high=(2.0, 10.0), raw_shape=(2,))
)


def discrete_batch(*discount: float, seed: int = 0) -> TransitionBatch:
    """One transition for each discount."""
    generator, rows = torch.Generator().manual_seed(seed), len(discount)
    return TransitionBatch(
        torch.randn(rows, 4, generator=generator),
        torch.randint(0, 3, (rows,), generator=generator),
        torch.randn(rows, generator=generator),
        torch.randn(rows, 4, generator=generator),
        torch.tensor(discount),
    )


def continuous_batch(rows: int = 8, seed: int = 0) -> TransitionBatch:
    """Transitions of which every fourth is terminal."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    discount = torch.where(torch.arange(rows) % 4 == 3, 0.0, 0.9)
    return TransitionBatch(normal(rows, 3), torch.tanh(normal(rows, 2)), normal(rows), normal(rows, 3), discount)
