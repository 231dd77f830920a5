"""Whether the updates of a run are compiled: decided once, at its start, and kept when it is resumed."""

from __future__ import annotations

import time
import warnings

from rl_training.algorithms.base import Algorithm
from rl_training.errors import CompilationError, ConfigError
from rl_training.experiment.config import TrainConfig
from rl_training.runtime.learner import Learner
from rl_training.runtime.progress import Progress
from rl_training.runtime.signals import StopRequest


class Compilation:
    """The mode of a run's updates. Both modes compute the same, but round differently, so a run must stay in its own."""

    def __init__(self, config: TrainConfig, algorithm: Algorithm, learner: Learner) -> None:
        self.in_force: bool | None = None  # None: not decided yet
        self._algorithm, self._learner = algorithm, learner
        self._ready = False
        obstacle = algorithm.why_not_compiled()
        if config.compile == "on" and obstacle is not None:
            raise ConfigError(f"compile: on is not possible with {config.algo}: {obstacle}; use compile: auto or off")

    def begin(self, config: TrainConfig, progress: Progress, stop: StopRequest) -> None:
        """Before the first update of this process: decides if that has not been done, and compiles if so decided."""
        if self._ready:
            return
        before = self.in_force
        wanted = config.compile == "on"
        if config.compile == "auto":
            wanted = before if before is not None else self._repays(config, progress)
        if before is not None and before != wanted:
            _say_switch(wanted, f"as compile: {config.compile} says")
        if wanted:
            wanted = self._compile(config, progress, resumed=bool(before), stop=stop)
        if not stop:  # what a signal broke off stays undecided
            self.in_force, self._ready = wanted, True

    def _repays(self, config: TrainConfig, progress: Progress) -> bool:
        if self._algorithm.why_not_compiled() is not None:
            return False
        updates = config.algo_kwargs.updates_in(config.total_timesteps, config.num_envs)
        enough = self._algorithm.compile_repaid_after
        if updates < enough:
            progress.note(f"compile: auto: off, for {updates} updates are ahead and {enough} would repay the compilation")
        else:
            progress.note(f"compile: auto: on, for {updates} updates are ahead and {enough} repay the compilation")
        return updates >= enough

    def _compile(self, config: TrainConfig, progress: Progress, *, resumed: bool, stop: StopRequest) -> bool:
        """Whether it succeeded. Without a working compiler ``auto`` and a resumed run go on without."""
        progress.note("compiling the update; this takes up to a minute, or seconds if it was done before")
        begun = time.monotonic()
        try:
            self._learner.compile()
        except CompilationError as error:
            if resumed and not stop:
                _say_switch(False, f"for its update cannot be compiled here ({error})")
            elif config.compile == "on" and not stop:
                raise ConfigError(
                    f"compile: on, but the update cannot be compiled here ({error}); install a C++ compiler (g++), or use "
                    "compile: auto or off"
                ) from error
            else:
                progress.note(f"not compiled ({error}); going on without")
            return False
        progress.note(f"compiled in {time.monotonic() - begun:.0f} s")
        return True


def _say_switch(compiled: bool, reason: str) -> None:
    modes = ("without a compiled update", "with a compiled update")
    warnings.warn(
        f"the run began {modes[not compiled]} and goes on {modes[compiled]}, {reason}: no longer bit for bit as it would "
        "have gone",
        stacklevel=3,
    )
