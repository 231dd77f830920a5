"""Errors that are reported to the user. Each message names the problem and how to fix it.

The command line prints these without a traceback and exits with code 2 (3 if training diverged); anything else is a bug and
keeps its traceback.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

MOST_CHOICES_SHOWN = 20
#: longest part of a value that a message repeats, and of a name that is compared with the valid ones
MOST_SHOWN = 200
#: names in Stable-Baselines3 of settings whose names here are not near enough to be found by their letters
HABITS = {
    "action_noise": "exploration_noise",
    "batch_size": "n_minibatches",
    "clip_range_vf": "clip_value",
    "ent_coef": "alpha",
    "exploration_fraction": "exploration_steps",
    "lstm_hidden_size": "lstm_size",
    "policy_delay": "actor_update_interval",
    "target_noise_clip": "noise_clip",
    "target_policy_noise": "target_noise",
    "top_quantiles_to_drop_per_net": "dropped_quantiles",
}
#: what the code of others (environments, wrappers, modules) may raise without ending our process
FOREIGN = (Exception, SystemExit, GeneratorExit)


class RLTrainingError(Exception):
    """Base of every error whose message is meant for the user. The message is one line."""

    def __str__(self) -> str:
        return one_line(super().__str__())


class ConfigError(RLTrainingError):
    """A setting, name or file that cannot be used."""


class UserCodeError(ConfigError):
    """The user's own code raised while a module was imported or an environment was made; ``__cause__`` is what it raised."""


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


class NetworkError(RLTrainingError):
    """A network of the user that failed."""


class ObservationError(RLTrainingError):
    """An observation passed to ``predict`` that does not match the policy."""


class MissingExtraError(RLTrainingError):
    """An optional dependency that is not installed."""

    def __init__(self, package: str, extra: str, what: str = "this") -> None:
        super().__init__(f"{what} needs the package '{package}'; install it with: pip install 'rl-training[{extra}]'")


class DivergenceError(RLTrainingError):
    """A loss, weights or actions that are no longer finite numbers."""


class HookError(RLTrainingError):
    """A hook of the user that failed, or that cannot be saved."""


class CollectorError(RLTrainingError):
    """A collector that dies again and again, or cannot be started."""


class EnvironmentFault(RLTrainingError):
    """An environment raised an exception, or returned an invalid observation or reward.

    The attributes reproduce the fault: reset with ``episode_seed``, then play ``actions``; the last one fails. ``actions`` is
    None if the episode is longer than what is kept of it, and ``step`` is 0 if the reset failed.
    """

    def __init__(
        self, problem: str, *, env_id: str, env_index: int, episode_seed: int, actions: Sequence[Any] | None, step: int
    ) -> None:
        self.problem = problem
        self.env_id = env_id
        self.env_index = env_index
        self.episode_seed = episode_seed
        self.actions = None if actions is None else list(actions)
        self.step = step
        where = f"at step {step} of its episode" if step else "in reset"
        super().__init__(f"environment {env_id} (index {env_index}, episode seed {episode_seed}) {where}: {problem}")


def did_you_mean(name: str, options: Iterable[str], in_full: Mapping[str, str] | None = None) -> str:
    """The end of an error message: the closest valid name; if none is close, all of them, or the nearest three if they are
    many. A name is compared as it is, and shown ``in_full`` if that has it."""
    full = in_full or {}
    choices = sorted(options)
    near = difflib.get_close_matches(name[:MOST_SHOWN], choices, n=3, cutoff=0.0)
    if HABITS.get(name) in choices:
        return f"; did you mean '{full.get(HABITS[name], HABITS[name])}'?"
    if difflib.get_close_matches(name[:MOST_SHOWN], near[:1], cutoff=0.6):
        return f"; did you mean '{full.get(near[0], near[0])}'?"
    if len(choices) <= MOST_CHOICES_SHOWN:
        return f"; choose one of: {', '.join(choices)}" if choices else ""
    return f"; the closest of the {len(choices)} valid names: {', '.join(full.get(one, one) for one in near)}"


def either(words: Sequence[str]) -> str:
    """A list of alternatives: a, b or c."""
    return " or ".join(filter(None, [", ".join(words[:-1]), *words[-1:]]))


def one_line(text: str) -> str:
    """The text on one line, with escapes in place of characters that a terminal cannot show."""
    line = " ".join(part for part in map(str.strip, text.splitlines()) if part)
    if line.isprintable():
        return line
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in line)


def shown(value: object) -> str:
    """A value in a message: what ``repr`` gives, shortened. It may come from anywhere, so even ``repr`` may fail."""
    try:
        text = repr(value)
    except Exception:  # nested too deeply, a number with too many digits, or an object whose repr is broken
        return f"a {type(value).__name__} that cannot be shown"
    return text if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN]}..."


class RelayedError(RuntimeError):
    """An exception of or about another process; its text needs no name of a type."""


def described(error: BaseException) -> str:
    """Another library's exception in a message: its type and its text. Of SQLAlchemy's, what the database said (``orig``),
    without the query."""
    try:
        inside = getattr(error, "orig", None)
        error = inside if isinstance(inside, BaseException) else error
        text = one_line(str(error))
    except Exception:  # an exception of the user's that cannot describe itself
        text = ""
    if isinstance(error, RelayedError):
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def counted(count: int, noun: str) -> str:
    """A number with its noun: ``1 episode``, ``2 episodes``."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
