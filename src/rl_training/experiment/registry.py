"""Every algorithm, once. Entries are ``module:attribute`` strings, so that listing them imports no torch."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rl_training.errors import ConfigError, SpaceError, did_you_mean
from rl_training.types import SpaceSpec

if TYPE_CHECKING:
    from rl_training.algorithms.base import Algorithm


@dataclass(frozen=True)
class AlgorithmEntry:
    """Where an algorithm is, what it is called in Python, and which spaces it can use."""

    name: str
    class_name: str
    algorithm: str
    trainer: str
    observations: tuple[str, ...]
    actions: tuple[str, ...]
    summary: str

    def load(self) -> type[Algorithm]:
        loaded: type[Algorithm] = _load(self.algorithm)
        return loaded

    def load_trainer(self) -> Any:
        return _load(self.trainer)

    def fits(self, spec: SpaceSpec) -> bool:
        return spec.observation.kind in self.observations and spec.action.kind in self.actions

    def require_fit(self, spec: SpaceSpec, env_id: str) -> None:
        """Refuses an environment that the algorithm cannot use, and names the algorithms that can."""
        if self.fits(spec):
            return
        others = [entry.name for entry in REGISTRY.values() if entry.fits(spec)]
        instead = f"use one of: {', '.join(others)}" if others else "no algorithm here can use it"
        raise SpaceError(
            f"{self.name} takes {' or '.join(self.observations)} observations and {' or '.join(self.actions)} actions, but "
            f"{env_id} has {spec.observation.kind} observations and {spec.action.kind} actions; {instead}"
        )


def _load(path: str) -> Any:
    module, _, attribute = path.partition(":")
    return getattr(importlib.import_module(module), attribute)


_ENTRIES = (
    AlgorithmEntry(
        name="dqn",
        class_name="DQN",
        algorithm="rl_training.algorithms.dqn:DQN",
        trainer="rl_training.runtime.dqn_trainer:train_dqn",
        observations=("vector", "image"),
        actions=("discrete",),
        summary="deep Q-learning; double, dueling, noisy, n-step and prioritised as options",
    ),
    AlgorithmEntry(
        name="qr_dqn",
        class_name="QRDQN",
        algorithm="rl_training.algorithms.qr_dqn:QRDQN",
        trainer="rl_training.runtime.dqn_trainer:train_dqn",
        observations=("vector", "image"),
        actions=("discrete",),
        summary="quantile regression of the return, with DQN's options",
    ),
    AlgorithmEntry(
        name="c51",
        class_name="C51",
        algorithm="rl_training.algorithms.c51:C51",
        trainer="rl_training.runtime.dqn_trainer:train_dqn",
        observations=("vector", "image"),
        actions=("discrete",),
        summary="a categorical distribution of the return, with DQN's options; all of them together are Rainbow",
    ),
    AlgorithmEntry(
        name="drqn",
        class_name="DRQN",
        algorithm="rl_training.algorithms.drqn:DRQN",
        trainer="rl_training.runtime.drqn_trainer:train_drqn",
        observations=("vector",),
        actions=("discrete",),
        summary="deep Q-learning with an LSTM, on replayed sequences",
    ),
    AlgorithmEntry(
        name="r2d2",
        class_name="R2D2",
        algorithm="rl_training.algorithms.r2d2:R2D2",
        trainer="rl_training.runtime.r2d2_trainer:train_r2d2",
        observations=("vector", "image"),
        actions=("discrete",),
        summary="DRQN with prioritised sequences and n-step targets; burn-in, rescaled values and more as options",
    ),
    AlgorithmEntry(
        name="sac",
        class_name="SAC",
        algorithm="rl_training.algorithms.sac:SAC",
        trainer="rl_training.runtime.sac_trainer:train_sac",
        observations=("vector",),
        actions=("continuous",),
        summary="soft actor-critic with twin critics, the temperature learned or fixed",
    ),
    AlgorithmEntry(
        name="drq",
        class_name="DrQ",
        algorithm="rl_training.algorithms.drq:DrQ",
        trainer="rl_training.runtime.drq_trainer:train_drq",
        observations=("image",),
        actions=("continuous",),
        summary="SAC on images with random shifts; the paper's encoder and its averages over shifts as options",
    ),
    AlgorithmEntry(
        name="drqv2",
        class_name="DrQv2",
        algorithm="rl_training.algorithms.drqv2:DrQv2",
        trainer="rl_training.runtime.drqv2_trainer:train_drqv2",
        observations=("image",),
        actions=("continuous",),
        summary="a deterministic actor with scheduled noise and n-step targets, on images with random shifts",
    ),
    AlgorithmEntry(
        name="ppo",
        class_name="PPO",
        algorithm="rl_training.algorithms.ppo:PPO",
        trainer="rl_training.runtime.ppo_trainer:train_ppo",
        observations=("vector", "image"),
        actions=("discrete", "continuous"),
        summary="proximal policy optimisation, with normalisation, value clipping and a KL stop as options",
    ),
    AlgorithmEntry(
        name="recurrent_ppo",
        class_name="RecurrentPPO",
        algorithm="rl_training.algorithms.recurrent_ppo:RecurrentPPO",
        trainer="rl_training.runtime.recurrent_ppo_trainer:train_recurrent_ppo",
        observations=("vector", "image"),
        actions=("discrete", "continuous"),
        summary="PPO with an LSTM, for tasks in which one observation does not tell enough",
    ),
)

REGISTRY: dict[str, AlgorithmEntry] = {entry.name: entry for entry in _ENTRIES}


def get_algorithm(name: str) -> AlgorithmEntry:
    """The entry of an algorithm, or an error with the nearest name."""
    if name not in REGISTRY:
        raise ConfigError(f"unknown algorithm '{name}'{did_you_mean(name, REGISTRY)}")
    return REGISTRY[name]
