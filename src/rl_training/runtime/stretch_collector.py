"""A collector that plays stretches of steps with the same weights, in this process, in another or on another machine.

It owns its environments, a copy of the policy, its carry, its recorder and its random stream. All of these are in the state
that goes with every answer, so that a collector which is made from that state elsewhere continues exactly.
"""

from __future__ import annotations

import hashlib
import pickle
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import cloudpickle
import numpy as np
import torch

from rl_training import errors
from rl_training.algorithms.base import OffPolicyAlgorithm, init_generator
from rl_training.algorithms.config import OffPolicyConfig
from rl_training.algorithms.epsilon_greedy import EpsilonPolicy
from rl_training.algorithms.policy import Policy
from rl_training.data.acting_values import HeldStep
from rl_training.data.blocks import stacked
from rl_training.data.replay import clipped
from rl_training.data.rollout_buffer import RolloutStep, rollout_block
from rl_training.envs.factory import EnvFactory
from rl_training.envs.pool import EnvPool, Episode
from rl_training.errors import EnvironmentFault, RLTrainingError
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.registry import get_algorithm
from rl_training.models.normalization import ObservationNormalizer
from rl_training.rng import TRAINING_EPISODES
from rl_training.runtime.cadence import PhaseTimer, cpu_threads
from rl_training.runtime.collector import Collected, Collector
from rl_training.runtime.flat_weights import FlatWeights
from rl_training.runtime.setup import make_pool
from rl_training.tracebacks import WorkerError, frames_of
from rl_training.types import ObservationSpec, State, Step


class Place(NamedTuple):
    """The place of a collector in its run."""

    number: int
    collectors: int  # in the run
    envs: int  # number of environments of this collector

    @property
    def first(self) -> int:
        """The index of its first environment in the run."""
        return self.number * self.envs

    @property
    def total(self) -> int:
        """The number of environments of the whole run."""
        return self.collectors * self.envs


class Setup(NamedTuple):
    """Everything needed to create a collector."""

    config: TrainConfig
    factory: EnvFactory | None
    recorded: ObservationSpec | None
    place: Place

    def to_bytes(self) -> bytes:
        """For another process of this run. Unlike pickle, cloudpickle also sends lambdas and closures."""
        try:
            return cloudpickle.dumps(self)  # type: ignore[no-any-return]
        except Exception as error:  # whatever the user's own objects raise
            raise errors.ConfigError(
                f"the environment or the network cannot be sent to another process ({errors.described(error)}); give it by "
                "its name, or set collectors.kind: inline"
            ) from error

    def make_pool(self, workers: str = "inline") -> EnvPool:
        place = self.place
        return make_pool(
            self.config, self.factory, TRAINING_EPISODES, place.envs, workers, first=place.first, recorded=self.recorded
        )


class Call(NamedTuple):
    """A request for a stretch: the step of the run at which it starts, its length and its weights."""

    env_steps: int
    steps: int
    version: int  # number of the weights
    weights: bytes | None  # from ``FlatWeights``; None: the collector already has them


class Answer(NamedTuple):
    """The results of a stretch, and the state of the collector after it."""

    block: Any  # what the recorder made of it; None if nothing is complete
    seen: Step | None  # the steps themselves, for an algorithm with running statistics
    env_steps: int  # over all environments of the collector
    episodes: list[Episode]
    state: State | bytes  # bytes from another process: ``packed_state``


def packed_state(state: State | bytes) -> bytes:
    """A collector's state as bytes for another process. The trainer seldom has to unpack it."""
    return state if isinstance(state, bytes) else pickle.dumps(state, pickle.HIGHEST_PROTOCOL)


def unpacked_state(state: State | bytes) -> State:
    """The inverse of ``packed_state``."""
    return cloudpickle.loads(state) if isinstance(state, bytes) else state


