"""cpprb's candidate, whose trees are written in C++."""

from __future__ import annotations

import numpy as np
from cpprb import PrioritizedReplayBuffer
from measure import Measurement, repeat
from workloads import ReplaySettings


def prioritized(settings: ReplaySettings, seed: int) -> Measurement:
    np.random.seed(seed)  # noqa: NPY002  # this library samples with the global generator
    rng = np.random.default_rng(seed)
    layout = {
        "obs": {"shape": settings.obs_dim},
        "action": {"dtype": np.int64},
        "reward": {},
        "next_obs": {"shape": settings.obs_dim},
        "discount": {},
    }
    buffer = PrioritizedReplayBuffer(settings.capacity, layout, alpha=0.6)
    block = 10_000
    for _ in range(settings.capacity // block):
        obs, next_obs = rng.standard_normal((2, block, settings.obs_dim), np.float32)
        ones = np.ones(block, np.float32)
        buffer.add(obs=obs, action=np.zeros(block, np.int64), reward=ones, next_obs=next_obs, discount=ones)

    def cycle() -> None:
        batch = buffer.sample(settings.batch_size, beta=0.4)
        buffer.update_priorities(batch["indexes"], rng.random(settings.batch_size))

    return Measurement({f"sample + update of {settings.batch_size}": repeat(cycle, settings.samples)})
