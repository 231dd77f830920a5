"""Algorithms: one batch in, one update out. Losses are pure functions beside the algorithm that uses them.

Every module of this package is searched for algorithms; what each offers by name is its ``__all__``.
"""

from __future__ import annotations

import importlib
import pkgutil
from typing import Any


def module_names() -> list[str]:
    """The modules of this package."""
    return [module.name for module in pkgutil.iter_modules(__path__)]


def _exports() -> dict[str, Any]:
    """What the modules offer by name."""
    modules = (importlib.import_module(f"{__name__}.{name}") for name in module_names())
    return {name: getattr(module, name) for module in modules for name in getattr(module, "__all__", ())}


def __getattr__(name: str) -> Any:
    if name == "__all__":
        return sorted(_exports())
    # A module of this package that is not imported yet is none of its names.
    exports = {} if name.startswith("_") or name in module_names() else _exports()
    if name not in exports:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    return exports[name]


def __dir__() -> list[str]:
    return sorted(_exports())
