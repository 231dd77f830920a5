"""Named random streams: every source of randomness has its own generator, saved and restored by name.

Streams are independent by construction (``SeedSequence`` spawn keys), so evaluation never disturbs training, and adding a
stream does not change the others. Nothing in the package draws from a global generator.
"""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np

from rl_training.types import State


def _seed_sequence(seed: int, *keys: str | int) -> np.random.SeedSequence:
    spawn_key = tuple(zlib.crc32(key.encode()) if isinstance(key, str) else key for key in keys)
    return np.random.SeedSequence(seed, spawn_key=spawn_key)


def derive_seed(seed: int, *keys: str | int) -> int:
    """A 31-bit seed derived from all the keys, used to reset an environment for one episode."""
    return int(_seed_sequence(seed, *keys).generate_state(1)[0] >> 1)


#: Streams of the seeds of episodes. The evaluation after training and every later one have a stream of their own, because the
#: best checkpoint was chosen by its return in the episodes of the evaluations during training.
TRAINING_EPISODES = "env"
SELECTION_EPISODES = "eval"
FINAL_EPISODES = "final_eval"


class RandomStreams:
    """Generators by name, each created from (seed, name) on first use."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self._streams: dict[str, np.random.Generator] = {}

    def __getitem__(self, name: str) -> np.random.Generator:
        stream = self._streams.get(name)
        if stream is None:
            stream = self._streams[name] = np.random.Generator(np.random.PCG64(_seed_sequence(self.seed, name)))
        return stream

    def state_dict(self) -> State:
        return {name: stream.bit_generator.state for name, stream in sorted(self._streams.items())}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name, generator_state in state.items():
            self[name].bit_generator.state = generator_state
