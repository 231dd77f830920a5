"""Notices that a run has diverged: its loss or its weights are no longer finite numbers, so that it cannot learn any more.

The update itself is not checked, because reading a number would stall it. The trainer asks before it logs, evaluates and
saves, so a run that has diverged never replaces a finite checkpoint.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rl_training.algorithms.policy import Policy
from rl_training.errors import DivergenceError

if TYPE_CHECKING:
    from rl_training.runtime.trainer import Trainer


def weights_problem(policy: Policy) -> str | None:
    """Names the first tensor of a policy's networks that is not finite, if there is one."""
    states = [("", policy.network), *(("average.", network) for network in policy.networks[1:])]
    named = {f"{prefix}{name}": value for prefix, network in states for name, value in network.state_dict().items()}
    tensors = {name: value for name, value in named.items() if value.is_floating_point()}
    sums: dict[torch.device, list[Tensor]] = {}  # statistics in double precision may be on another device than the weights
    for value in tensors.values():
        sums.setdefault(value.device, []).append(value.sum(dtype=torch.float32))
    # A finite sum proves that all terms are finite. An infinite one may only have overflowed, so check each term.
    if all(bool(torch.stack(own).sum().isfinite()) for own in sums.values()):
        return None
    names = (name for name, value in tensors.items() if not bool(value.isfinite().all()))
    return next((f"the weights '{name}' are not finite" for name in names), None)


def require_finite(policy: Policy, place: str) -> None:
    """Refuses a policy whose weights are not finite, because its actions are meaningless."""
    problem = weights_problem(policy)
    if problem is not None:
        raise DivergenceError(
            f"the policy in {place} cannot be used: {problem}, because its training diverged; use another one"
        )


class DivergenceWatch:
    """Checks a trainer whenever it is asked, and remembers when everything was finite."""

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer
        self._finite_at: int | None = None  # the step
        self._checked: int | None = None  # the updates made by then

    def check(self) -> None:
        """Raises a ``DivergenceError`` if the last loss or the weights are not finite."""
        trainer = self._trainer
        if self._checked != trainer.learner.updates:
            problem = self._loss_problem() or weights_problem(trainer.policy)
            if problem is not None:
                raise DivergenceError(problem)
            self._checked = trainer.learner.updates
        self._finite_at = trainer.env_steps

    def _loss_problem(self) -> str | None:
        for name, value in self._trainer.learner.metrics.items():
            if "loss" in name and not math.isfinite(value):
                return f"{name} is {value}"
        return None

    def explained(self, error: DivergenceError) -> DivergenceError:
        """The error with what the user needs to know: when, what is left, and what to try."""
        trainer = self._trainer
        settings = trainer.config.algo_kwargs
        advice = [f"lower algo_kwargs.learning_rate ({settings.learning_rate_schedule()(trainer.env_steps):g} now)"]
        clip = settings.max_grad_norm
        advice.append(f"lower algo_kwargs.max_grad_norm ({clip:g} now)" if clip else "set algo_kwargs.max_grad_norm")
        to_try = f"To try: {', '.join(advice)}, or scale the rewards down, and train again"
        if self._finite_at is None:  # every session begins with a check
            return DivergenceError(
                f"training had diverged before this session began at step {trainer.env_steps}: {error}. A checkpoint like "
                f"this cannot be continued; remove it to resume from an older one. {to_try}"
            )
        return DivergenceError(
            f"training diverged by step {trainer.env_steps}: {error} (all was finite last at step {self._finite_at}). "
            f"{self._saved()}{to_try}"
        )

    def _saved(self) -> str:
        run = self._trainer.run
        if run is None:
            return ""
        run.wait()
        latest = run.checkpoints / "latest"
        if not latest.exists():
            return "No checkpoint had been written by then. "
        return (
            f"The last finite checkpoint is {latest.resolve()}; resuming from it would diverge again, unless with a change "
            "(resume --set). "
        )
