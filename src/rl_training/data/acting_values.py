"""Initial priorities from the Q-values that a policy acted by (Horgan et al. 2018, arXiv:1803.00933, section 3)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rl_training.data.loaded import require_actions, require_finite, require_like
from rl_training.types import ActingValues, Array, Carry, SpaceSpec, State, Step

#: targets from rewards, discounts and the values to bootstrap from
Targets = Callable[[Array, Array, Array], Array]


def one_step_targets(reward: Array, discount: Array, value: Array) -> Array:
    """The targets of Q-learning."""
    target: Array = reward + discount * value
    return target


class HeldStep:
    """Holds each step back until the policy has acted on its next observation, because only then its value is known."""

    def __init__(self) -> None:
        self._held: tuple[Step, Carry, NDArray[np.float32]] | None = None  # with the Q-values of the actions

    def exchange(self, step: Step, carry: Carry, q_values: Array) -> tuple[Step, Carry] | None:
        """The step before this one with its values, and its carry. ``q_values`` (env, action) are those of this step."""
        before, chosen = self._held, q_values[np.arange(len(q_values)), step.action].astype(np.float32)
        self._held = (step, carry, chosen)
        if before is None:
            return None
        held, its_carry, its_chosen = before
        allowed = q_values if held.next_action_mask is None else np.where(held.next_action_mask, q_values, -np.inf)
        after = allowed.max(axis=1)  # of another episode where this one has ended
        after = np.where(held.truncated, np.nan, after)
        values = ActingValues(its_chosen, np.where(held.terminated, 0.0, after).astype(np.float32))
        return held._replace(values=values), its_carry

    def discard(self, env_index: int) -> None:
        """Drops the step of an environment whose episode cannot continue."""
        if self._held is not None:
            step, carry, chosen = self._held
            gone = np.arange(len(step.reward)) == env_index
            present = ~gone if step.present is None else step.present & ~gone
            reward, terminated = np.where(gone, np.float32(0.0), step.reward), step.terminated | gone
            self._held = step._replace(reward=reward, terminated=terminated, present=present), carry, chosen

    def state_dict(self) -> State:
        if self._held is None:
            return {"step": None, "carry": [], "chosen": None}
        step, carry, chosen = self._held
        return {"step": step._replace(values=None)._asdict(), "carry": list(carry), "chosen": chosen}

    def load_state_dict(self, state: State) -> None:
        if state["step"] is None:
            self._held = None
        else:
            arrays: dict[str, Any] = {
                name: None if value is None else np.array(value) for name, value in state["step"].items()
            }
            self._held = Step(**arrays), tuple(state["carry"]), np.array(state["chosen"])

    def check(self, spec: SpaceSpec) -> None:
        """Refuses a step that was loaded if it cannot come from environments with this spec."""
        if self._held is not None:
            step, _, chosen = self._held
            require_like(step.action, np.empty((len(chosen), *spec.action.shape), spec.action.dtype), "an action")
            require_actions(step.action, spec.action)
            require_finite(step.reward, "a reward")
