"""Evaluation: whole episodes of the deterministic policy, on separate environments and seeds."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from rl_training.algorithms.policy import Policy
from rl_training.envs.limit import EpisodeLimit
from rl_training.envs.pool import EnvPool, Episode
from rl_training.envs.vector_pool import VectorEnvPool
from rl_training.rng import FINAL_EPISODES
from rl_training.types import Carry

if TYPE_CHECKING:
    from rl_training.runtime.video import Film


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
    steps: int = 0  # env steps that the evaluation took, with those of episodes that were left out
    film: Film | None = None  # of the first episode, if a video was asked for

    @property
    def mean_return(self) -> float:
        """The mean over the episodes."""
        return float(np.mean(self.returns))

    @property
    def std_return(self) -> float:
        """The standard deviation over the episodes."""
        return float(np.std(self.returns))

    @property
    def success_rate(self) -> float | None:
        """The share of the episodes with ``info["is_success"]``; None if they do not all report it."""
        return float(np.mean(self.successes)) if self.successes else None

    def summary(self) -> dict[str, Any]:
        """The number of episodes, and statistics of them."""
        return {
            "episodes": len(self.returns),
            "return_mean": self.mean_return,
            "return_std": self.std_return,
            "return_min": float(np.min(self.returns)),
            "return_max": float(np.max(self.returns)),
            "length_mean": float(np.mean(self.lengths)),
            **({"success_rate": self.success_rate} if self.successes else {}),
        }

    def to_json(self) -> dict[str, Any]:
        """The summary and every episode, as in ``evaluation.json``."""
        successes = {"successes": self.successes} if self.successes else {}
        return {**self.summary(), "returns": self.returns, "lengths": self.lengths, **successes}


def affordable(lengths: Sequence[int], longest: int, left: int) -> int:
    """How many of these unfinished episodes, given by their steps so far, ``left`` more steps are enough for. An episode is
    expected to become as long as the ``longest`` that has ended; if it is that long already, twice as long as it is."""
    expected = (longest - length if length < longest else length for length in lengths)
    return sum(total <= left for total in itertools.accumulate(expected))


class Turns:
    """Whose turn it is in an evaluation, and what has been played. Environment i of n plays the episodes i, i + n, i + 2n and
    so on, so that long and short episodes count equally and the result does not depend on which finishes first.

    With ``most_steps``, the first episode is played alone, to show how long they are, and then as many at once as there
    should be steps for. When all steps are spent, the last episodes are left out.
    """

    def __init__(self, pool: EnvPool, episodes: int, most_steps: int | None = None) -> None:
        self.spent = 0  # env steps, with those of episodes that are left out
        self._n, self._episodes, self._most_steps = pool.num_envs, episodes, most_steps
        self._together = isinstance(pool, VectorEnvPool)  # its members cannot wait for each other
        self._playing = list(range(self._n))  # the episode that each environment is in
        self._lengths = [0] * episodes
        self._ended: dict[int, Episode] = {}

    @property
    def done(self) -> int:
        """The number of finished episodes."""
        return len(self._ended)

    def active(self) -> list[int]:
        """The environments that play the next step; none if the evaluation is over."""
        playing = self._playing
        order = sorted((i for i in range(self._n) if playing[i] < self._episodes), key=playing.__getitem__)
        if 0 not in self._ended and self._most_steps is not None and not self._together:
            return order[:1]
        if 0 not in self._ended or self._most_steps is None:
            return order
        left = self._most_steps - self.spent
        if left <= 0 or self._together:
            return order if left > 0 else []
        longest = max(episode.length for episode in self._ended.values())
        return order[: max(1, affordable([self._lengths[playing[i]] for i in order], longest, left))]

    def add(self, active: Sequence[int], finished: Sequence[Episode]) -> None:
        """A step of the ``active`` environments."""
        self.spent += self._n if self._together else len(active)
        for i in active:
            self._lengths[self._playing[i]] += 1
        for episode in finished:
            self._ended[episode.env_index + self._n * episode.number] = episode
            self._playing[episode.env_index] += self._n

    def result(self) -> EvaluationResult:
        """The episodes up to the first that has not ended."""
        whole = [self._ended[k] for k in itertools.takewhile(self._ended.__contains__, itertools.count())]
        successes = [episode.success for episode in whole if episode.success is not None]
        return EvaluationResult(
            [episode.episode_return for episode in whole],
            [episode.length for episode in whole],
            successes if len(successes) == len(whole) else [],
            self.spent,
        )


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
    """Plays the first ``episodes`` of ``stream``, or as many as ``most_steps`` are enough for, but always the first, which
    ``limit`` must end in time. Returns None if it is stopped early.

    With ``rng`` the policy explores as it did at ``env_steps``. ``watch`` gets the number of finished episodes.
    """
    pool.reset(stream, limit)
    carry = policy.initial_carry(pool.num_envs)
    turns = Turns(pool, episodes, most_steps)
    while active := turns.active():
        if should_stop():
            return None
        output = policy.act(pool.obs, carry, rng=rng, env_steps=env_steps, action_mask=pool.action_mask)
        step, finished = pool.step(output.action, active)
        carry = _advanced(carry, policy.next_carry(output.carry, step), active)
        turns.add(active, finished)
        watch(turns.done, episodes)
    return turns.result()


def _advanced(before: Carry, after: Carry, rows: Sequence[int]) -> Carry:
    """The carry after a step that only these environments have taken."""
    merged = tuple(array.copy() for array in before)
    for array, new in zip(merged, after, strict=True):
        array[rows] = new[rows]
    return merged
