"""The Python surface: one managed class per algorithm."""

from typing import Any

from rl_training.api import algorithms as _algorithms
from rl_training.api.algorithms import ManagedAlgorithm as ManagedAlgorithm
from rl_training.api.algorithms import load_agent as load_agent
from rl_training.api.algorithms import managed as managed


def __getattr__(name: str) -> Any:
    if name == "__all__":  # made when it is asked for, because it looks at all installed packages
        return [*_algorithms.public_names(), "ManagedAlgorithm", "load_agent", "managed"]
    return getattr(_algorithms, name)


def __dir__() -> list[str]:
    return sorted(__getattr__("__all__"))
