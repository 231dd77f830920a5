"""Evaluation: whole episodes of the deterministic policy, on separate environments and seeds."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from rl_training.algorithms.policy import Policy
from rl_training.envs.limit import EpisodeLimit
from rl_training.envs.pool import EnvPool
from rl_training.rng import FINAL_EPISODES


class Extent(NamedTuple):
    """How large an evaluation is."""

    episodes: int
    longest_episode: int | None = None  # steps after which an episode is stopped; None: as the config says
    most_steps: int | None = None  # steps of all episodes together; None: no limit


@dataclass(frozen=True)
class EvaluationResult:
    """Returns and lengths, in the order of the episodes, and successes if the environment reports them for all."""

    returns: list[float]
    lengths: list[int]
    successes: list[float] = field(default_factory=list)

    @property
    def mean_return(self) -> float:
        """The mean over the episodes."""
        return float(np.mean(self.returns))

    @property
    def std_return(self) -> float:
        """The standard deviation over the episodes."""
        return float(np.std(self.returns))

    def summary(self) -> dict[str, Any]:
        """The number of episodes, and statistics of them."""
        return {
            "episodes": len(self.returns),
            "return_mean": self.mean_return,
            "return_std": self.std_return,
            "return_min": float(np.min(self.returns)),
            "return_max": float(np.max(self.returns)),
            "length_mean": float(np.mean(self.lengths)),
            **({"success_rate": float(np.mean(self.successes))} if self.successes else {}),
        }

    def to_json(self) -> dict[str, Any]:
        """The summary and every episode, as in ``evaluation.json``."""
        successes = {"successes": self.successes} if self.successes else {}
        return {**self.summary(), "returns": self.returns, "lengths": self.lengths, **successes}


def evaluate_policy(
    policy: Policy,
    pool: EnvPool,
    episodes: int,
    should_stop: Callable[[], bool] = lambda: False,
    *,
    stream: str = FINAL_EPISODES,
    limit: EpisodeLimit | None = None,
    most_steps: int | None = None,
    rng: np.random.Generator | None = None,
    env_steps: int = 0,
    watch: Callable[[int, int], None] = lambda done, episodes: None,
) -> EvaluationResult | None:
    """Episode k runs in environment k mod n, so that long and short episodes count equally and the result does not depend
    on which finishes first. Returns None if it is stopped early. The episodes are the first ones of ``stream``.

    If episodes turn out to be so long that together they take more than ``most_steps``, the last ones are left out, and only
    the first is always finished. With ``rng`` the policy explores as it did at ``env_steps``. ``watch`` gets the number of
    finished episodes.
    """
    pool.reset(stream, limit)
    n = pool.num_envs
    carry = policy.initial_carry(n)
    returns, lengths = [0.0] * episodes, [0] * episodes
    successes: dict[int, float] = {}
    active, done = list(range(min(n, episodes))), 0
    playing = list(range(n))  # the episode that each environment is in
    while active:
        if should_stop():
            return None
        output = policy.act(pool.obs, carry, rng=rng, env_steps=env_steps, action_mask=pool.action_mask)
        step, finished = pool.step(output.action, active)
        carry = policy.next_carry(output.carry, step)
        for index in active:
            lengths[playing[index]] += 1
        for episode in finished:
            k = episode.env_index + n * episode.number
            returns[k], lengths[k] = episode.episode_return, episode.length
            if episode.success is not None:
                successes[k] = episode.success
            done += 1
            playing[episode.env_index] += n
        if most_steps is not None and sum(lengths[:episodes]) > most_steps:
            episodes = max(1, sum(total <= most_steps for total in itertools.accumulate(lengths[:episodes])))
        active = [index for index in active if playing[index] < episodes]
        watch(min(done, episodes), episodes)
    reported = [successes[k] for k in range(episodes)] if successes.keys() >= set(range(episodes)) else []
    return EvaluationResult(returns[:episodes], lengths[:episodes], reported)
