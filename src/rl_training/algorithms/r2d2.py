"""R2D2 (Kapturowski et al. 2019, OpenReview r1lyTjAqYX) in one process: prioritised replay of sequences, n-step targets, and
the other parts of the paper as options."""

from __future__ import annotations

from typing import Any

import torch
from pydantic import Field
from torch import Tensor

from rl_training.algorithms.config import Count, Fraction, Positive
from rl_training.algorithms.recurrent_value import (
    RecurrentQLearning,
    RecurrentQPolicy,
    RecurrentValueConfig,
    network_options,
)
from rl_training.algorithms.strict_model import MAY_CHANGE
from rl_training.data import PrioritizedRecurrentReplayBuffer
from rl_training.models import LSTMQNetwork
from rl_training.schedules import Schedule, importance_exponent
from rl_training.types import SequenceBatch, SpaceSpec, UpdateResult

__all__ = ["R2D2", "R2D2Config"]


RESCALE_EPSILON = 1e-3


class R2D2Config(RecurrentValueConfig):
    """Settings of R2D2."""

    double: bool = Field(True, description="choose the bootstrap action with the online network")
    n_step: Positive = Field(5, description="rewards summed in one target")
    priority_alpha: Fraction = Field(0.9, description="exponent of the priorities; 0: uniform sampling")
    priority_beta: Fraction = Field(
        0.6, description="initial importance-sampling exponent; 0: no correction", json_schema_extra=MAY_CHANGE
    )
    priority_beta_steps: Count = Field(
        0,
        description="env steps over which the importance-sampling exponent grows to 1; 0: constant",
        json_schema_extra=MAY_CHANGE,
    )
    priority_eta: Fraction = Field(0.9, description="weight of the maximum TD error in a priority; the mean has the rest")
    rescale_values: bool = Field(False, description="learn rescaled values: sgn(x)(sqrt(|x| + 1) - 1) + x/1000")
    previous_inputs: bool = Field(False, description="also feed the previous action and reward to the LSTM")
    dueling: bool = Field(False, description="separate streams for the state's value and the actions' advantages")

    @property
    def prioritizes(self) -> bool:
        return True

    def initial_outputs(self) -> Tensor | None:
        outputs = super().initial_outputs()
        return rescale(outputs) if self.rescale_values and outputs is not None else outputs


def rescale(x: Tensor) -> Tensor:
    """h(x) = sgn(x)(sqrt(|x| + 1) - 1) + e x (Pohlen et al., arXiv:1805.11593)."""
    return x.sign() * ((x.abs() + 1.0).sqrt() - 1.0) + RESCALE_EPSILON * x


def unrescale(x: Tensor) -> Tensor:
    """The inverse of ``rescale``: sgn(x)(((sqrt(1 + 4e(|x| + 1 + e)) - 1) / 2e)^2 - 1).

    In single precision, sqrt(1 + r) - 1 with r = 4e(|x| + 1 + e) would lose most digits to cancellation, so it is computed
    as r / (sqrt(1 + r) + 1).
    """
    shifted = x.abs() + (1.0 + RESCALE_EPSILON)
    root = 2.0 * shifted / ((1.0 + 4.0 * RESCALE_EPSILON * shifted).sqrt() + 1.0)
    return x.sign() * (root.square() - 1.0)


def sequence_priorities(error: Tensor, mask: Tensor, eta: float) -> Tensor:
    """(time, batch) absolute TD errors -> (batch,): eta * max + (1 - eta) * mean, over real steps only."""
    real = error * mask
    return eta * real.amax(dim=0) + (1.0 - eta) * real.sum(dim=0) / mask.sum(dim=0)


class R2D2(RecurrentQLearning[R2D2Config]):
    """Recurrent replay with priorities and n-step targets (Kapturowski et al. 2019), in one process."""

    name = "r2d2"
    summary = "DRQN with prioritised sequences and n-step targets; optionally with rescaled values, previous inputs and more"
    #: (batch,) priorities of the sequences in the last update
    last_sequence_priorities: Tensor | None = None

    @classmethod
    def make_policy(cls, config: R2D2Config, spec: SpaceSpec, generator: torch.Generator) -> RecurrentQPolicy:
        network = LSTMQNetwork(
            spec.observation,
            spec.action.count,
            generator,
            **network_options(config),
            dueling=config.dueling,
            takes_previous=config.previous_inputs,
        )
        return RecurrentQPolicy(network, spec, config)

    def update(self, batch: SequenceBatch, env_steps: int = 0) -> UpdateResult:
        result = super().update(batch, env_steps)
        self.last_sequence_priorities = result.priorities
        return result

    def to_returns(self, value: Tensor) -> Tensor:
        return unrescale(value) if self.config.rescale_values else value

    def from_returns(self, target: Tensor) -> Tensor:
        return rescale(target) if self.config.rescale_values else target

    def priorities(self, error: Tensor, mask: Tensor) -> Tensor:
        return sequence_priorities(error, mask, self.config.priority_eta)

    def importance_exponent(self) -> Schedule:
        return importance_exponent(self.config.priority_beta, self.config.priority_beta_steps)

    def make_buffer(self, options: dict[str, Any]) -> PrioritizedRecurrentReplayBuffer:
        config, spec = self.config, self.policy.spec
        return PrioritizedRecurrentReplayBuffer(
            **options,
            alpha=config.priority_alpha,
            previous_actions=spec.action.count if config.previous_inputs else 0,
            eta=config.priority_eta,
        )
