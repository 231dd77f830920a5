"""The Python API: one managed class per algorithm."""

from rl_training.api import algorithms as _algorithms
from rl_training.api.algorithms import ManagedAlgorithm, load_agent, managed

__all__ = [*_algorithms.public_names(), "ManagedAlgorithm", "load_agent", "managed"]


def __getattr__(name: str) -> type[ManagedAlgorithm]:
    found: type[ManagedAlgorithm] = getattr(_algorithms, name)
    return found


def __dir__() -> list[str]:
    return sorted(__all__)
