"""The part of a traceback that belongs to the user's own code, such as an environment: frames of this package and of
Gymnasium's wrappers are left out."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Sequence
from pathlib import Path

from rl_training.errors import RelayedError, UserCodeError

_OURS = str(Path(__file__).parent)
#: parts of the paths of frames that say nothing about the environment
_PASSING_ON = (
    str(Path("gymnasium", "wrappers")),
    str(Path("gymnasium", "core.py")),
    str(Path("gymnasium", "envs", "registration.py")),
    "<frozen ",
    str(Path("importlib", "__init__.py")),
    "multiprocessing",
)


def users_level() -> int:
    """The ``stacklevel`` with which a warning of the caller's points to the line of the user's code that led to it."""
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and str(frame.f_globals.get("__name__")).partition(".")[0] in ("rl_training", "pydantic"):
        frame, level = frame.f_back, level + 1
    return level


class WorkerError(RelayedError):
    """An exception in a worker process: its description, and the environment's frames."""

    def __init__(self, description: str, frames: Sequence[str] = ()) -> None:
        super().__init__(description)
        self.frames = list(frames)


def frames_of(error: BaseException) -> list[str]:
    """The user's own frames of an exception, outermost first, each with its line of code."""
    if isinstance(error, WorkerError):
        return error.frames
    if isinstance(error, UserCodeError) and error.__cause__ is not None:
        return frames_of(error.__cause__)
    return [
        f'File "{frame.filename}", line {frame.lineno}, in {frame.name}: {frame.line or ""}'.rstrip(": ")
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith(_OURS) and not any(part in frame.filename for part in _PASSING_ON)
    ]