class StretchCollector:
    """Plays stretches. ``policy`` is its own; its weights come with the calls."""

    def __init__(self, setup: Setup, pool: EnvPool, policy: Policy, timer: PhaseTimer) -> None:
        config, place = setup.config, setup.place
        algorithm = get_algorithm(config.algo)
        policy.place = place.first, place.total
        stream = "explore" if place.collectors == 1 else f"explore/{place.number}"
        self.pool, self._policy, self._place = pool, policy, place
        self._collector = Collector(policy, pool, config.seed, timer, stream)
        self._recorder = None
        self._make_block: Callable[[Any, int | None], Any] = rollout_block
        self._channels: int | None = None
        self._clip: float | None = None
        self._keeps_steps = False
        if issubclass(algorithm, OffPolicyAlgorithm):
            settings = config.algo_kwargs
            assert isinstance(settings, OffPolicyConfig)
            self._recorder = algorithm.make_recorder(settings, policy, place.envs)
            self._make_block = self._recorder.block
            self._channels = pool.spec.observation.frame_channels(settings.frame_stack)
            self._clip = settings.clip_reward
            normalizes = any(isinstance(module, ObservationNormalizer) for module in policy.network.modules())
            self._keeps_steps = normalizes or settings.normalize_rewards
        self._held = HeldStep() if config.collectors.actor_priorities else None
        if self._held is not None:
            assert isinstance(policy, EpsilonPolicy)
            policy.passes_q_values = True
        self._weights = FlatWeights(policy.network)
        self._version = -1

    def start(self, state: State | bytes | None) -> list[int]:
        """Starts the first episodes, or continues from a state. Returns the places of the environments that could not be
        restored and started a new episode."""
        if state is None:
            self._collector.start()
            return []
        state = unpacked_state(state)
        diverged = self._collector.load_state_dict(state)
        if self._recorder is not None:
            self._recorder.load_state_dict(state["recorder"])
            self._recorder.check(self._policy.spec)
            if self._held is not None:
                self._held.load_state_dict(state["held"])
                self._held.check(self._policy.spec)
            for env in diverged:
                self._recorder.discard(env)
                if self._held is not None:
                    self._held.discard(env)
        return [self._place.first + env for env in diverged]

    def play(self, call: Call) -> Answer:
        """Plays a stretch."""
        if call.weights is not None and call.version != self._version:
            self._weights.load(call.weights)
            self._version = call.version
        items: list[Any] = []
        steps: list[Step] = []
        episodes: list[Episode] = []
        count = 0
        for _ in range(call.steps):
            collected = self._collector.collect(call.env_steps + count * self._place.collectors)
            step = collected.step
            count += len(step.envs)
            episodes += collected.finished
            if self._keeps_steps:
                steps.append(step)
            if self._recorder is None:
                items.append(RolloutStep(step, collected.carry, collected.next_carry, collected.action_mask))
            else:
                recorded = self._record(clipped(step, self._clip), collected)
                if recorded is not None:
                    items.append(recorded)
        seen = stacked(steps) if steps else None
        return Answer(self._make_block(items, self._channels) if items else None, seen, count, episodes, self.state_dict())

    def _record(self, step: Step, collected: Collected) -> Any:
        """The items that this step completes (with actor priorities, those of the step before); None if there are none."""
        assert self._recorder is not None
        if self._held is None:
            return self._recorder.record(step, collected.carry)
        assert collected.q_values is not None
        before = self._held.exchange(step, collected.carry, collected.q_values)
        return None if before is None else self._recorder.record(*before)

    def state_dict(self) -> State:
        recorder = {} if self._recorder is None else self._recorder.state_dict()
        held = {} if self._held is None else self._held.state_dict()
        return {**self._collector.state_dict(), "recorder": recorder, "held": held}

    def close(self) -> None:
        self._collector.close()


# ------------------------------------------------------------------------------------------------- in another process


class Reply(NamedTuple):
    """An answer or an error on its way between two processes, as plain data and arrays."""

    answer: Answer | None
    diverged: list[int]
    warnings: list[str]
    arithmetic: str | None  # only in the first reply: a hash of how this CPU rounds
    error: dict[str, Any] | None


class CollectorServer:
    """A collector in a process of its own, behind two calls that never raise: errors come back as plain data."""

    def __init__(self, content: bytes, state: bytes | None) -> None:
        self._state, self._content = state, content
        self._collector: StretchCollector | None = None
        self._threads = 1

    def play(self, call: Call) -> Reply:
        diverged: list[int] = []
        rounding = arithmetic() if self._collector is None else None
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            answer, error = None, None
            try:
                diverged = self._begin()
                assert self._collector is not None
                with cpu_threads(self._threads):
                    answer = self._collector.play(call)
                    answer = answer._replace(state=packed_state(answer.state))
            except Exception as raised:
                error = error_data(raised)
        return Reply(answer, diverged, [str(one.message) for one in caught], rounding, error)

    def _begin(self) -> list[int]:
        """Makes the collector at the first call, so that whatever fails comes back with it."""
        if self._collector is not None:
            return []
        setup: Setup = cloudpickle.loads(self._content)
        config = setup.config
        self._threads = config.threads
        pool = setup.make_pool()
        with cpu_threads(self._threads):
            policy = get_algorithm(config.algo).make_policy(config.algo_kwargs, pool.spec, init_generator(config.seed))
            self._collector = StretchCollector(setup, pool, policy, PhaseTimer())
            return self._collector.start(self._state)

    def close(self) -> None:
        if self._collector is not None:
            self._collector.close()


def error_data(error: Exception) -> dict[str, Any]:
    """An exception as plain data."""
    cause = error.__cause__
    frames = frames_of(cause if isinstance(error, EnvironmentFault) and cause is not None else error)
    data: dict[str, Any] = {"type": type(error).__name__, "text": str(error), "frames": frames}
    if isinstance(error, EnvironmentFault):
        data["text"] = "" if cause is None else errors.described(cause)
        data["fault"] = {
            name: getattr(error, name) for name in ("problem", "env_id", "env_index", "episode_seed", "actions", "step")
        }
    elif not isinstance(error, RLTrainingError):
        data["text"] = errors.described(error)
    return data


def raise_again(data: dict[str, Any]) -> None:
    """Raises an exception from its data."""
    if "fault" in data:
        raise EnvironmentFault(**data["fault"]) from WorkerError(data["text"], data["frames"])
    known = getattr(errors, data["type"], None)
    if isinstance(known, type) and issubclass(known, RLTrainingError) and known is not errors.MissingExtraError:
        raise known(data["text"]) from WorkerError(data["text"], data["frames"])
    raise errors.CollectorError(f"a collector failed: {data['text']}") from WorkerError(data["text"], data["frames"])


def arithmetic() -> str:
    """A hash of what this CPU computes in a fixed pass through a small network. It is the same for CPUs that round alike."""
    generator = torch.Generator().manual_seed(0)
    x, first, second = (torch.rand(shape, generator=generator) for shape in ((4, 64), (64, 64), (64, 8)))
    with torch.no_grad(), cpu_threads(1):
        by_torch = (torch.tanh(x @ first) @ second).exp().numpy()
        by_numpy = np.exp(np.tanh(x.numpy() @ first.numpy()) @ second.numpy() / 64)
    return hashlib.sha256(by_torch.tobytes() + by_numpy.tobytes()).hexdigest()[:16]
