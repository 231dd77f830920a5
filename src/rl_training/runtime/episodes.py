"""Statistics of the episodes that training has finished."""

from __future__ import annotations

from collections import deque

import numpy as np

from rl_training.algorithms.epsilon_greedy import EpsilonGreedyConfig
from rl_training.envs.pool import Episode
from rl_training.experiment.config import TrainConfig
from rl_training.types import State

RECENT_EPISODES = 100


class EpisodeStatistics:
    """The number of episodes, and the returns, lengths and successes of the most recent ones."""

    def __init__(self, least_exploring: int | None = None) -> None:
        """Environments from ``least_exploring`` on have the lowest epsilon; None: all explore alike."""
        self.count = 0
        self._least_exploring = least_exploring
        self._least_returns: deque[float] = deque(maxlen=RECENT_EPISODES)
        self._returns: deque[float] = deque(maxlen=RECENT_EPISODES)
        self._lengths: deque[int] = deque(maxlen=RECENT_EPISODES)
        self._successes: deque[float] = deque(maxlen=RECENT_EPISODES)  # only of environments that report success

    @classmethod
    def of(cls, config: TrainConfig) -> EpisodeStatistics:
        """The statistics of a run. If epsilon is spread over the environments, the last quarter of them explores least."""
        settings = config.algo_kwargs
        spreads = isinstance(settings, EpsilonGreedyConfig) and settings.epsilon_spread > 0.0
        spread = spreads and not config.collectors.step_by_step
        return cls(config.num_envs - max(1, config.num_envs // 4) if spread else None)

    def on_episode(self, episode: Episode) -> None:
        self.count += 1
        self._returns.append(episode.episode_return)
        self._lengths.append(episode.length)
        if self._least_exploring is not None and episode.env_index >= self._least_exploring:
            self._least_returns.append(episode.episode_return)
        if episode.success is not None:
            self._successes.append(episode.success)

    @property
    def mean_length(self) -> float | None:
        """The mean length of the most recent episodes; None before the first has ended."""
        return sum(self._lengths) / len(self._lengths) if self._lengths else None

    def metrics(self) -> dict[str, float]:
        metrics: dict[str, float] = {"episodes": self.count}
        if self._returns:
            metrics["return_mean"] = float(np.mean(self._returns))
            metrics["length_mean"] = float(np.mean(self._lengths))
        if self._least_returns:
            metrics["return_mean_lowest_epsilon"] = float(np.mean(self._least_returns))
        if self._successes:
            metrics["success_rate"] = float(np.mean(self._successes))
        return metrics

    def state_dict(self) -> State:
        return {
            "count": self.count,
            "returns": list(self._returns),
            "lengths": list(self._lengths),
            "successes": list(self._successes),
            "least_returns": list(self._least_returns),
        }

    def load_state_dict(self, state: State) -> None:
        self.count = state["count"]
        self._returns.extend(state["returns"])
        self._lengths.extend(state["lengths"])
        self._successes.extend(state["successes"])
        self._least_returns.extend(state["least_returns"])
