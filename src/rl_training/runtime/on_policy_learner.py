"""Learning on-policy: collect a rollout, learn from it, forget it."""

from __future__ import annotations

from rl_training.algorithms.base import OnPolicyAlgorithm
from rl_training.data import RolloutBuffer
from rl_training.runtime.cadence import PhaseTimer
from rl_training.runtime.learner import Learner
from rl_training.types import PolicyOutput, State, Step, UpdateResult


class OnPolicyLearner(Learner):
    """Rollout -> algorithm, for every algorithm that learns from what its policy has just done."""

    def __init__(self, algorithm: OnPolicyAlgorithm, num_envs: int, timer: PhaseTimer) -> None:
        self.algorithm = algorithm
        spec, policy = algorithm.policy.spec, algorithm.policy
        self.rollout = RolloutBuffer(
            algorithm.config.n_steps,
            num_envs,
            spec.observation.shape,
            spec.action.shape,
            obs_dtype=spec.observation.dtype,
            action_dtype=spec.action.dtype,
            masked_actions=spec.action.count if spec.action.masked else 0,
            carry=policy.initial_carry(num_envs),
        )
        self._timer = timer
        self.updates = 0
        self._last: UpdateResult | None = None
        self._restored_metrics: dict[str, float] = {}

    @property
    def nbytes(self) -> int:
        return self.rollout.nbytes

    @property
    def metrics(self) -> dict[str, float]:
        return self._restored_metrics if self._last is None else self._last.metrics

    def observe(self, step: Step, output: PolicyOutput, env_steps: int) -> None:
        next_carry = self.algorithm.policy.next_carry(output.carry, step)
        self.rollout.add(step, output.carry, next_carry, output.extras.get("action_mask"))
        self._timer.lap("rest")
        if self.rollout.full:
            self._last = self.algorithm.update(self.rollout.rollout(), env_steps)
            self.updates = self.algorithm.updates
            self.rollout.clear()
            self._timer.lap("update")

    def compile(self) -> None:
        self.algorithm.compile(self.rollout)

    def discard(self, env_index: int) -> None:
        self.rollout.end_episode(env_index)

    def state_dict(self) -> State:
        return {
            "algorithm": self.algorithm.state_dict(),
            "rollout": self.rollout.state_dict(),
            "metrics": dict(self.metrics),
        }

    def load_state_dict(self, state: State) -> None:
        self.algorithm.load_state_dict(state["algorithm"])
        self.updates = self.algorithm.updates
        self.rollout.load_state_dict(state["rollout"])
        self._last, self._restored_metrics = None, state["metrics"]
