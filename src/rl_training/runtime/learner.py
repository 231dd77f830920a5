"""Learning from what the loop collects: record, store, sample, update, each when it is due."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

from rl_training.algorithms.base import Buffer, OffPolicyAlgorithm
from rl_training.rng import RandomStreams
from rl_training.runtime.cadence import Due, PhaseTimer
from rl_training.types import PolicyOutput, State, Step, UpdateResult


class Learner(ABC):
    """What the loop hands its steps to. All that it knows is in its states."""

    updates: int
    separate_replay: ClassVar[bool] = False  # whether ``replay_state`` holds something, which need not be saved each time

    @property
    @abstractmethod
    def metrics(self) -> dict[str, float]:
        """What the last update measured."""

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """The memory that the stored experience takes, at the most."""

    @abstractmethod
    def observe(self, step: Step, output: PolicyOutput, env_steps: int) -> None:
        """Takes in one step of all environments, with what the policy gave for it (the carry in it is the one after the
        step, not yet reset), and makes the updates that it makes due."""

    @abstractmethod
    def compile(self) -> None:
        """Makes the algorithm's update a compiled graph."""

    @abstractmethod
    def discard(self, env_index: int) -> None:
        """Forgets the open items of an environment whose episode cannot go on."""

    @abstractmethod
    def state_dict(self) -> State: ...

    @abstractmethod
    def load_state_dict(self, state: State) -> None: ...

    def replay_state(self) -> State | None:
        """The stored experience, if it is large enough to be saved on its own and less often."""
        return None

    def load_replay_state(self, state: State | None, env_steps: int) -> None:
        """Restores it; None: it was not saved at this step."""
        return


class OffPolicyLearner(Learner):
    """Recorder -> buffer -> algorithm, for every algorithm that learns from replay."""

    separate_replay = True

    def __init__(self, algorithm: OffPolicyAlgorithm, num_envs: int, streams: RandomStreams, timer: PhaseTimer) -> None:
        self.algorithm = algorithm
        self.recorder = algorithm.make_recorder(num_envs)
        self.buffer: Buffer = algorithm.make_buffer(num_envs, streams)
        self.updates = 0
        self._learn_from = algorithm.config.learning_starts
        self._due = Due(algorithm.config.train_freq)
        self._timer = timer
        self._last: UpdateResult | None = None
        self._restored_metrics: dict[str, float] = {}

    @property
    def nbytes(self) -> int:
        return self.buffer.nbytes

    @property
    def metrics(self) -> dict[str, float]:
        return self._restored_metrics if self._last is None else self._last.metrics

    def observe(self, step: Step, output: PolicyOutput, env_steps: int) -> None:
        limit = self.algorithm.config.clip_reward
        if limit is not None:
            step = step._replace(reward=step.reward.clip(-limit, limit))
        items = self.recorder.record(step, output.carry)
        if items is not None:
            self.buffer.add(items)
        self._timer.lap("rest")
        config = self.algorithm.config
        if env_steps < self._learn_from or len(self.buffer) < config.batch_size:
            return
        self._due.add(len(step.reward))
        for _ in range(self._due.settle() * config.gradient_steps):
            batch = self.algorithm.sample(self.buffer, env_steps)
            self._timer.lap("sampling")
            self._last = self.algorithm.update(batch, env_steps)
            self.updates += 1
            self._timer.lap("update")
            if batch.indices is not None and self._last.priorities is not None:
                self.buffer.update_priorities(batch.indices, self._last.priorities.cpu().numpy())
                self._timer.lap("sampling")

    def compile(self) -> None:
        self.algorithm.compile(self.buffer)

    def discard(self, env_index: int) -> None:
        self.recorder.discard(env_index)
        self.buffer.discard(env_index)

    def state_dict(self) -> State:
        return {
            "algorithm": self.algorithm.state_dict(),
            "recorder": self.recorder.state_dict(),
            "updates": self.updates,
            "learn_from": self._learn_from,
            "owed": self._due.owed,
            "metrics": dict(self.metrics),
        }

    def load_state_dict(self, state: State) -> None:
        self.algorithm.load_state_dict(state["algorithm"])
        self.recorder.load_state_dict(state["recorder"])
        self.updates = state["updates"]
        self._learn_from = state["learn_from"]
        self._due.owed = state["owed"]
        self._last, self._restored_metrics = None, state["metrics"]

    def replay_state(self) -> State:
        return self.buffer.state_dict()

    def load_replay_state(self, state: State | None, env_steps: int) -> None:
        if state is None:  # learn nothing until the empty replay has been filled as far as at the start of a run
            self._learn_from = env_steps + self.algorithm.config.learning_starts
        else:
            self.buffer.load_state_dict(state)
