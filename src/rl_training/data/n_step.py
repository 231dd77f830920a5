"""Turns steps into n-step transitions (Sutton 1988; the n-step targets of Rainbow, arXiv:1710.02298, section 4)."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from rl_training.data.acting_values import one_step_targets
from rl_training.data.blocks import CompactSteps, compact, joined
from rl_training.data.loaded import require, require_actions, require_like
from rl_training.types import Array, Carry, SpaceSpec, State, Step, Transitions

#: a step of one environment whose window is incomplete: obs, action, reward, and the Q-value of the action, if it is known
_Pending = tuple[Array, Array, float, float]


def _rows(transitions: Transitions, chosen: NDArray[np.bool_]) -> Transitions | None:
    """Some of the rows; None if there are none."""
    if not chosen.any():
        return None
    return Transitions(*(None if field is None else field[chosen] for field in transitions))  # type: ignore[arg-type]


def _errors(chosen: Array, reward: Array, discount: Array, after: Array) -> NDArray[np.float32]:
    """The absolute TD errors, as far as they are known."""
    target = one_step_targets(*(array.astype(np.float64) for array in (reward, discount, after)))
    errors: NDArray[np.float32] = np.abs(target - chosen).astype(np.float32)
    return errors


class StepRecorder:
    """Passes steps on unchanged, for a buffer that builds n-step windows itself."""

    def record(self, step: Step, carry: Carry = ()) -> Step:
        return step

    def block(self, recorded: Sequence[Step], frame_channels: int | None) -> CompactSteps:
        return compact(recorded, frame_channels)

    def discard(self, env_index: int) -> None:
        return

    def state_dict(self) -> State:
        return {}

    def load_state_dict(self, state: State) -> None:
        return

    def check(self, spec: SpaceSpec) -> None:
        return


class NStepAccumulator:
    """Sums up to ``n`` rewards per transition and stores the complete discount, ``gamma^k * (1 - terminated)``.

    ``k`` is the number of rewards in the sum: a window ends with its episode, so the last transitions of an episode sum
    n-1, ..., 1 rewards. After a truncation they bootstrap from the true final observation. No window crosses an episode
    boundary.
    """

    def __init__(self, num_envs: int, gamma: float, n: int = 1) -> None:
        self.gamma, self.n, self._num_envs = gamma, n, num_envs
        self._windows: list[deque[_Pending]] = [deque() for _ in range(num_envs)]

    def record(self, step: Step, carry: Carry = ()) -> Transitions | None:
        """The transitions that this step completes, oldest first within each environment; None if there are none."""
        if self.n == 1:
            discount = np.where(step.terminated, np.float32(0.0), np.float32(self.gamma))
            priority = None if step.values is None else _errors(step.values.chosen, step.reward, discount, step.values.after)
            whole = Transitions(step.obs, step.action, step.reward, step.next_obs, discount, step.next_action_mask, priority)
            return whole if step.present is None else _rows(whole, step.present)
        rows: list[tuple[Array, Array, float, int, float, float]] = []
        for i in step.envs:
            window = self._windows[i]
            chosen = np.nan if step.values is None else float(step.values.chosen[i])
            window.append((step.obs[i], step.action[i], float(step.reward[i]), chosen))
            ended = bool(step.terminated[i] or step.truncated[i])
            while window and (ended or len(window) == self.n):
                discount_i = 0.0 if step.terminated[i] else self.gamma ** len(window)
                obs, action, _, chosen = window[0]
                rows.append((obs, action, self._discounted_sum(window), i, discount_i, chosen))
                window.popleft()
        if not rows:
            return None
        obs_rows, actions, rewards, envs, discounts, values = zip(*rows, strict=True)
        last = list(envs)
        reward, discount = np.array(rewards, np.float32), np.array(discounts, np.float32)
        return Transitions(
            np.stack(obs_rows),
            np.stack(actions),
            reward,
            step.next_obs[last],
            discount,
            None if step.next_action_mask is None else step.next_action_mask[last],
            None if step.values is None else _errors(np.array(values), reward, discount, step.values.after[last]),
        )

    def block(self, recorded: Sequence[Transitions], frame_channels: int | None) -> Transitions:
        return joined(recorded)

    def _discounted_sum(self, window: deque[_Pending]) -> float:
        total = 0.0
        for _, _, reward, _ in reversed(window):
            total = reward + self.gamma * total
        return total

    def discard(self, env_index: int) -> None:
        """Drops an environment's incomplete window because its episode cannot continue."""
        self._windows[env_index].clear()

    def state_dict(self) -> State:
        windows: list[State] = [
            {
                "obs": np.array([obs for obs, _, _, _ in window]),
                "action": np.array([action for _, action, _, _ in window]),
                "reward": [reward for _, _, reward, _ in window],
            }
            for window in self._windows
        ]
        for window, saved in zip(self._windows, windows, strict=True):
            if any(chosen == chosen for _, _, _, chosen in window):  # known
                saved["chosen"] = np.array([chosen for _, _, _, chosen in window])
        return {"windows": windows}

    def load_state_dict(self, state: State) -> None:
        self._windows = [
            deque(zip(saved["obs"], saved["action"], saved["reward"], _chosen(saved), strict=True))
            for saved in state["windows"]
        ]

    def check(self, spec: SpaceSpec) -> None:
        require(len(self._windows) == self._num_envs, f"it has {len(self._windows)} open windows of {self._num_envs}")
        for window in self._windows:
            require(len(window) < self.n, f"an open window has {len(window)} steps of {self.n}")
            for obs, action, reward, _ in window:
                require_like(obs, np.empty(spec.observation.shape, spec.observation.dtype), "an observation")
                require_like(np.asarray(action), np.empty(spec.action.shape, spec.action.dtype), "an action")
                require_actions(action, spec.action)
                require(type(reward) is float and abs(reward) < np.inf, "a reward is not finite")


def _chosen(saved: State) -> list[float]:
    values: list[float] = np.asarray(saved.get("chosen", np.full(len(saved["reward"]), np.nan))).tolist()
    return values
