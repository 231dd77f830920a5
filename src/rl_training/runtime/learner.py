"""Learning from collected steps: records, stores, samples and updates when due."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

import numpy as np

from rl_training.algorithms.base import Algorithm, OffPolicyAlgorithm, OnPolicyAlgorithm
from rl_training.data import RolloutBuffer
from rl_training.data.rollout_buffer import RolloutBlock
from rl_training.data.segments import ReadBlock, Snapshot
from rl_training.errors import DivergenceError
from rl_training.runtime.cadence import Due, PhaseTimer
from rl_training.runtime.collector import Collected
from rl_training.types import Array, State, Step, UpdateResult


class Learner(ABC):
    """Takes the collected steps and updates the algorithm. Its state dict and its snapshot hold its whole state."""

    separate_replay: ClassVar[bool] = False  # whether ``snapshot`` is not empty; it need not be in every checkpoint

    def __init__(self, algorithm: Algorithm[Any, Any], timer: PhaseTimer) -> None:
        self._learning, self._timer = algorithm, timer
        self._last: UpdateResult | None = None
        self._restored_metrics: dict[str, float] = {}

    @property
    def updates(self) -> int:
        return self._learning.updates

    @property
    def metrics(self) -> dict[str, float]:
        """The metrics of the last update."""
        return self._restored_metrics if self._last is None else self._last.metrics

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """The maximum memory of the stored experience."""

    @abstractmethod
    def add(self, collected: Collected) -> None:
        """Adds one step of all environments."""

    @abstractmethod
    def add_block(self, block: Any, seen: Step | None, first: int) -> None:
        """Adds what a collector has recorded of several steps of its environments, the first of which has this index.
        ``seen`` are the steps themselves, if the algorithm has running statistics."""

    @abstractmethod
    def learn(self, env_steps: int, count: int) -> bool:
        """Makes the updates that are due after ``count`` new steps. Returns whether the policy has changed."""

    @abstractmethod
    def waits_for(self, env_steps: int) -> str:
        """What the first update waits for."""

    @abstractmethod
    def compile(self) -> None:
        """Compiles the algorithm's update."""

    @abstractmethod
    def discard(self, env_index: int) -> None:
        """Drops the incomplete items of an environment whose episode cannot continue."""

    def state_dict(self) -> State:
        return {"algorithm": self._learning.state_dict(), "metrics": dict(self.metrics)}

    def load_state_dict(self, state: State) -> None:
        self._learning.load_state_dict(state["algorithm"])
        self._last, self._restored_metrics = None, state["metrics"]

    def snapshot(self) -> Snapshot:
        """The stored experience, if it is large enough to be saved separately and less often."""
        return Snapshot({}, ())

    @property
    def snapshot_nbytes(self) -> int:
        """The most memory that a snapshot takes."""
        return 0

    def replay_defaults(self, saved: State) -> State:
        """A state of the stored experience with the keys of this version, for what a saved one lacks."""
        return {"rest": {}, "rings": {}}

    def load_replay(self, state: State | None, env_steps: int, read: ReadBlock) -> None:
        """Restores the stored experience, reading its blocks with ``read``; ``state`` is None if the checkpoint has none."""
        return


