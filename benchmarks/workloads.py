"""The workloads: what is measured, with which settings, by which candidates, and the ratios that we aim for.

To add a peer, write a function in the package ``candidates`` and add it to the ``candidates`` of its workload; to add a
workload, add an entry to ``WORKLOADS``. This file must not import torch or numpy, because a worker sets its threads first.
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
    """A function ``(settings, seed) -> Measurement``, given by name so that only its own process imports it."""

    target: str  # module:function
    package: str  # the candidate is skipped if this distribution is not installed
    is_limit: bool = False  # a bare program that shows the upper limit: the workload's bars do not apply to it
    bars: Mapping[str, float] | None = None  # replaces the workload's; applies to our compiled candidate if there is one

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
    settings: DQNSettings | PPOSettings | SACSettings | DrQSettings | ReplaySettings | UpdateSettings | SequenceSettings
    bars: Mapping[str, float | None]  # None: no bar
    candidates: Mapping[str, Candidate]
    compiled_bars: Mapping[str, float] = field(default_factory=dict)  # for our compiled candidate
    threads: int = 1  # also the number of cores; with several threads, wall-clock time counts
    share_bars: Mapping[str, float] = field(default_factory=dict)  # the largest share of our time that a part may take


@dataclass(frozen=True)
class DQNSettings:
    """DQN on vector observations, with epsilon falling from 1 and hard target updates. Counts are in env steps."""

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
    num_quantiles: int = 0  # QR-DQN if positive
    num_atoms: int = 0  # C51 if positive


@dataclass(frozen=True)
class UpdateSettings:
    """Only updates, from a full replay of vectors; sampling is included."""

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
    """PPO or A2C on vector observations: rollouts of ``num_envs`` x ``n_steps``, with ``n_epochs`` passes over each."""

    algo: str = "ppo"
    env_id: str = "CartPole-v1"
    num_envs: int = 8
    total_steps: int = 40_960
    n_steps: int = 128
    n_epochs: int = 4
    n_minibatches: int = 4
    hidden_sizes: tuple[int, ...] = (64, 64)
    learning_rate: float = 2.5e-4
    lstm_size: int = 0  # 0: no LSTM


@dataclass(frozen=True)
class SACSettings:
    """SAC, TD3 or TQC on vector observations, with an update every step; the temperature of SAC and TQC is learned."""

    algo: str = "sac"
    env_id: str = "Pendulum-v1"
    total_steps: int = 1_500
    learning_starts: int = 300
    hidden_sizes: tuple[int, ...] = (256, 256)
    batch_size: int = 256
    buffer_size: int = 100_000
    learning_rate: float = 3e-4
    gamma: float = 0.99
    tau: float = 0.005


@dataclass(frozen=True)
class DrQSettings:
    """Only updates of DrQ (v1), on one batch of random images."""

    shape: tuple[int, int, int] = (9, 84, 84)
    batch_size: int = 128
    cnn_features: int = 512
    hidden_sizes: tuple[int, ...] = (256, 256)
    shift_pad: int = 4
    learning_rate: float = 1e-3
    tau: float = 0.01
    alpha: float = 0.1
    warm_up: int = 2
    updates: int = 15


@dataclass(frozen=True)
class ReplaySettings:
    """Only the replay: filled to capacity, then sampled."""

    capacity: int = 1_000_000
    obs_dim: int = 4
    envs_per_add: int = 8  # for the rate that adds several transitions per call
    batch_size: int = 256
    samples: int = 20_000


@dataclass(frozen=True)
class SequenceSettings:
    """DRQN or R2D2, with encoder, LSTM and head of the same width. Either only updates from a full replay (including
    sampling), or CartPole with an update every step."""

    algo: str
    width: int = 128
    sequence_length: int = 80
    batch_size: int = 32
    n_step: int = 1
    learning_rate: float = 1e-3
    gamma: float = 0.99
    target_copy_updates: int = 250
    obs_dim: int = 4
    actions: int = 2
    sequences: int = 1_000  # in the replay, for the updates-only workloads
    warm_up: int = 3
    updates: int = 40
    total_steps: int = 1_000  # end to end
    learning_starts: int = 150


W1 = DQNSettings()

OUR_DQN = {
    OURS: Candidate("candidates.ours:dqn", "rl-training"),
    COMPILED: Candidate("candidates.ours:dqn_compiled", "rl-training"),
}
#: Further candidates, for which no bar is set.
DQN_OTHERS = {
    "axiomrl": Candidate("candidates.axiomrl_value:dqn", "axiomrl", bars={}),
    "bare torch": Candidate("candidates.limit:eager", "torch", is_limit=True),
    "bare torch, compiled": Candidate("candidates.limit:compiled", "torch", is_limit=True),
    "bare torch, one graph": Candidate("candidates.limit:graph", "torch", is_limit=True),
}
DQN_CANDIDATES = {**OUR_DQN, "sb3": Candidate("candidates.sb3:dqn", "stable-baselines3"), **DQN_OTHERS}
UPDATE_CANDIDATES = {
    OURS: Candidate("candidates.ours:update", "rl-training"),
    COMPILED: Candidate("candidates.ours:update_compiled", "rl-training"),
    "axiomrl": Candidate("candidates.axiomrl_value:update", "axiomrl", bars={}),
    "bare torch": Candidate("candidates.limit:update_eager", "torch", is_limit=True),
    "bare torch, compiled": Candidate("candidates.limit:update_compiled", "torch", is_limit=True, bars={"updates": 0.85}),
    "bare torch, one graph": Candidate("candidates.limit:update_graph", "torch", is_limit=True),
}

SEQUENCE_UPDATES = {
    OURS: Candidate("candidates.recurrent:updates", "rl-training"),
    "bare nn.LSTM": Candidate("candidates.lstm_limit:updates", "torch", is_limit=True, bars={"updates": 0.8}),
    "axiomrl": Candidate("candidates.axiomrl_:updates", "axiomrl"),
}
SEQUENCE_RUNS = {
    OURS: Candidate("candidates.recurrent:run", "rl-training"),
    "bare nn.LSTM": Candidate("candidates.lstm_limit:run", "torch", is_limit=True),
    "axiomrl": Candidate("candidates.axiomrl_:run", "axiomrl"),
}

DRQ_CANDIDATES = {
    OURS: Candidate("candidates.ours:drq_update", "rl-training"),
    "bare torch": Candidate("candidates.bare_torch:drq_update", "torch", is_limit=True, bars={"updates": 0.85}),
}
DRQ_SHARES = {"augmentation's share": 0.08}

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
        title="DQN, updates only, batch 64",
        settings=UpdateSettings(),
        bars={"updates": None},
        candidates=UPDATE_CANDIDATES,
    ),
    "w3q": Workload(
        title="QR-DQN, updates only, batch 64, 51 quantiles",
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
            "axiomrl": Candidate("candidates.axiomrl_value:ppo", "axiomrl", bars={}),
            "bare torch": Candidate("candidates.bare_torch:ppo", "torch", is_limit=True),
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
    "w7a": Workload(
        title="A2C, CartPole, 8 envs x 5 steps, with Adam",
        settings=PPOSettings(algo="a2c", n_steps=5, n_epochs=1, n_minibatches=1, learning_rate=7e-4, total_steps=20_000),
        bars={"env steps": 2.0},
        candidates={
            OURS: Candidate("candidates.ours:ppo", "rl-training"),
            COMPILED: Candidate("candidates.ours:ppo_compiled", "rl-training"),
            "sb3": Candidate("candidates.sb3:a2c", "stable-baselines3"),
        },
    ),
    "w4": Workload(
        title="DRQN, updates only: LSTM, encoder and head of 128, sequences of 80, batch 32",
        settings=SequenceSettings("drqn"),
        bars={"updates": 4.0},
        candidates=SEQUENCE_UPDATES,
    ),
    "w4r": Workload(
        title="w4 with R2D2: double Q and priorities",
        settings=SequenceSettings("r2d2"),
        bars={"updates": 4.0},
        candidates=SEQUENCE_UPDATES,
    ),
    "w4e": Workload(
        title="DRQN, CartPole, 1 env, sequences of 8, batch 8, an update every step",
        settings=SequenceSettings("drqn", sequence_length=8, batch_size=8),
        bars={"env steps": 1.8},
        candidates=SEQUENCE_RUNS,
    ),
    "w4er": Workload(
        title="w4e with R2D2, n = 3",
        settings=SequenceSettings("r2d2", sequence_length=8, batch_size=8, n_step=3),
        bars={"env steps": 1.8},
        candidates=SEQUENCE_RUNS,
    ),
    "w5": Workload(
        title="DrQ, updates only, 84x84x9, batch 128; bare torch also does shifts, scaling, losses, Adam and targets",
        settings=DrQSettings(),
        bars={"updates": None},
        candidates=DRQ_CANDIDATES,
        share_bars=DRQ_SHARES,
    ),
    "w5t2": Workload(
        title="w5 with 2 threads on 2 cores",
        settings=DrQSettings(),
        bars={"updates": None},
        candidates=DRQ_CANDIDATES,
        threads=2,
        share_bars=DRQ_SHARES,
    ),
    "w7b": Workload(
        title="SAC, Pendulum, 256-256, batch 256, an update every step",
        settings=SACSettings(),
        bars={"env steps": 1.4},
        compiled_bars={"env steps": 1.4},
        candidates={
            OURS: Candidate("candidates.ours:sac", "rl-training"),
            COMPILED: Candidate("candidates.ours:sac_compiled", "rl-training"),
            "sb3": Candidate("candidates.sb3:sac", "stable-baselines3"),
            "axiomrl": Candidate("candidates.axiomrl_value:sac", "axiomrl", bars={}),
            "bare torch": Candidate("candidates.bare_torch:sac", "torch", is_limit=True),
        },
    ),
    "w7t": Workload(
        title="w7b with TD3, the actor every other step",
        settings=SACSettings(algo="td3"),
        bars={"env steps": 1.5},
        compiled_bars={"env steps": 1.5},
        candidates={
            OURS: Candidate("candidates.ours:sac", "rl-training"),
            COMPILED: Candidate("candidates.ours:sac_compiled", "rl-training"),
            "sb3": Candidate("candidates.sb3:td3", "stable-baselines3"),
        },
    ),
    "w7q": Workload(
        title="w7b with TQC, 2 critics of 25 quantiles",
        settings=SACSettings(algo="tqc"),
        bars={"env steps": 1.5},
        compiled_bars={"env steps": 1.5},
        candidates={
            OURS: Candidate("candidates.ours:sac", "rl-training"),
            COMPILED: Candidate("candidates.ours:sac_compiled", "rl-training"),
            "sb3-contrib": Candidate("candidates.sb3_contrib_:tqc", "sb3-contrib"),
        },
    ),
    "replay": Workload(
        title="uniform replay, 1e6 transitions of 4 numbers",
        settings=ReplaySettings(),
        bars={"add, 1 per call": 1.0, "add, 8 per call": 1.0, "sample of 256": 2.0},
        candidates={
            OURS: Candidate("candidates.ours:replay", "rl-training"),
            "sb3": Candidate("candidates.sb3:replay", "stable-baselines3"),
            "axiomrl": Candidate("candidates.axiomrl_value:replay", "axiomrl"),
        },
    ),
    "prioritized": Workload(
        title="prioritised replay, 1e6 transitions of 4 numbers: sample 256, then update their priorities",
        settings=ReplaySettings(samples=5_000),
        bars={"sample + update of 256": 1.0},
        candidates={
            OURS: Candidate("candidates.ours:prioritized", "rl-training"),
            "cpprb": Candidate("candidates.cpprb_:prioritized", "cpprb"),
            "tianshou": Candidate("candidates.tianshou_:prioritized", "tianshou", bars={}),
        },
    ),
}
