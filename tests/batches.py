"""Batches of random transitions: four numbers observed, three actions."""

from __future__ import annotations

import torch

from rl_training.types import ActionSpec, ObservationSpec, SpaceSpec, TransitionBatch

SPEC = SpaceSpec(ObservationSpec.vector(4), ActionSpec("discrete", count=3))


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
