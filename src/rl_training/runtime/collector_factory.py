"""Builds the collectors that a run's config asks for."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from rl_training.algorithms.policy import Policy
from rl_training.envs.factory import EnvFactory, GivenEnv
from rl_training.envs.pool import EnvPool
from rl_training.envs.vector_pool import VectorEnvPool
from rl_training.errors import ConfigError
from rl_training.experiment.config import TrainConfig
from rl_training.rng import TRAINING_EPISODES
from rl_training.runtime.cadence import PhaseTimer
from rl_training.runtime.collector import Collector
from rl_training.runtime.collector_group import CollectorGroup
from rl_training.runtime.collector_handles import Handle, InlineHandle, ProcessHandle
from rl_training.runtime.setup import make_pool
from rl_training.runtime.stretch_collector import Place, Setup
from rl_training.types import ObservationSpec


class CollectorFactory:
    """Makes the pool and the collectors of a run."""

    def __init__(self, config: TrainConfig, factory: EnvFactory | None, recorded: ObservationSpec | None) -> None:
        self._config = config
        count = config.collectors.count
        places = [Place(number, count, config.num_envs // count) for number in range(count)]
        self._setups = [Setup(config, factory, recorded, place) for place in places]

    def first_pool(self) -> EnvPool:
        """A pool from which the spaces can be read; ``make`` uses or closes it."""
        config, setup = self._config, self._setups[0]
        away = config.collectors.kind != "inline"
        if away and isinstance(setup.factory, GivenEnv):
            raise ConfigError(
                f"collectors.kind {config.collectors.kind} needs to create environments in other processes; pass a function "
                "that creates one instead of an environment"
            )
        expected = setup.place.envs
        if away:
            expected = 1
            pool = make_pool(config, setup.factory, TRAINING_EPISODES, 1, recorded=setup.recorded)
        else:
            pool = setup.make_pool(config.env_workers)
        problem = _vector_problem(config, pool) or (None if pool.num_envs == expected else _members(config, pool))
        if problem is not None:
            pool.close()
            raise ConfigError(problem)
        return pool

    def make(self, pool: EnvPool, policy: Policy, timer: PhaseTimer) -> Collector | CollectorGroup:
        config = self._config
        if config.collectors.step_by_step:
            return Collector(policy, pool, config.seed, timer)
        handles: Sequence[Handle]
        with contextlib.ExitStack() as leaving:
            if config.collectors.kind == "inline":
                leaving.callback(pool.close)
                pools = [pool]
                for setup in self._setups[1:]:
                    pools.append(setup.make_pool(config.env_workers))
                    leaving.callback(pools[-1].close)
                handles = [InlineHandle(setup, own, policy, timer) for setup, own in zip(self._setups, pools, strict=True)]
                leaving.pop_all()
            else:
                pool.close()
                handles = self._elsewhere(leaving)
            return CollectorGroup(config.collectors, handles, policy, timer, leaving.pop_all())

    def _elsewhere(self, leaving: contextlib.ExitStack) -> Sequence[Handle]:
        if self._config.collectors.kind == "process":
            return [ProcessHandle(setup) for setup in self._setups]
        from rl_training.runtime.ray_collectors import ray_handles

        return leaving.enter_context(ray_handles(self._setups))


def _vector_problem(config: TrainConfig, pool: EnvPool) -> str | None:
    if isinstance(pool, VectorEnvPool) and (config.collectors.kind != "inline" or config.collectors.count > 1):
        return (
            f"the vector environment {config.env_id} steps its members itself, so it cannot be shared out among collectors; "
            "pass a function that creates one environment, or set collectors.kind: inline and collectors.count: 1"
        )
    return None


def _members(config: TrainConfig, pool: EnvPool) -> str:
    return (
        f"num_envs is {config.num_envs}, but the vector environment {config.env_id} has {pool.num_envs} members; set "
        f"num_envs to {pool.num_envs}"
    )
