"""The Python surface: one managed class per algorithm."""

from typing import Any

from rl_training.api import agents as _agents
from rl_training.api.agents import load_agent as load_agent
from rl_training.api.agents import managed as managed
from rl_training.api.algorithms import ManagedAlgorithm as ManagedAlgorithm
from rl_training.runtime.export import load_exported as load_exported
from rl_training.runtime.hooks import Callback as Callback


def __getattr__(name: str) -> Any:
    if name == "__all__":  # made when it is asked for, because it looks at all installed packages
        return [*_agents.public_names(), "Callback", "ManagedAlgorithm", "load_agent", "load_exported", "managed"]
    return getattr(_agents, name)


def __dir__() -> list[str]:
    return sorted(__getattr__("__all__"))
