"""Errors that are reported to the user. Each message names the problem and how to fix it.

The command line prints these without a traceback and exits with code 2; anything else is a bug and keeps its
traceback.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from typing import Any

MOST_CHOICES_SHOWN = 60


class RLTrainingError(Exception):
    """Base of every error whose message is meant for the user."""


class ConfigError(RLTrainingError):
    """A setting, name or file that cannot be used."""


class SpaceError(RLTrainingError):
    """An observation or action space that an algorithm cannot use."""


class CheckpointError(RLTrainingError):
    """A checkpoint or run directory that is missing, damaged, newer than this version, or cannot be written."""


class IncompatibleError(CheckpointError):
    """Something saved that is whole, but that only another version of rl_training can read."""


class PrunedError(CheckpointError):
    """A checkpoint that was removed or replaced while it was being read, as a run does while it trains."""


class CompilationError(RLTrainingError):
    """The update could not be compiled."""


class ObservationError(RLTrainingError):
    """An observation passed to ``predict`` that does not match the policy."""


class MissingExtraError(RLTrainingError):
    """An optional dependency that is not installed."""

    def __init__(self, package: str, extra: str) -> None:
        super().__init__(f"this needs the package '{package}'; install it with: pip install 'rl-training[{extra}]'")


class EnvironmentFault(RLTrainingError):
    """An environment raised an exception, or returned an invalid observation or reward.

    The attributes reproduce the fault: reset with ``episode_seed``, then play ``actions``; the last one fails.
    """

    def __init__(
        self, problem: str, *, env_id: str, env_index: int, episode_seed: int, actions: Sequence[Any], during: str
    ) -> None:
        self.problem = problem
        self.env_id = env_id
        self.env_index = env_index
        self.episode_seed = episode_seed
        self.actions = list(actions)
        self.during = during
        where = "in reset" if during == "reset" else f"at step {len(self.actions)} of its episode"
        super().__init__(f"environment {env_id} (index {env_index}, episode seed {episode_seed}) {where}: {problem}")


def did_you_mean(name: str, options: Iterable[str]) -> str:
    """The end of an error message: the closest valid name, or all valid names if none is close and they are few enough."""
    choices = sorted(options)
    near = difflib.get_close_matches(name, choices, n=1, cutoff=0.6)
    if near:
        return f"; did you mean '{near[0]}'?"
    return f"; choose one of: {', '.join(choices)}" if 0 < len(choices) <= MOST_CHOICES_SHOWN else ""
