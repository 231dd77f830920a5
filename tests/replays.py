"""Looking at everything that a replay of episodes holds."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rl_training.data.block_rings import BlockRings
from rl_training.types import Array


def held_slots(buffer: BlockRings) -> NDArray[np.int64]:
    """Where the items that can be sampled begin: one environment after the other, oldest first.

    A look inside, the only one: ``sample`` gives items at random, and tests compare all of them.
    """
    return buffer._held_slots()


def priorities_of(buffer: BlockRings) -> Array:
    """The stored priorities, slot by slot; 0 where nothing can be sampled."""
    saved: Array = buffer.state_dict()["priorities"]["priorities"]
    return saved
