"""Reinforcement learning that is provably right, resumes bit for bit, and is fast.

``rl_training.DQN`` and its siblings are agents that make their environments, learn, evaluate, predict, save, resume and
export. There is one for every registered algorithm. They are imported when first used, so that ``import rl_training`` and
``rl-training --help`` are quick. (``rl_training.algorithms.DQN`` is what such an agent uses inside: one batch in, one update
out.)
"""

from __future__ import annotations

import importlib
import pkgutil
from typing import TYPE_CHECKING

from rl_training.version import __version__ as __version__

if TYPE_CHECKING:
    from rl_training.api import Callback, ManagedAlgorithm, load_agent, load_exported, managed

    __all__ = ["Callback", "ManagedAlgorithm", "load_agent", "load_exported", "managed"]


def __getattr__(name: str) -> type[ManagedAlgorithm]:
    # A module of this package that is not imported yet is not an exported name.
    is_module = any(module.name == name for module in pkgutil.iter_modules(__path__))
    if is_module or (name.startswith("_") and name != "__all__"):
        raise AttributeError(f"module 'rl_training' has no attribute '{name}'")
    try:
        found: type[ManagedAlgorithm] = getattr(importlib.import_module("rl_training.api"), name)
    except AttributeError:
        raise AttributeError(f"module 'rl_training' has no attribute '{name}'") from None
    return found


def __dir__() -> list[str]:
    return sorted([*importlib.import_module("rl_training.api").__all__, "__version__"])
