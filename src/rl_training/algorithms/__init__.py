"""Algorithms: each turns a batch into an update. Losses are pure functions in the module of the algorithm that uses them.

Every module of this package is searched for algorithms; its public names are those in its ``__all__``.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
from typing import Any


@functools.cache
def module_names() -> tuple[str, ...]:
    """The modules of this package."""
    return tuple(module.name for module in pkgutil.iter_modules(__path__))


def _exports() -> dict[str, Any]:
    """The public names of all modules, with the objects they refer to."""
    modules = (importlib.import_module(f"{__name__}.{name}") for name in module_names())
    return {name: getattr(module, name) for module in modules for name in getattr(module, "__all__", ())}


def __getattr__(name: str) -> Any:
    if name == "__all__":
        return sorted(_exports())
    # The name of a submodule is not an export, even if the submodule has not been imported yet.
    exports = {} if name.startswith("_") or name in module_names() else _exports()
    if name not in exports:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    return exports[name]


def __dir__() -> list[str]:
    return sorted(_exports())
