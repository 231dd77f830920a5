"""The workloads: what is measured, with which settings, who competes, and by how much we mean to win.

A new peer is a function in ``candidates`` and an entry in ``candidates`` of its workload; a new workload is an entry in
``WORKLOADS``. This file imports nothing heavy, so that a worker can set its threads before torch or numpy load.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from measure import Measurement

from rl_training.bench.machine import package_version

#: Every ratio is the rate of one of these candidates divided by that of another.
OURS, COMPILED = "ours", "ours, compiled"


@dataclass(frozen=True)
class Candidate:
    """A function ``(settings, seed) -> Measurement``, named so that only its own process imports it."""

    target: str  # module:function
    package: str  # without this distribution the candidate is skipped
    is_limit: bool = False  # a bare program that shows the ceiling: the workload's bars do not apply to it
    bars: Mapping[str, float] | None = None  # instead of the workload's, for the compiled one of ours if there is one

    @property
    def is_installed(self) -> bool:
        return package_version(self.package) is not None

    def load(self) -> Callable[[Any, int], Measurement]:
        module, _, name = self.target.partition(":")
        function: Callable[[Any, int], Measurement] = getattr(importlib.import_module(module), name)
        return function


@dataclass(frozen=True)
class Workload:
    """The same settings for every candidate, and for each rate the ratio to a peer that we must reach."""

    title: str
    settings: DQNSettings | PPOSettings | ReplaySettings | UpdateSettings
    bars: Mapping[str, float | None]  # none: no bar
    candidates: Mapping[str, Candidate]
    compiled_bars: Mapping[str, float] = field(default_factory=dict)  # for our compiled candidate


@dataclass(frozen=True)
class DQNSettings:
    """DQN on a vector observation, epsilon falling from 1, target network copied. Counts are env steps."""

    env_id: str = "CartPole-v1"
    num_envs: int = 1
    total_steps: int = 20_000
    steps_per_update: int = 1
    hidden_sizes: tuple[int, ...] = (64, 64)
    batch_size: int = 64
    buffer_size: int = 50_000
    learning_starts: int = 1_000
    learning_rate: float = 1e-3
    gamma: float = 0.99
    max_grad_norm: float = 10.0
    target_copy_steps: int = 500
    exploration_steps: int = 10_000
    final_epsilon: float = 0.05
    num_quantiles: int = 0  # QR-DQN, if not 0 ...
    num_atoms: int = 0  # ... or C51


@dataclass(frozen=True)
class UpdateSettings:
    """Updates alone, from a full replay of vectors; sampling is part of them."""

    num_quantiles: int = 0
    num_atoms: int = 0
    obs_dim: int = 4
    actions: int = 2
    hidden_sizes: tuple[int, ...] = (64, 64)
    batch_size: int = 64
    buffer_size: int = 100_000
    learning_rate: float = 1e-3
    gamma: float = 0.99
    max_grad_norm: float = 10.0
    warm_up: int = 200
    updates: int = 10_000


@dataclass(frozen=True)
class PPOSettings:
    """PPO on a vector observation: rollouts of ``num_envs`` x ``n_steps``, gone through ``n_epochs`` times."""

    env_id: str = "CartPole-v1"
    num_envs: int = 8
    total_steps: int = 40_960
    n_steps: int = 128
    n_epochs: int = 4
    n_minibatches: int = 4
    hidden_sizes: tuple[int, ...] = (64, 64)
    learning_rate: float = 2.5e-4
    lstm_size: int = 0  # 0: no memory


@dataclass(frozen=True)
class ReplaySettings:
    """A replay alone: filled to the brim, then sampled."""

    capacity: int = 1_000_000
    obs_dim: int = 4
    envs_per_add: int = 8  # in the rate that adds several transitions by one call
    batch_size: int = 256
    samples: int = 20_000


W1 = DQNSettings()

OUR_DQN = {
    OURS: Candidate("candidates.ours:dqn", "rl-training"),
    COMPILED: Candidate("candidates.ours:dqn_compiled", "rl-training"),
}
#: Further rows, for which no bar is set.
DQN_OTHERS = {
    "axiomrl": Candidate("candidates.axiomrl_value:dqn", "axiomrl", bars={}),
    "bare torch": Candidate("candidates.limit:eager", "torch", is_limit=True),
    "bare torch, compiled": Candidate("candidates.limit:compiled", "torch", is_limit=True),
}
DQN_CANDIDATES = {**OUR_DQN, "sb3": Candidate("candidates.sb3:dqn", "stable-baselines3"), **DQN_OTHERS}
UPDATE_CANDIDATES = {
    OURS: Candidate("candidates.ours:update", "rl-training"),
    COMPILED: Candidate("candidates.ours:update_compiled", "rl-training"),
    "bare torch": Candidate("candidates.limit:update_eager", "torch", is_limit=True),
    "bare torch, compiled": Candidate("candidates.limit:update_compiled", "torch", is_limit=True, bars={"updates": 0.85}),
}

WORKLOADS: dict[str, Workload] = {
    "w1": Workload(
        title="DQN, CartPole, 1 env, an update every step",
        settings=W1,
        bars={"env steps": 1.8},
        compiled_bars={"env steps": 3.5},
        candidates=DQN_CANDIDATES,
    ),
    "w1c": Workload(
        title="DQN, CartPole, 8 envs, an update every 8 steps",
        settings=replace(W1, num_envs=8, steps_per_update=8),
        bars={"env steps": 2.0},
        compiled_bars={"env steps": 2.8},
        candidates=DQN_CANDIDATES,
    ),
    "w2": Workload(
        title="w1 with QR-DQN, 51 quantiles",
        settings=replace(W1, num_quantiles=51, total_steps=8_000),
        bars={"env steps": 1.8},
        compiled_bars={"env steps": 5.0},
        candidates={
            **OUR_DQN,
            "sb3-contrib": Candidate("candidates.sb3_contrib_:qr_dqn", "sb3-contrib"),
            **DQN_OTHERS,
        },
    ),
    "w2b": Workload(
        title="w1 with C51, 51 atoms",
        settings=replace(W1, num_atoms=51, total_steps=8_000),
        bars={"env steps": 3.0},
        compiled_bars={"env steps": 6.0},
        candidates={**OUR_DQN, "tianshou": Candidate("candidates.tianshou_:c51", "tianshou"), **DQN_OTHERS},
    ),
    "w3": Workload(
        title="DQN updates alone, batch 64",
        settings=UpdateSettings(),
        bars={"updates": None},
        candidates=UPDATE_CANDIDATES,
    ),
    "w3q": Workload(
        title="QR-DQN updates alone, batch 64, 51 quantiles",
        settings=UpdateSettings(num_quantiles=51, updates=4_000),
        bars={"updates": None},
        candidates=UPDATE_CANDIDATES,
    ),
    "w7": Workload(
        title="PPO, CartPole, 8 envs x 128 steps, 4 epochs of 4 minibatches",
        settings=PPOSettings(),
        bars={"env steps": 1.7},
        candidates={
            OURS: Candidate("candidates.ours:ppo", "rl-training"),
            COMPILED: Candidate("candidates.ours:ppo_compiled", "rl-training"),
            "sb3": Candidate("candidates.sb3:ppo", "stable-baselines3"),
        },
    ),
    "w7r": Workload(
        title="w7 with an LSTM of 64",
        settings=PPOSettings(lstm_size=64, total_steps=10_240),
        bars={"env steps": 2.0},
        candidates={
            OURS: Candidate("candidates.ours:ppo", "rl-training"),
            "sb3-contrib": Candidate("candidates.sb3_contrib_:recurrent_ppo", "sb3-contrib"),
        },
    ),
    "replay": Workload(
        title="uniform replay, 1e6 transitions of 4 numbers",
        settings=ReplaySettings(),
        bars={"add, 1 per call": 1.0, "add, 8 per call": 1.0, "sample of 256": 2.0},
        candidates={
            OURS: Candidate("candidates.ours:replay", "rl-training"),
            "sb3": Candidate("candidates.sb3:replay", "stable-baselines3"),
        },
    ),
    "prioritized": Workload(
        title="prioritised replay, 1e6 transitions of 4 numbers: sample 256, give them new priorities",
        settings=ReplaySettings(samples=5_000),
        bars={"sample + update of 256": 1.0},
        candidates={
            OURS: Candidate("candidates.ours:prioritized", "rl-training"),
            "cpprb": Candidate("candidates.cpprb_:prioritized", "cpprb"),
        },
    ),
}
