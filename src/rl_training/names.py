"""Names of the user's own code in configs and on the command line: ``module:attribute`` or ``path/to/file.py:attribute``.

Environments, wrappers and algorithms are all named in this way and imported here. Whether a name may be imported at all is
decided before: a name that comes out of a run directory has to pass ``experiment.trust``.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import zlib
from pathlib import Path
from types import ModuleType

from rl_training.errors import FOREIGN, ConfigError, RLTrainingError, UserCodeError, described


def split_name(name: str) -> tuple[str | None, str]:
    """The module or file of a name, and the attribute in it. The former is None if the name is not of this form."""
    module, colon, attribute = name.rpartition(":")
    return module if colon else None, attribute


def is_file(module: str) -> bool:
    """Whether the first half of a name is a file rather than a module."""
    return module.endswith(".py")


def imported(module: str, what: str) -> ModuleType:
    """The module, or the file as a module; ``what`` names the setting in an error. Importing it can fail in any way."""
    try:
        return _from_file(Path(module)) if is_file(module) else importlib.import_module(module)
    except RLTrainingError:  # for instance a package that is missing
        raise
    except FOREIGN as error:
        raise UserCodeError(
            f"{what}: cannot import the module '{module}' ({_reason(error)}){_advice(module, error)}"
        ) from error


def loaded(module: str) -> ModuleType | None:
    """The module or file, if this process has imported it already."""
    return sys.modules.get(_name_of_file(Path(module)) if is_file(module) else module)


def _reason(error: BaseException) -> object:
    return error if isinstance(error, ImportError) else described(error)


def _advice(module: str, error: BaseException) -> str:
    """Advice for a module that does not exist; empty for a mistake inside the module."""
    absent = isinstance(error, ModuleNotFoundError) and error.name is not None and f"{module}.".startswith(f"{error.name}.")
    if not absent:
        return ""
    return (
        f"; install its package, run in the folder that has it, or name the file: path/to/{module.replace('.', '/')}.py:Name"
    )


def _from_file(path: Path) -> ModuleType:
    """The module in a file. As for a script, the modules beside it can be imported, but they hide no installed ones."""
    if not path.is_file():
        raise ConfigError(f"there is no file {path}, which is named as the place of your own code")
    name = _name_of_file(path)
    if name in sys.modules:
        return sys.modules[name]
    folder = str(path.resolve().parent)
    if folder not in sys.path:
        sys.path.append(folder)
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None, "the name ends in .py"
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _name_of_file(path: Path) -> str:
    """The module's name: the file's own, unless another module has it."""
    stem, real = path.stem, os.path.realpath(path)
    other = sys.modules.get(stem)
    if other is None or os.path.realpath(getattr(other, "__file__", None) or "") == real:
        return stem
    return f"{stem}_{zlib.crc32(os.fsencode(real)):08x}"
