"""Storage for the on-policy algorithms: consecutive steps of every environment, used for one training phase."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rl_training.data.blocks import CompactSteps, compact, expanded, stacked
from rl_training.data.loaded import require, require_actions, require_finite, require_like, require_masks
from rl_training.data.memory import require_memory
from rl_training.types import ActionSpec, Array, Carry, State, Step


class Rollout(NamedTuple):
    """Steps of N environments in order, each array (time, env, ...)."""

    obs: Array
    action: Array
    reward: NDArray[np.float32]
    next_obs: Array  # true next observations, including final ones where an episode ended
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    carry: Carry  # before each step; zero where an episode starts
    carry_after: Carry  # after each step, not reset
    action_mask: NDArray[np.bool_] | None = None  # (time, env, action) the allowed actions
    present: NDArray[np.bool_] | None = None  # (time, env) False where an environment made no step; None: all are present

    @property
    def ended(self) -> NDArray[np.bool_]:
        return self.terminated | self.truncated

    @property
    def start(self) -> NDArray[np.bool_]:
        """Where an episode starts within the rollout. The first step is not marked, because its carry is already right."""
        ended = self.ended
        return np.concatenate([np.zeros_like(ended[:1]), ended[:-1]])


class RolloutStep(NamedTuple):
    """One step of all environments as a rollout stores it."""

    step: Step
    carry: Carry  # after the step, not yet reset
    next_carry: Carry  # the same, reset where an episode ended
    action_mask: NDArray[np.bool_] | None  # the actions that were allowed


class RolloutBlock(NamedTuple):
    """Several such steps."""

    steps: CompactSteps
    carry: Carry  # (time, env, ...) each
    next_carry: Carry
    action_mask: NDArray[np.bool_] | None


def rollout_block(recorded: Sequence[RolloutStep], frame_channels: int | None) -> RolloutBlock:
    """Several steps; ``frame_channels`` is the number of channels of a frame if observations are stacks of frames."""
    nothing = recorded[0].step._replace(obs=recorded[0].step.obs[:0], next_obs=recorded[0].step.obs[:0])
    rest = stacked([one._replace(step=nothing) for one in recorded])
    return RolloutBlock(
        compact([one.step for one in recorded], frame_channels), rest.carry, rest.next_carry, rest.action_mask
    )


class RolloutBuffer:
    """``add`` steps until it is ``full``, use the ``rollout``, then ``clear``."""

    def __init__(
        self,
        steps: int,
        num_envs: int,
        obs_shape: tuple[int, ...],
        action_shape: tuple[int, ...],
        *,
        obs_dtype: type = np.float32,
        action_dtype: type = np.int64,
        masked_actions: int = 0,
        carry: Carry = (),
    ) -> None:
        """``carry`` is the carry at the start of an episode, (env, ...) each. With ``masked_actions`` (the number of
        actions) the masks are stored too."""
        size = (steps, num_envs)
        row = 2 * np.dtype((obs_dtype, obs_shape)).itemsize + np.dtype((action_dtype, action_shape)).itemsize
        state = 2 * sum(array.nbytes for array in carry)
        require_memory(
            steps * (num_envs * (row + 6 + masked_actions) + state),
            f"a rollout of {steps} steps of {num_envs} environment(s)",
            "lower algo_kwargs.n_steps",
        )
        self.steps = steps
        self.length = 0
        self._obs: Array = np.zeros((*size, *obs_shape), obs_dtype)
        self._next_obs = np.zeros_like(self._obs)
        self._action: Array = np.zeros((*size, *action_shape), action_dtype)
        self._reward = np.zeros(size, np.float32)
        self._terminated = np.zeros(size, np.bool_)
        self._truncated = np.zeros(size, np.bool_)
        self._mask = np.zeros((*size, masked_actions), np.bool_)
        self._present = np.ones(size, np.bool_)
        self._carry = tuple(np.zeros((steps + 1, *array.shape), array.dtype) for array in carry)
        self._carry_after = tuple(np.zeros_like(array[:-1]) for array in self._carry)

    def __len__(self) -> int:
        return self.length

    @property
    def full(self) -> bool:
        return self.length == self.steps

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for array in (*self._per_step(), *self._carry))

    def add(self, step: Step, carry_after: Carry, next_carry: Carry, action_mask: NDArray[np.bool_] | None = None) -> None:
        """Adds a step. ``carry_after`` is the carry after it, ``next_carry`` the same, reset where an episode ended, and
        ``action_mask`` the actions that were allowed."""
        t = self.length
        arrays = (self._obs, self._action, self._reward, self._next_obs, self._terminated, self._truncated)
        for array, value in zip(arrays, step, strict=False):
            array[t] = value
        if step.present is not None:
            self._present[t] = step.present
        assert (action_mask is not None) == bool(self._mask.shape[2]), "the policy must pass on the action masks"
        if action_mask is not None:
            self._mask[t] = action_mask
        for stored, value in zip(self._carry_after, carry_after, strict=True):
            stored[t] = value
        for stored, value in zip(self._carry, next_carry, strict=True):
            stored[t + 1] = value
        self.length += 1

    def add_block(self, block: RolloutBlock, first: int) -> None:
        """Fills the rollout for environment ``first`` and those after it. It is full once the last environment has been
        added."""
        steps = expanded(block.steps)
        envs = slice(first, first + steps.reward.shape[1])
        arrays = (self._obs, self._action, self._reward, self._next_obs, self._terminated, self._truncated)
        for array, value in zip(arrays, steps, strict=False):
            array[:, envs] = value
        self._present[:, envs] = True if steps.present is None else steps.present
        if block.action_mask is not None:
            self._mask[:, envs] = block.action_mask
        for stored, value in zip(self._carry_after, block.carry, strict=True):
            stored[:, envs] = value
        for stored, value in zip(self._carry, block.next_carry, strict=True):
            stored[1:, envs] = value
        if envs.stop == self._reward.shape[1]:
            self.length = self.steps

    def end_episode(self, env_index: int) -> None:
        """Marks the last step as truncated because the episode cannot continue, and resets the carry for a new episode."""
        if self.length:
            self._truncated[self.length - 1, env_index] = True
        for stored in self._carry:
            stored[self.length, env_index] = 0

    def rollout(self) -> Rollout:
        """The stored steps, as views."""
        return self._first(self.length)

    def whole(self) -> Rollout:
        """Views of the whole memory, filled or not, as an example of its shapes."""
        return self._first(len(self._obs))

    def _first(self, n: int) -> Rollout:
        return Rollout(
            self._obs[:n],
            self._action[:n],
            self._reward[:n],
            self._next_obs[:n],
            self._terminated[:n],
            self._truncated[:n],
            tuple(array[:n] for array in self._carry),
            tuple(array[:n] for array in self._carry_after),
            self._mask[:n] if self._mask.shape[2] else None,
            None if self._present[:n].all() else self._present[:n],
        )

    def clear(self) -> None:
        """Empties the buffer but keeps the latest carry."""
        for stored in self._carry:
            stored[0] = stored[self.length]
        self._present[:] = True
        self.length = 0

    def _per_step(self) -> tuple[Array, ...]:
        scalars = (self._reward, self._terminated, self._truncated, self._mask)
        return (self._obs, self._next_obs, self._action, *scalars, *self._carry_after)

    def state_dict(self) -> State:
        n = self.length
        return {
            "length": n,
            "steps": [array[:n].copy() for array in self._per_step()],
            "carry": [array[: n + 1].copy() for array in self._carry],
            "absent": np.argwhere(~self._present[:n]),
        }

    def load_state_dict(self, state: State) -> None:
        n = self.length = int(state["length"])
        require(0 <= n < self.steps, f"it has {n} steps of {self.steps}")
        for array, saved in zip(self._per_step(), state["steps"], strict=True):
            require_like(saved, array[:n], "a column of the rollout")
            array[:n] = saved
        for array, saved in zip(self._carry, state["carry"], strict=True):
            require_like(saved, array[: n + 1], "a recurrent state")
            array[: n + 1] = saved
        self._present[:] = True
        self._present[tuple(np.asarray(state["absent"], np.int64).reshape(-1, 2).T)] = False

    def check(self, actions: ActionSpec) -> None:
        """Refuses what was loaded if a policy with these actions cannot have played it."""
        rollout = self.rollout()
        require_actions(rollout.action, actions)
        require_finite(rollout.reward, "a reward")
        if rollout.action_mask is not None:
            require_masks(rollout.action_mask)
