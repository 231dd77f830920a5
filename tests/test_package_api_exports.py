"""The names that the package promises, and what stands behind each registry entry."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest

import rl_training
from rl_training import api
from rl_training.algorithms.base import Algorithm
from rl_training.algorithms.config import AlgorithmConfig
from rl_training.experiment.registry import algorithms, get_algorithm

AGENTS = ["DQN", "DRQN", "R2D2", "SAC", "DrQ", "DrQv2"]
SURFACE = [*AGENTS, "Callback", "ManagedAlgorithm", "load_agent", "load_exported"]
PROMISED = {
    "rl_training": SURFACE,
    "rl_training.api": SURFACE,
    "rl_training.algorithms": [*AGENTS, "dqn_loss", "drq_loss"],
    "rl_training.data": [
        "FrameReplayBuffer",
        "NStepAccumulator",
        "PrioritizedRecurrentReplayBuffer",
        "RecurrentReplayBuffer",
        "ReplayBuffer",
    ],
    "rl_training.models": ["CNNDrQModel", "LSTMQNetwork", "MLPQNetwork", "MLPQRQNetwork", "NatureCNN"],
}


@pytest.mark.parametrize("module_name", sorted(PROMISED))
def test_promised_names_are_exported(module_name: str) -> None:
    module = importlib.import_module(module_name)
    for name in PROMISED[module_name]:
        assert name in module.__all__
        assert getattr(module, name).__doc__
    assert set(module.__all__) <= set(dir(module))


@pytest.mark.parametrize(
    ("module_name", "name"),
    [
        ("rl_training.data.replay_buffer", "ReplayBuffer"),
        ("rl_training.models.mlp_q_network", "MLPQNetwork"),
        ("rl_training.models.mlp_qr_q_network", "MLPQRQNetwork"),
        ("rl_training.algorithms.dqn", "DQN"),
        ("rl_training.algorithms.dqn", "dqn_loss"),
        ("rl_training.runtime.dqn_trainer", "train_dqn"),
        ("rl_training.data.recurrent_replay_buffer", "RecurrentReplayBuffer"),
        ("rl_training.data.prioritized_recurrent_replay_buffer", "PrioritizedRecurrentReplayBuffer"),
        ("rl_training.models.recurrent.lstm_q_network", "LSTMQNetwork"),
        ("rl_training.algorithms.drqn", "DRQN"),
        ("rl_training.algorithms.r2d2", "R2D2"),
        ("rl_training.runtime.drqn_trainer", "train_drqn"),
        ("rl_training.runtime.r2d2_trainer", "train_r2d2"),
        ("rl_training.models.cnn.drq", "CNNDrQModel"),
        ("rl_training.models.cnn", "NatureCNN"),
        ("rl_training.algorithms.drq", "DrQ"),
        ("rl_training.algorithms.drq", "drq_loss"),
        ("rl_training.runtime.drq_trainer", "train_drq"),
        ("rl_training.api.algorithms", "ManagedAlgorithm"),
    ],
)
def test_names_with_a_fixed_place(module_name: str, name: str) -> None:
    assert hasattr(importlib.import_module(module_name), name)


def test_every_registry_entry_has_all_that_it_names(algo: str) -> None:
    entry = get_algorithm(algo)
    managed = getattr(rl_training, entry.public_name)
    assert managed is getattr(api, entry.public_name) is getattr(api.agents, entry.public_name)
    assert issubclass(managed, api.ManagedAlgorithm)
    assert managed.algo_name == entry.name == algo
    assert managed.algorithm_class is entry
    assert entry.public_name in rl_training.__all__
    assert entry.public_name in api.__all__
    assert issubclass(entry, Algorithm)
    assert issubclass(entry.config_class, AlgorithmConfig)
    assert entry.summary
    assert entry.observations
    assert entry.actions


def test_every_managed_class_is_registered() -> None:
    registered = {entry.public_name for entry in algorithms().values()}
    assert set(rl_training.__all__) - {"Callback", "ManagedAlgorithm", "load_agent", "load_exported", "managed"} == registered


def test_an_unknown_attribute_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="DQNN"):
        _ = rl_training.DQNN


def test_importing_the_package_imports_no_torch() -> None:
    code = "import sys, rl_training; print(rl_training.__version__, 'torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [rl_training.__version__, "False"]
