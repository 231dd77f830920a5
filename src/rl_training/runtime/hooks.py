"""Hooks: objects that are called while training runs. ``Callback`` lists what they can be called for.

The loop's own chores (statistics, budget, log, progress, best checkpoint) are called first, then the hooks, each for what it
has a method for. Between two steps a run is whole, and hooks are called only there: one that fails loses nothing.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rl_training.algorithms.policy import Policy
from rl_training.envs.own_state import plain_copy
from rl_training.envs.pool import Episode
from rl_training.errors import FOREIGN, ConfigError, HookError, described, did_you_mean, one_line, shown
from rl_training.experiment.config import TrainConfig
from rl_training.runtime.evaluation import EvaluationResult
from rl_training.runtime.result import TrainResult
from rl_training.types import State

if TYPE_CHECKING:
    from rl_training.runtime.trainer import Trainer


class Training:
    """The view of a run that a hook may read at any time."""

    def __init__(self, trainer: Trainer, total_timesteps: int) -> None:
        self._trainer = trainer
        self.config: TrainConfig = trainer.config
        self.total_timesteps = total_timesteps  # where this call of ``learn`` ends
        self.run_dir: Path | None = None if trainer.run is None else trainer.run.path

    @property
    def env_steps(self) -> int:
        """The env steps of the whole run so far."""
        return self._trainer.env_steps

    @property
    def policy(self) -> Policy:
        """The policy that is being trained. Whoever changes it changes the run."""
        return self._trainer.policy

    def metrics(self) -> dict[str, float]:
        """The metrics as of now."""
        return self._trainer.train_metrics()


class Callback:
    """A hook. It defines the methods that it needs, and need not inherit from this class.

    Every method but ``on_fault`` and ``on_stop`` may return a text, the reason why it asks to stop: the run is then saved and
    ends between two steps. If a hook has ``state_dict`` and ``load_state_dict``, its state (plain data and numpy arrays) is
    in every checkpoint, and a resumed run that is given the same hooks continues exactly. If a method raises, the run is
    saved and ends with an error that names the hook.
    """

    def on_start(self, training: Training) -> str | None:
        """Training begins or continues; ``training`` can be kept and read later."""

    def on_episode(self, episode: Episode) -> str | None:
        """A training episode has ended."""

    def on_update(self, metrics: Mapping[str, float]) -> str | None:
        """The metrics that were just logged, every ``log.interval`` env steps."""

    def on_evaluation(self, result: EvaluationResult) -> str | None:
        """An evaluation during training; the final one is in the result of ``on_stop``."""

    def on_checkpoint(self, path: Path) -> str | None:
        """A checkpoint of the run is on disk; training waits for that. Its hook states are from before this call, which a run
        resumed from it therefore repeats."""

    def on_fault(self, error: BaseException) -> None:
        """The run ends with this error."""

    def on_stop(self, result: TrainResult) -> None:
        """The run has ended without an error: all is saved."""


#: The events, each with the name of its argument.
EVENTS = {
    name: [*inspect.signature(method).parameters][1] for name, method in vars(Callback).items() if name.startswith("on_")
}
#: The events at which a hook can ask the run to stop.
STOPPING = frozenset(EVENTS) - {"on_fault", "on_stop"}
_STATE = ("state_dict", "load_state_dict")
_Method = Callable[[Any], Any]


class Hooks:
    """The hooks of a trainer: calls them, and keeps their states and their requests to stop."""

    def __init__(self) -> None:
        self.stopped_by: str | None = None  # a sentence: which hook asked to stop, and why
        self._chores: dict[str, list[_Method]] = {event: [] for event in EVENTS}
        self._hooks: dict[str, Any] = {}  # by name
        self._listening: dict[str, list[tuple[str, _Method]]] = {event: [] for event in EVENTS}
        self._states: State = {}  # the latest states, including those of hooks that are not attached (yet)
        self.lenient = False  # whether a hook whose ``state_dict`` fails keeps its previous state, without an error

    def attach(self, chores: Iterable[object], hooks: Iterable[object]) -> None:
        """Takes the hooks of one call of ``train``. Those that are new take over the states of their namesakes."""
        named = _named(require_hooks(hooks))
        self.state_dict()
        for name in self._states.keys() & named.keys():
            if all(named[name] is not hook for hook in self._hooks.values()):
                self._call(name, "load_state_dict", _load_state, named[name], self._states[name])
        self._hooks, self.stopped_by, self.lenient = named, None, False
        own = list(chores)
        for event in EVENTS:
            self._chores[event] = [getattr(chore, event) for chore in own if hasattr(chore, event)]
            self._listening[event] = [(name, method) for name, hook in named.items() if (method := _method(hook, event))]
        left = sorted(self._states.keys() - named.keys())
        if left:
            warnings.warn(
                f"the run has the state of a hook ({', '.join(left)}) that it is not given now, so it may not continue as it "
                "would have; pass the same hooks as before",
                stacklevel=4,
            )

    def listens(self, event: str) -> bool:
        return bool(self._listening[event])

    def emit(self, event: str, *values: Any) -> None:
        """Calls the chores and then every hook that has a method for the event, with each of the values. If some fail, the
        others are still called, and the first failure is raised."""
        for chore in self._chores[event]:
            for value in values:
                chore(value)
        failure: HookError | None = None
        for name, method in self._listening[event]:
            try:
                for value in values:
                    answer = self._call(name, event, method, value)
                    if answer is not None:
                        self._take(name, event, answer)
            except HookError as error:
                failure = failure or error
        if failure is not None:
            raise failure

    def _call(self, name: str, event: str, method: Callable[..., Any], *values: Any) -> Any:
        try:
            return method(*values)
        except FOREIGN as error:
            raise HookError(f"the hook {name} failed in {event}: {described(error)}") from error

    def _take(self, name: str, event: str, answer: object) -> None:
        """Records that a hook asked to stop."""
        if event not in STOPPING or not isinstance(answer, str):
            expected = "None, or a text, the reason to stop" if event in STOPPING else "None"
            raise HookError(f"the hook {name} returned {shown(answer)} from {event}, which must return {expected}")
        self.stopped_by = self.stopped_by or f"the hook {name} asked to stop: {one_line(answer)}"

    def emit_fault(self, error: BaseException) -> None:
        """Calls ``on_fault``; a failure there must not replace the error."""
        try:
            self.emit("on_fault", error)
        except HookError as failure:
            warnings.warn(f"{failure}; ignored, because the run ends with another error", stacklevel=3)

    def state_dict(self) -> State:
        """Copies of the hooks' states, by name."""
        for name, hook in self._hooks.items():
            if hasattr(hook, "state_dict"):
                try:
                    self._states[name] = self._call(name, "state_dict", _state_of, hook)
                except HookError:
                    if not self.lenient:
                        raise
        return dict(self._states)

    def load_state_dict(self, states: State) -> None:
        """States of hooks that are attached later."""
        self._states = dict(states)


