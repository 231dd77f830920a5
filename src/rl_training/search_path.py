"""Where Python looks for modules: what of it the user has chosen, and what merely happens to be the current directory."""

from __future__ import annotations

import importlib
import os
import sys


def python_path() -> list[str]:
    """The entries of the user's ``PYTHONPATH``. An empty entry would mean the current directory, which is no choice."""
    return [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]


def search_current_directory() -> None:
    """Puts the current directory on the search path for names that the user gives, after everything that is installed, so
    that no file in it hides a module that others need."""
    here = os.path.realpath(os.curdir)
    searched = {os.path.realpath(entry or os.curdir) for entry in sys.path}
    if here not in searched and not getattr(sys.flags, "safe_path", False):  # python -P
        sys.path.append(here)


def forget_current_directory() -> None:
    """Takes the current directory off the search path, where ``python -m`` puts it, unless it is on ``PYTHONPATH``.

    Otherwise a run directory that happens to be the current one could provide any module or plugin that is looked for.
    """
    here = os.path.realpath(os.curdir)
    if here not in map(os.path.realpath, python_path()):
        sys.path[:] = [entry for entry in sys.path if os.path.realpath(entry or os.curdir) != here]
        importlib.invalidate_caches()
