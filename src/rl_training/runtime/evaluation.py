"""Evaluation: whole episodes of the deterministic policy, on separate environments and seeds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from rl_training.algorithms.policy import Policy
from rl_training.envs.limit import EpisodeLimit
from rl_training.envs.pool import EnvPool
from rl_training.rng import FINAL_EPISODES


@dataclass(frozen=True)
class EvaluationResult:
    """Returns and lengths, in the order of the episodes."""

    returns: list[float]
    lengths: list[int]

    @property
    def mean_return(self) -> float:
        return float(np.mean(self.returns))

    @property
    def std_return(self) -> float:
        return float(np.std(self.returns))

    def summary(self) -> dict[str, Any]:
        return {
            "episodes": len(self.returns),
            "return_mean": self.mean_return,
            "return_std": self.std_return,
            "return_min": float(np.min(self.returns)),
            "return_max": float(np.max(self.returns)),
            "length_mean": float(np.mean(self.lengths)),
        }

    def to_json(self) -> dict[str, Any]:
        return {**self.summary(), "returns": self.returns, "lengths": self.lengths}


def evaluate_policy(
    policy: Policy,
    pool: EnvPool,
    episodes: int,
    should_stop: Callable[[], bool] = lambda: False,
    *,
    stream: str = FINAL_EPISODES,
    limit: EpisodeLimit | None = None,
) -> EvaluationResult | None:
    """Episode k runs in environment k mod n, so that long and short episodes count equally and the result does not depend
    on which finishes first. Returns None if it is stopped early. The episodes are the first ones of ``stream``."""
    pool.reset(stream, limit)
    n = pool.num_envs
    carry = policy.initial_carry(n)
    returns, lengths = [0.0] * episodes, [0] * episodes
    active = list(range(min(n, episodes)))
    while active:
        if should_stop():
            return None
        output = policy.act(pool.obs, carry, action_mask=pool.action_mask)
        step, finished = pool.step(output.action, active)
        carry = policy.next_carry(output.carry, step)
        for episode in finished:
            k = episode.env_index + n * episode.number
            returns[k], lengths[k] = episode.episode_return, episode.length
            if k + n >= episodes:
                active.remove(episode.env_index)
    return EvaluationResult(returns, lengths)
