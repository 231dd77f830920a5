"""Stopping a trainer by a signal: what is saved, what is lost, and what the user is shown."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Iterator
from typing import TYPE_CHECKING

from rl_training.envs.boundary import Boundary, StepInterrupted
from rl_training.errors import EnvironmentFault
from rl_training.experiment.trust import trust_option

if TYPE_CHECKING:
    from rl_training.runtime.signals import StopRequest
    from rl_training.runtime.trainer import Trainer


class TrainerStop:
    """The part of a trainer that ``StopRequest`` uses, also in another thread and in the handler of a signal."""

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer

    def boundaries(self) -> list[Boundary]:
        trainer = self._trainer
        return [*(pool.boundary for pool in trainer.pools()), trainer.creating, trainer.compilation.boundary]

    def leave_environments(self) -> None:
        """After an interruption, which may have come just when a pool was about to do this itself."""
        for boundary in self.boundaries():
            boundary.leave()

    @contextlib.contextmanager
    def no_fault_during(self, stop: StopRequest) -> Iterator[None]:
        """Ends the block, without an error, if an environment is stopped by a signal. A signal to the process group also ends
        environment processes, and one that does not return is interrupted; the step then does not count."""
        try:
            yield
        except EnvironmentFault:
            if not stop:
                raise
        except StepInterrupted:
            self.leave_environments()

    def say(self, text: str) -> None:
        with contextlib.suppress(OSError, ValueError, RuntimeError):  # closed, or in the middle of printing something else
            self._trainer.progress.say(text)

    def save_before(self, call: str) -> str:
        """Saves the run as it was before the call that does not end."""
        trainer = self._trainer
        if trainer.run is None or not trainer.started:
            return f"{call} has not finished, and there is nothing to save"
        trainer.hooks.lenient = True
        trainer.checkpoints.save_last()
        trainer.run.wait()
        return f"{call} has not finished; {self.saved()}"

    def saved(self) -> str:
        """How to continue a run that was stopped."""
        trainer = self._trainer
        if not trainer.started:
            return f"stopped before the first step; start again with: {self._resume()}"
        return f"stopped and saved at step {trainer.env_steps}; continue with: {self._resume()}"

    def unsaved(self) -> str:
        """What is lost if the process ends now, and what is left."""
        trainer, at = self._trainer, f"stopped without saving at step {self._trainer.env_steps}"
        if trainer.run is None:
            return f"{at}: the run has no directory, so nothing of it is left"
        step = trainer.run.resumable_step()
        if not trainer.env_steps:
            return f"stopped before the first step, so nothing is lost; start again with: {self._resume()}"
        if step is None:
            return f"{at}: nothing had been saved, so all steps are lost; start again with: {self._resume()}"
        if step >= trainer.env_steps:
            return f"{at}: all steps had been saved, nothing is lost; continue with: {self._resume()}"
        lost = f"the steps after {step} are lost" if step else "all steps are lost"
        return f"{at}: {lost}; continue from step {step} with: {self._resume()}"

    def _resume(self) -> str:
        assert self._trainer.run is not None
        path = self._trainer.run.path
        return f"rl-training resume {shlex.quote(str(path))}{trust_option(self._trainer.config, path)}"
