"""Whether the updates of a run are compiled: decided once, at its start, and kept when it is resumed."""

from __future__ import annotations

import warnings
from typing import Any

from rl_training.algorithms.base import Algorithm
from rl_training.envs.boundary import Boundary
from rl_training.errors import CompilationError, ConfigError
from rl_training.experiment.config import TrainConfig
from rl_training.runtime.cadence import PhaseTimer
from rl_training.runtime.learner import Learner
from rl_training.runtime.progress import Progress
from rl_training.runtime.signals import StopRequest

#: The cost of compiling and the time it saves, in CPU seconds of one core, fitted to measurements (docs/adr/0007).
SECONDS_TO_COMPILE = 20.0
SAVED_PER_STAGE = 0.35e-3
SAVED_PER_ROW = 2.5e-6  # per stage
SAVED_PER_TERM = 7.2e-9  # in a loss that is a double sum


def repaid_after(algorithm: Algorithm[Any, Any], num_envs: int) -> int:
    """About how many updates of a small network it takes for a compilation from scratch to pay off."""
    per_stage = SAVED_PER_STAGE + SAVED_PER_ROW * algorithm.rows_per_update(num_envs)
    saved = algorithm.updater.stages * per_stage + SAVED_PER_TERM * algorithm.loss_terms()
    return int(round(SECONDS_TO_COMPILE / saved, -2))


class Compilation:
    """Whether a run's updates are compiled. Compiled updates round differently, so a run should not switch."""

    def __init__(
        self,
        config: TrainConfig,
        algorithm: Algorithm[Any, Any],
        learner: Learner,
        timer: PhaseTimer,
        obstacle: str | None = None,
    ) -> None:
        """``obstacle`` is a reason against compiling that is not the algorithm's."""
        self.in_force: bool | None = None  # None: not decided yet
        self.boundary = Boundary("the compilation", compiles=True)
        self._algorithm, self._learner, self._timer = algorithm, learner, timer
        self._ready = False
        self._obstacle = obstacle = algorithm.why_not_compiled() or obstacle
        if config.compile == "on" and obstacle is not None:
            raise ConfigError(f"compile: on is not possible with {config.algo}: {obstacle}; use compile: auto or off")

    def begin(self, config: TrainConfig, progress: Progress, stop: StopRequest) -> None:
        """Called before the first update of this process: makes the decision if it is still open, and compiles if needed."""
        if self._ready:
            return
        before = self.in_force
        wanted, obstacle = config.compile == "on", None
        if config.compile == "auto":
            obstacle = self._obstacle
            wanted = self._pays_off(config, progress) if before is None else before and obstacle is None
        if before is not None and before != wanted:
            reason = f"compile is set to {config.compile}" if obstacle is None else obstacle
            _warn_of_switch(wanted, reason)
        if wanted:
            wanted = self._compile(config, progress, resumed=bool(before), stop=stop)
        if not stop:  # if a signal interrupted the compilation, the decision stays open
            self.in_force, self._ready = wanted, True

    def _pays_off(self, config: TrainConfig, progress: Progress) -> bool:
        algorithm = self._algorithm
        if self._obstacle is not None:
            return False
        if algorithm.policy.spec.observation.images:
            progress.note("compile: auto is off, because convolutions gain little from compilation")
            return False
        updates = config.algo_kwargs.updates_in(config.total_timesteps, config.num_envs)
        enough = repaid_after(algorithm, config.num_envs)
        pays_off = updates >= enough
        progress.note(
            f"compile: auto is {'on' if pays_off else 'off'}: the run makes {updates} updates, and compilation pays off "
            f"after about {enough}"
        )
        return pays_off

    def _compile(self, config: TrainConfig, progress: Progress, *, resumed: bool, stop: StopRequest) -> bool:
        """Compiles the update; returns whether that succeeded. If not, ``auto`` and a resumed run continue without it."""
        progress.note("compiling the update; this takes up to a minute, or a few seconds if it is cached")
        self._timer.lap("rest")
        try:
            self.boundary.enter()
            self._learner.compile()
        except CompilationError as error:
            if stop:  # which ends the compiler's processes too, if it is sent to all of the group
                return False
            if resumed:
                _warn_of_switch(False, f"the update cannot be compiled here ({error})")
            elif config.compile == "on":
                raise ConfigError(
                    f"compile: on, but the update cannot be compiled here ({error}); install a C++ compiler (g++), or use "
                    "compile: auto or off"
                ) from error
            else:
                progress.note(f"the update cannot be compiled here ({error}); continuing without compilation")
            return False
        finally:
            self.boundary.leave()
            self._timer.lap("compilation")
        progress.note(f"compiled in {self._timer.seconds['compilation']:.0f} s")
        return True


def _warn_of_switch(compiled: bool, reason: str) -> None:
    modes = ("without a compiled update", "with a compiled update")
    warnings.warn(
        f"the run started {modes[not compiled]} and continues {modes[compiled]}, because {reason}; its results are no longer "
        "bit-for-bit those of an uninterrupted run",
        stacklevel=3,
    )
