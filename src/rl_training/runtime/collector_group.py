"""Collecting in stretches: every collector plays several steps with the same weights, here or elsewhere.

The trainer holds the authoritative state: that of each collector after the last stretch that was learned from. If a collector
dies, a new one starts from that state with the same weights and the same call, so its death leaves no trace.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Sequence

import numpy as np

from rl_training.algorithms.policy import Policy
from rl_training.envs.boundary import StepInterrupted
from rl_training.envs.pool import EnvPool, Episode
from rl_training.errors import CollectorError
from rl_training.experiment.collectors import CollectorsConfig
from rl_training.models.encoder import on_cpu
from rl_training.runtime.cadence import PhaseTimer
from rl_training.runtime.collector import acting_copy
from rl_training.runtime.collector_handles import CollectorLost, Handle, InlineHandle
from rl_training.runtime.flat_weights import FlatWeights
from rl_training.runtime.learner import Learner
from rl_training.runtime.signals import StopRequest
from rl_training.runtime.stretch_collector import Answer, Call, unpacked_state
from rl_training.types import State

#: If a collector dies more often than this in one stretch, restarting it does not help, and the run ends.
MOST_DEATHS = 3
#: The number of recent stretches in the statistics of how old their weights were.
RECENT_STRETCHES = 100
#: Seconds between two checks for a request to stop.
TICK = 0.1


class CollectorGroup:
    """The collectors of a run, behind the interface of a single ``Collector``."""

    def __init__(
        self,
        config: CollectorsConfig,
        handles: Sequence[Handle],
        policy: Policy,
        timer: PhaseTimer,
        leaving: contextlib.ExitStack,
    ) -> None:
        """``leaving`` is closed after the collectors."""
        self._exit = leaving
        self._config, self._handles, self._timer = config, handles, timer
        self._learned = policy
        self._copy = None if on_cpu(policy.network) else acting_copy(policy)
        self._states: list[State | bytes | None] = [None] * len(handles)  # after the last stretch that was taken in
        self._calls: list[Call | None] = [None] * len(handles)  # that are not answered yet
        self._deaths = [0] * len(handles)  # in the stretch under way
        self._flat = FlatWeights(policy.network)
        self._weights = b""  # the weights of the last broadcast
        self._version = 0
        self._turn = 0
        self._behind = 0  # stretches since the last broadcast
        self._started = False
        self._failed = False  # whether the last ``advance`` did not finish
        self._again = False  # whether the next stretch repeats one that was interrupted, with the same weights
        self._learned_updates = 0  # updates that the learner has made
        self._updates = 0  # ... and had made at the last broadcast
        self._made_at = [0] * len(handles)  # ... and at the one whose weights the call of each collector has
        self._lags: deque[int] = deque(maxlen=RECENT_STRETCHES)
        self.restarts = 0

    # ------------------------------------------------------------------------------------------- as a collector

    @property
    def policy(self) -> Policy:
        """The policy with the learner's weights, on the CPU."""
        if self._copy is None:
            return self._learned
        self._copy.take_weights(self._learned)
        return self._copy

    def pools(self) -> list[EnvPool]:
        """The pools of the collectors in this process."""
        return [handle.pool for handle in self._handles if isinstance(handle, InlineHandle)]

    def start(self) -> None:
        """Does nothing: a collector starts with its first call."""

    def refresh(self) -> None:
        """Does nothing: the next call sends the learner's weights."""

    def advance(self, env_steps: int, learner: Learner, stop: StopRequest) -> tuple[int, list[Episode]]:
        """Takes in a stretch of every collector, or in free mode of one. Returns the number of steps, and the episodes that
        have ended."""
        self._failed = True
        self._learned_updates = learner.updates
        self._begin(env_steps)
        answers = self._first_answer(stop) if self._config.mode == "free" else self._all_answers(stop)
        count = 0
        episodes: list[Episode] = []
        for number, answer in answers.items():
            for env in self._handles[number].diverged:
                learner.discard(env)
            self._handles[number].diverged = []
            learner.add_block(answer.block, answer.seen, self._handles[number].setup.place.first)
            self._states[number], self._calls[number], self._deaths[number] = answer.state, None, 0
            count += answer.env_steps
            self._lags.append(learner.updates - self._made_at[number])
            episodes += answer.episodes
        if self._config.mode == "pipelined":
            self._ask_all(env_steps + count)
        self._failed = False
        return count, episodes

    def time_metrics(self) -> dict[str, float]:
        """How many updates old the weights of recent stretches were, how often collectors were restarted, and the share of
        time that the trainer waited for them."""
        metrics: dict[str, float] = {"time/collector_restarts": self.restarts}
        metrics["time/waiting_share"] = round(self._timer.seconds["waiting"] / max(self._timer.total, 1e-9), 4)
        if self._lags:
            metrics["time/weights_lag_mean"] = round(float(np.mean(self._lags)), 2)
            metrics["time/weights_lag_p95"] = float(np.percentile(self._lags, 95))
        return metrics

    def _begin(self, env_steps: int) -> None:
        if not self._started:
            self._started = True
            for handle, state in zip(self._handles, self._states, strict=True):
                handle.start(state)
        self._ask_all(env_steps)

    # ----------------------------------------------------------------------------------------- asking and waiting

    def _ask_all(self, env_steps: int) -> None:
        """Calls all idle collectors, with the current weights if a broadcast is due."""
        idle = [number for number, call in enumerate(self._calls) if call is None]
        if not idle:
            return
        if not self._again:
            if self._behind == 0:
                self._weights = self._flat.to_bytes()
                self._version, self._updates = self._version + 1, self._learned_updates
            self._behind = (self._behind + len(idle)) % (self._config.broadcast_interval * len(self._handles))
        self._again = False
        for number in idle:
            self._ask(number, Call(env_steps, self._config.stretch, self._version, None))

    def _ask(self, number: int, call: Call) -> None:
        handle = self._handles[number]
        known, handle.weights = handle.weights == self._version, self._version
        call = call._replace(version=self._version, weights=None if known else self._weights)
        self._calls[number], self._made_at[number] = call, self._updates
        handle.ask(call)

    def _all_answers(self, stop: StopRequest) -> dict[int, Answer]:
        """A round is taken in whole or not at all."""
        answers: dict[int, Answer] = {}
        while len(answers) < len(self._handles):
            waiting = [number for number in range(len(self._handles)) if number not in answers]
            answers |= self._answers(waiting, stop, len(waiting))
        return {number: answers[number] for number in sorted(answers)}

    def _first_answer(self, stop: StopRequest) -> dict[int, Answer]:
        """One answer; if there are several, that of the collector whose turn it is."""
        while True:
            turns = [(self._turn + k) % len(self._handles) for k in range(len(self._handles))]
            for number, answer in self._answers(turns, stop, 1).items():
                self._turn = number + 1
                return {number: answer}

    def _answers(self, numbers: Sequence[int], stop: StopRequest, most: int) -> dict[int, Answer]:
        """The answers that arrive within ``TICK`` seconds, at most this many."""
        handles = [self._handles[number] for number in numbers]
        self._timer.lap("rest")
        ready = type(handles[0]).ready(handles, most, TICK)
        if not isinstance(handles[0], InlineHandle):
            self._timer.lap("waiting")
            if stop:
                raise StepInterrupted  # stretches under way are repeated when the run is resumed
        answers: dict[int, Answer] = {}
        for number in numbers:
            if self._handles[number] in ready and len(answers) < most:
                answer = self._answer(number, stop)
                if answer is not None:
                    answers[number] = answer
        return answers

    def _answer(self, number: int, stop: StopRequest) -> Answer | None:
        """The answer of a collector that is ready; None if it has died and was asked again."""
        try:
            return self._handles[number].answer()
        except CollectorLost as lost:
            if stop:
                raise StepInterrupted from lost  # probably killed by the same signal
            self._restart(number, lost)
            return None

    def _restart(self, number: int, lost: CollectorLost) -> None:
        self._deaths[number] += 1
        self.restarts += 1
        if self._deaths[number] > MOST_DEATHS:
            envs = self._handles[number].setup.place
            raise CollectorError(
                f"collector {number} (environments {envs.first} to {envs.first + envs.envs - 1}) has died "
                f"{self._deaths[number]} times in one stretch, the last time because {lost}"
            )
        call = self._calls[number]
        assert call is not None
        self._handles[number].start(self._states[number])
        self._ask(number, call)

    # ------------------------------------------------------------------------------------------------- state

    def recover(self) -> list[int]:
        """After a fault, restarts all collectors from the last stretch that was taken in."""
        if self._failed and self._started and any(call is not None for call in self._calls):
            self._again = self._keeps_weights()
            self._let_go()
        return []

    def _let_go(self) -> None:
        """Drops the calls under way; collectors are restarted at the next call."""
        self._calls = [None] * len(self._handles)
        self._deaths = [0] * len(self._handles)
        self._started = False

    def _keeps_weights(self) -> bool:
        """Whether calls under way use weights that the learner may have replaced since."""
        return self._config.mode != "free" and any(call is not None for call in self._calls)

    def state_dict(self) -> State:
        again = self._again or self._keeps_weights()
        keeps = again or (self._behind != 0 and self._config.mode != "free")
        return {
            "states": [None if state is None else unpacked_state(state) for state in self._states],
            "weights": self._flat.arrays(self._weights) if keeps else None,
            "behind": self._behind,
            "again": again,
        }

    def load_state_dict(self, state: State) -> list[int]:
        self._states, self._again = list(state["states"]), state["again"]
        self._behind = 0 if state["weights"] is None else state["behind"]
        self._let_go()
        if state["weights"] is not None:
            self._weights = self._flat.from_arrays(state["weights"])
            self._version += 1
        return []

    def close(self) -> None:
        for handle in self._handles:
            handle.close()
        self._exit.close()
