"""Collecting experience: a policy acts in a pool of environments, one step at a time."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rl_training.algorithms.policy import Policy
from rl_training.data.loaded import require_actions, require_like
from rl_training.envs.pool import EnvPool, Episode
from rl_training.models.encoder import on_cpu
from rl_training.rng import RandomStreams
from rl_training.runtime.cadence import PhaseTimer
from rl_training.types import Array, Carry, PolicyOutput, State, Step

if TYPE_CHECKING:
    from rl_training.runtime.learner import Learner
    from rl_training.runtime.signals import StopRequest


class Collected(NamedTuple):
    """One step of all environments, with the policy's carry after it."""

    step: Step
    carry: Carry  # after the step, not yet reset
    next_carry: Carry  # the carry to act on next: with the reward, and reset where an episode ended
    action_mask: NDArray[np.bool_] | None  # the actions allowed at ``step.obs``, if the policy returns them
    finished: list[Episode]
    q_values: Array | None = None  # the Q-values that the policy acted on, if it returns them


class Collector:
    """Owns the pool, the carry and the exploration stream. If the learner's weights are on another device, the collector acts
    with a copy on the CPU, which ``refresh`` updates."""

    def __init__(self, policy: Policy, pool: EnvPool, seed: int, timer: PhaseTimer, stream: str = "explore") -> None:
        self.pool, self._stream = pool, stream
        self._learned = policy
        self.policy = policy if on_cpu(policy.network) else acting_copy(policy)
        self.streams = RandomStreams(seed)
        self._timer = timer
        self._carry = policy.initial_carry(pool.num_envs)
        self._pending: PolicyOutput | None = None
        self._failed = False  # whether the last step failed: some environments may be one step ahead of the others

    def start(self) -> None:
        """Starts the first episode of every environment."""
        self.pool.reset()

    def collect(self, env_steps: int) -> Collected:
        """Acts once and steps every environment."""
        if self._pending is None:
            pool = self.pool
            self._pending = self.policy.act(
                pool.obs,
                self._carry,
                rng=self.streams[self._stream],
                env_steps=env_steps,
                action_mask=pool.action_mask,
                learning=True,
            )
            self._timer.lap("acting")
        output = self._pending  # kept until the step has succeeded, so that a run saved after a fault repeats it
        self._failed = True
        step, finished = self.pool.step(output.action)
        self._failed = False
        self._pending = None
        self._timer.lap("environment")
        self._carry = self.policy.next_carry(output.carry, step)
        extras = output.extras
        return Collected(step, output.carry, self._carry, extras.get("action_mask"), finished, extras.get("q_values"))

    def advance(self, env_steps: int, learner: Learner, stop: StopRequest) -> tuple[int, list[Episode]]:
        """Collects one step of every environment and gives it to the learner. Returns the number of steps, and the episodes
        that have ended."""
        collected = self.collect(env_steps)
        learner.add(collected)
        return len(collected.step.envs), collected.finished

    def pools(self) -> list[EnvPool]:
        return [self.pool]

    def time_metrics(self) -> dict[str, float]:
        """Metrics that may differ when a run is repeated; this collector has none."""
        return {}

    def recover(self) -> list[int]:
        """After a failed step, restores all environments to their state before it. Returns those that could not be restored
        and started a new episode."""
        return self.load_state_dict(self.state_dict()) if self._failed else []

    def refresh(self) -> None:
        """Copies the learner's weights if they are on another device."""
        if self.policy is not self._learned:
            self.policy.take_weights(self._learned)

    def state_dict(self) -> State:
        pending = self._pending
        return {
            "pool": self.pool.state_dict(),
            "carry": list(self._carry),
            "pending": None
            if pending is None
            else {"action": pending.action, "carry": list(pending.carry), "extras": dict(pending.extras)},
            "streams": self.streams.state_dict(),
        }

    def load_state_dict(self, state: State) -> list[int]:
        """Restores the saved state; returns the environments that could not be restored and started a new episode."""
        self.refresh()
        self.streams.load_state_dict(state["streams"])
        self._carry = tuple(state["carry"])
        pending = state["pending"]
        self._pending = None
        if pending is not None:
            spec = self.policy.spec.action
            require_like(pending["action"], np.empty((self.pool.num_envs, *spec.shape), spec.dtype), "the action to repeat")
            require_actions(pending["action"], spec)
            self._pending = PolicyOutput(pending["action"], tuple(pending["carry"]), pending["extras"])
        diverged = self.pool.load_state_dict(state["pool"])
        if diverged:
            self._pending = None
            ended = np.isin(np.arange(self.pool.num_envs), diverged)
            self._carry = self.policy.reset_carry(self._carry, ended)
        self._failed = False
        return diverged

    def close(self) -> None:
        self.pool.close()


def acting_copy(policy: Policy) -> Policy:
    """A copy of the policy with its own weights on the CPU."""
    copied = copy.deepcopy(policy)
    for network in copied.networks:
        network.to("cpu")
    copied.parameters_moved()
    return copied
