"""Scales rewards by the spread of the discounted return, so that the value loss has a similar scale in every task."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from rl_training.models.normalization import CLIP, RunningMoments
from rl_training.types import Array, State


class ReturnScale:
    """Divides rewards by the running standard deviation of the discounted return and clips them to +-10.

    It does not subtract the mean: shifting rewards would change which policy is best.
    """

    def __init__(self, gamma: float) -> None:
        self._gamma = gamma
        self._moments = RunningMoments()
        self._returns: Array = np.zeros(0)  # (env,) returns of the running episodes; sized by the first rollout

    def scale(self, reward: Array, ended: Array, present: Array | None = None) -> Array:
        """Updates the statistics with the rewards of a rollout (time, env) and returns them scaled. Where ``present`` is
        false there was no step."""
        self.observe(reward, ended, present)
        scaled: Array = np.clip(reward / self._moments.std, -CLIP, CLIP).astype(np.float32)
        return scaled

    def scale_batch(self, reward: Tensor, n_step: int) -> Tensor:
        """Sampled rewards, each summed over up to ``n_step`` steps, by the statistics so far."""
        return (reward / float(self._moments.std)).clamp_(-CLIP * n_step, CLIP * n_step)

    def observe(
        self, reward: Array, ended: Array, present: Array | None = None, first: int = 0, num_envs: int | None = None
    ) -> None:
        """Updates the statistics with rewards (time, env). Where ``present`` is false there was no step. The environments are
        ``first`` of ``num_envs`` and those after it; by default all."""
        envs = reward.shape[1]
        if not len(self._returns):
            self._returns = np.zeros(num_envs or envs)
        own = slice(first, first + envs)
        running = self._returns[own]
        returns = np.empty(reward.shape)
        for t in range(len(reward)):
            running = running * self._gamma + reward[t]
            returns[t] = running
            running = running * ~ended[t]
        self._returns[own] = running
        self._moments.update(returns.reshape(-1) if present is None else returns[present])

    def state_dict(self) -> State:
        return {"moments": self._moments.state_dict(), "returns": self._returns.copy()}

    def load_state_dict(self, state: State) -> None:
        self._moments.load_state_dict(state["moments"])
        self._returns = np.array(state["returns"])