class OffPolicyLearner(Learner):
    """The learner of every algorithm that learns from replayed experience."""

    separate_replay = True

    def __init__(self, algorithm: OffPolicyAlgorithm[Any, Any], num_envs: int, timer: PhaseTimer) -> None:
        super().__init__(algorithm, timer)
        self.algorithm = algorithm
        self.replay = algorithm.make_replay(num_envs)
        self._num_envs = num_envs
        self._learn_from = algorithm.config.learning_starts
        self._due = Due(algorithm.config.train_freq)
        self._priorities: Array | None = None  # new priorities from the last update, if replay is prioritised

    @property
    def metrics(self) -> dict[str, float]:
        if self._last is None or self._priorities is None:
            return super().metrics
        mean, largest = float(self._priorities.mean()), float(self._priorities.max())
        return {**super().metrics, "priority_mean": mean, "priority_max": largest}

    @property
    def nbytes(self) -> int:
        return self.replay.nbytes

    def add(self, collected: Collected) -> None:
        self.replay.observe(collected.step, collected.carry)
        if self.algorithm.has_statistics:
            self.algorithm.observe(collected.step)
        self._timer.lap("rest")

    def add_block(self, block: Any, seen: Step | None, first: int) -> None:
        if block is not None:
            self.replay.add_block(block, first)
        if seen is not None:
            self.algorithm.observe_block(seen, first, self._num_envs)
        self._timer.lap("rest")

    def learn(self, env_steps: int, count: int) -> bool:
        replay, algorithm, timer = self.replay, self.algorithm, self._timer
        changed = algorithm.has_statistics
        if env_steps < self._learn_from or len(replay) < replay.batch_size:
            return changed
        self._due.add(count)
        updates = self._due.settle() * algorithm.config.gradient_steps
        for _ in range(updates):
            batch = replay.sample(env_steps)
            timer.lap("sampling")
            self._last = algorithm.update(batch, env_steps)
            timer.lap("update")
            if batch.indices is not None and self._last.priorities is not None:
                self._priorities = self._last.priorities.cpu().numpy()
                self._update_priorities(batch, self._priorities)
                timer.lap("sampling")
        return changed or updates > 0

    def _update_priorities(self, batch: Any, priorities: Array) -> None:
        try:
            self.replay.update_priorities(batch, priorities)
        except ValueError as error:
            if np.isfinite(priorities).all():
                raise
            raise DivergenceError("the TD errors that the replay takes as priorities are not finite") from error

    def waits_for(self, env_steps: int) -> str:
        if env_steps < self._learn_from:
            return f"updates begin at step {self._learn_from} (algo_kwargs.learning_starts)"
        if len(self.replay) < self.replay.batch_size:
            return (
                f"the replay has {len(self.replay)} of the {self.replay.batch_size} items of a batch (algo_kwargs.batch_size)"
            )
        return f"an update is due every {self.algorithm.config.train_freq} steps (algo_kwargs.train_freq)"

    def compile(self) -> None:
        self.algorithm.compile(self.replay.example())

    def discard(self, env_index: int) -> None:
        self.replay.discard(env_index)

    def state_dict(self) -> State:
        return {
            **super().state_dict(),
            "recorder": self.replay.open_state_dict(),
            "learn_from": self._learn_from,
            "owed": self._due.owed,
        }

    def load_state_dict(self, state: State) -> None:
        super().load_state_dict(state)
        self.replay.load_open_state_dict(state["recorder"])
        self._learn_from = state["learn_from"]
        self._due.owed = state["owed"]

    def snapshot(self) -> Snapshot:
        return self.replay.snapshot()

    @property
    def snapshot_nbytes(self) -> int:
        return self.replay.snapshot_nbytes

    def replay_defaults(self, saved: State) -> State:
        return {"rest": self.replay.rest_dict(whole=not saved["rings"]), "rings": {}}

    def load_replay(self, state: State | None, env_steps: int, read: ReadBlock) -> None:
        if state is None:  # start with an empty replay: no updates until it is as full as at the start of a run
            self._learn_from = env_steps + self.algorithm.config.learning_starts
        else:
            self.replay.load_snapshot(state, read)
        self.replay.check(self.algorithm.policy.spec)


class OnPolicyLearner(Learner):
    """The learner of every algorithm that learns from its own rollouts."""

    def __init__(self, algorithm: OnPolicyAlgorithm[Any], num_envs: int, timer: PhaseTimer) -> None:
        super().__init__(algorithm, timer)
        self.algorithm = algorithm
        spec, policy = algorithm.policy.spec, algorithm.policy
        self.rollout = RolloutBuffer(
            algorithm.config.n_steps,
            num_envs,
            spec.observation.shape,
            spec.action.shape,
            obs_dtype=spec.observation.dtype,
            action_dtype=spec.action.dtype,
            masked_actions=spec.action.masked_count,
            carry=policy.initial_carry(num_envs),
        )

    @property
    def nbytes(self) -> int:
        return self.rollout.nbytes

    def add(self, collected: Collected) -> None:
        self.rollout.add(collected.step, collected.carry, collected.next_carry, collected.action_mask)
        self._timer.lap("rest")

    def add_block(self, block: RolloutBlock, seen: Step | None, first: int) -> None:
        self.rollout.add_block(block, first)
        self._timer.lap("rest")

    def learn(self, env_steps: int, count: int) -> bool:
        if not self.rollout.full:
            return False
        self._last = self.algorithm.update(self.rollout.rollout(), env_steps)
        self.rollout.clear()
        self._timer.lap("update")
        return True

    def waits_for(self, env_steps: int) -> str:
        return f"an update takes {self.rollout.steps} steps of every environment (algo_kwargs.n_steps)"

    def compile(self) -> None:
        self.algorithm.compile(self.rollout.whole())

    def discard(self, env_index: int) -> None:
        self.rollout.end_episode(env_index)

    def state_dict(self) -> State:
        return {**super().state_dict(), "rollout": self.rollout.state_dict()}

    def load_state_dict(self, state: State) -> None:
        super().load_state_dict(state)
        self.rollout.load_state_dict(state["rollout"])
        self.rollout.check(self.algorithm.policy.spec.action)


def make_learner(algorithm: Algorithm[Any, Any], num_envs: int, timer: PhaseTimer) -> Learner:
    """The learner for the algorithm's family."""
    if isinstance(algorithm, OnPolicyAlgorithm):
        return OnPolicyLearner(algorithm, num_envs, timer)
    assert isinstance(algorithm, OffPolicyAlgorithm), f"{type(algorithm).__name__} belongs to neither family"
    return OffPolicyLearner(algorithm, num_envs, timer)
