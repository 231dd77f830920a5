"""Reinforcement learning that is provably right, resumes bit for bit, and is fast.

The classes are imported when first used, so that ``import rl_training`` and ``rl-training --help`` stay quick.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rl_training.version import __version__ as __version__

if TYPE_CHECKING:
    from rl_training.api import C51, DQN, DRQN, PPO, QRDQN, R2D2, SAC, DrQ, DrQv2, ManagedAlgorithm, RecurrentPPO, load_agent

__all__ = [
    "C51",
    "DQN",
    "DRQN",
    "PPO",
    "QRDQN",
    "R2D2",
    "SAC",
    "DrQ",
    "DrQv2",
    "ManagedAlgorithm",
    "RecurrentPPO",
    "load_agent",
]


def __getattr__(name: str) -> Any:
    if name in __all__:
        from rl_training import api

        return getattr(api, name)
    raise AttributeError(f"module 'rl_training' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
