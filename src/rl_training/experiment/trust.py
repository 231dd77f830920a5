"""Which modules a run or checkpoint may have imported.

A config that the user wrote may name any module. A config that came with a run directory is data, whoever made it: the module
of its environment, algorithm or network is imported only from where installed packages and the user's ``PYTHONPATH`` are,
unless the user allows it (``--trust-env-module``, ``trust_modules=True``).
"""

from __future__ import annotations

import os
import site
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import Any

from rl_training.envs.known import module_of
from rl_training.errors import ConfigError
from rl_training.experiment.config import TrainConfig
from rl_training.models.custom import FROM_PYTHON
from rl_training.names import is_file, loaded, split_name
from rl_training.search_path import python_path


@dataclass(frozen=True)
class Trust:
    """The user's trust in the modules that a run or checkpoint names."""

    run: Path  # the directory that names them
    everything: bool = False

    def require_algo(self, config: Mapping[str, Any]) -> None:
        """Refuses an algorithm ``module:Class`` or a network ``module:function`` of a saved config, unless the module may be
        imported."""
        algo = str(config.get("algo", ""))
        self._require(split_name(algo)[0], f"algo: {algo}")
        settings = config.get("algo_kwargs")
        network = settings.get("network") if isinstance(settings, Mapping) else None
        if isinstance(network, str) and not network.startswith(f"{FROM_PYTHON}:"):
            self._require(split_name(network)[0], f"algo_kwargs.network: {network}")

    def require_env(self, env_id: str) -> None:
        """Refuses an environment of a saved config, unless the module that it comes from may be imported."""
        self._require(module_of(env_id), f"env_id: {env_id}")

    def require_wrappers(self, wrappers: Iterable[Mapping[str, Any]]) -> None:
        """Refuses wrappers ``module:Class`` of a saved config, unless their modules may be imported."""
        for wrapper in wrappers:
            self._require(split_name(wrapper["name"])[0], f"wrappers: {wrapper['name']}")

    def _require(self, module: str | None, named: str) -> None:
        if module is None or self.everything:
            return
        where = _untrusted_location(module, self.run)
        if where is not None:
            raise ConfigError(
                f"{self.run} names the module '{module}' ({named}), which would be imported from {where}; "
                "that is neither an installed package nor on your PYTHONPATH, and importing it runs its code: if you trust "
                "it, use --trust-env-module (in Python: trust_modules=True), or put its folder on PYTHONPATH"
            )


def _untrusted_location(module: str, run: Path) -> str | None:
    """Where a module would come from, if not from a trusted place. Nothing is imported to find out."""
    if loaded(module) is not None:
        return None  # importing it again runs nothing
    if is_file(module):
        return None if _is_trusted(module, run) else module
    if not all(part.isidentifier() for part in module.split(".")):
        return "a name that is no module's"
    roots, run_path = list(_trusted_roots()), os.path.realpath(run)
    search: list[str] | None = None
    names = module.split(".")
    for depth in range(1, len(names) + 1):
        parent = ".".join(names[:depth])
        if parent in sys.modules:
            search = list(getattr(sys.modules[parent], "__path__", ()))
            continue
        spec, by_hook = _find(parent, search)
        if spec is None:
            return _in_current_directory(names) if depth == 1 else None  # the import itself says that there is none
        for place in _places(spec):
            real = os.path.realpath(place)
            if _is_in(real, run_path) or not (by_hook or any(_is_in(real, root) for root in roots)):
                return place
        search = list(spec.submodule_search_locations or ())
    return None


def _is_trusted(place: str, run: Path) -> bool:
    real = os.path.realpath(place)
    return not _is_in(real, os.path.realpath(run)) and any(_is_in(real, root) for root in _trusted_roots())


def trust_option(config: TrainConfig, run: Path, *, with_env: bool = True) -> str:
    """The option that commands on a run need if it names code that is not in a trusted place, for messages. A command that
    takes only the policy imports neither the environment nor its wrappers."""
    named = [split_name(config.algo)[0]]
    if isinstance(config.algo_kwargs.network, str):
        named.append(split_name(config.algo_kwargs.network)[0])
    if with_env:
        named += [module_of(config.env_id), *(split_name(wrapper["name"])[0] for wrapper in config.wrappers)]
    for module in filter(None, [] if config.env_from_python else named):
        file = getattr(loaded(module), "__file__", None)
        if file is not None and not _is_trusted(file, run):
            return " --trust-env-module"
    return ""


def _find(name: str, search: list[str] | None) -> tuple[ModuleSpec | None, bool]:
    """The spec by which a module would be imported, and whether the finder is a hook of an installed package."""
    for finder in sys.meta_path:
        find = getattr(finder, "find_spec", None)
        spec = None if find is None else find(name, search)
        if spec is not None:
            return spec, finder is not PathFinder
    return None, False


def _places(spec: ModuleSpec) -> list[str]:
    if spec.has_location and spec.origin is not None:
        return [spec.origin]
    return list(spec.submodule_search_locations or ())  # a namespace package; built-in modules have none


def _in_current_directory(names: list[str]) -> str | None:
    """A module that only the current directory has, which is not searched for a run's modules."""
    spec = PathFinder.find_spec(names[0], [str(Path.cwd())])
    places = [] if spec is None else _places(spec)
    return places[0] if places else None


def _trusted_roots() -> Iterator[str]:
    """Directories of the standard library, of installed packages and of ``PYTHONPATH``, without links."""
    prefixes = [sys.prefix, sys.exec_prefix, sys.base_prefix, sys.base_exec_prefix]
    packages = [*site.getsitepackages(prefixes), site.getusersitepackages()]
    paths = sysconfig.get_paths()
    roots = [*packages, *(paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib"))]
    roots += [str(Path(__file__).parents[1])]  # this package itself
    roots += python_path()
    for package in packages:
        roots += _linked_from(Path(package))
    yield from dict.fromkeys(os.path.realpath(root) for root in roots)


def _linked_from(packages: Path) -> Iterator[str]:
    """Directories that packages installed for development add to the path."""
    for file in sorted(packages.glob("*.pth")):
        for line in file.read_text("utf-8", errors="replace").splitlines():
            if line.strip() and not line.startswith(("#", "import ", "import\t")):
                yield str(packages / line.strip())


def _is_in(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip(os.sep) + os.sep)
