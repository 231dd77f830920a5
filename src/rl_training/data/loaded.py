"""Checks of what was loaded from a checkpoint. Its hashes find damage, but anybody can compute them: a number that is out of
range would end an update with an error of torch, or read memory that belongs to something else."""

from __future__ import annotations

import numpy as np

from rl_training.errors import CheckpointError
from rl_training.types import ActionSpec, Array


def require(holds: bool, problem: str) -> None:
    """Refuses a checkpoint whose steps have this problem, unless the condition holds."""
    if not holds:
        raise CheckpointError(f"the saved experience cannot be used: {problem}")


def require_within(values: Array, low: float, high: float, what: str) -> None:
    """Refuses numbers outside [low, high], and NaN."""
    if values.size:
        least, most = values.min(), values.max()
        wrong = most if least >= low else least
        require(bool(least >= low and most <= high), f"{what} of {wrong} is not between {low:g} and {high:g}")


def require_finite(values: Array, what: str) -> None:
    """Refuses infinity and NaN."""
    if values.size:
        require(bool(values.min() > -np.inf and values.max() < np.inf), f"{what} is not finite")


def require_actions(action: Array, spec: ActionSpec) -> None:
    """Refuses actions (..., *shape) that a policy with this spec cannot have given."""
    if spec.kind == "discrete":
        require_within(action, 0, spec.count - 1, "an action")
    elif spec.kind == "multi_discrete":
        for choice, size in enumerate(spec.sizes):
            require_within(action[..., choice], 0, size - 1, "an action")
    else:
        require_finite(action, "an action")


def require_masks(mask: Array) -> None:
    """Refuses masks (..., action) that allow no action, or whose bytes are neither true nor false."""
    require_within(mask.view(np.uint8), 0, 1, "a byte of an action mask")
    require(bool(mask.any(axis=-1).all()), "an action mask allows no action")


def require_like(saved: object, own: Array, what: str) -> None:
    """Refuses an array whose dtype or shape differs from our own."""
    found = f"{saved.dtype} of shape {saved.shape}" if isinstance(saved, np.ndarray) else "no array"
    expected = f"{own.dtype} of shape {own.shape}"
    require(found == expected, f"{what} should be {expected}, but is {found}")