def require_hooks(hooks: Iterable[object]) -> list[object]:
    """The hooks as a list, or an error that names what is wrong with one."""
    if not isinstance(hooks, Iterable) or isinstance(hooks, str):
        raise ConfigError(f"callbacks must be a list of hooks, not {shown(hooks)}")
    given = list(hooks)
    for hook in given:
        problem = _problem(hook)
        if problem is not None:
            raise ConfigError(f"callbacks: {problem}")
    return given


def _named(hooks: Iterable[object]) -> dict[str, Any]:
    """Hooks by the names of their classes."""
    named: dict[str, Any] = {}
    for hook in hooks:
        base = type(hook).__name__
        same = sum(type(other).__name__ == base for other in named.values())
        named[f"{base}-{same + 1}" if same else base] = hook
    return named


def _problem(hook: object) -> str | None:
    """Why this is no hook, if it is none."""
    if isinstance(hook, type):
        return f"{hook.__name__} is a class; pass an object: {hook.__name__}()"
    name = f"the {type(hook).__name__} {shown(hook)}" if type(hook).__module__ == "builtins" else type(hook).__name__
    has = [event for event in EVENTS if _method(hook, event) is not None]
    for other in dir(hook):
        if other.startswith("on_") and other not in EVENTS:
            return f"{name} has the method {other}, which no event has{did_you_mean(other, EVENTS)}"
    if not has:
        return f"{name} is no hook: it has none of the methods {', '.join(EVENTS)}"
    for event in has:
        try:
            inspect.signature(getattr(hook, event)).bind(None)
        except (TypeError, ValueError):
            return f"{name}.{event} must be a method with one argument: def {event}(self, {EVENTS[event]})"
    missing = [method for method in _STATE if not callable(getattr(hook, method, None))]
    if len(missing) == 1:
        return f"{name} has no {missing[0]}; a hook with a state has both state_dict and load_state_dict"
    return None


def _method(hook: object, event: str) -> _Method | None:
    """The method of a hook for an event, unless it is the empty one that it inherits."""
    inherited = getattr(type(hook), event, None) is getattr(Callback, event)
    method: _Method | None = None if inherited else getattr(hook, event, None)
    return method


def _state_of(hook: Any) -> State:
    """A copy of a hook's state, as a checkpoint returns it."""
    state = hook.state_dict()
    if not isinstance(state, dict):
        raise TypeError(f"the state is {shown(state)}, but must be a dictionary")
    copied: State = plain_copy(state, "the state")
    return copied


def _load_state(hook: Any, state: State) -> None:
    if not hasattr(hook, "load_state_dict"):
        raise TypeError("the run has a state of it, but it has no load_state_dict")
    hook.load_state_dict(plain_copy(state, "the state"))
