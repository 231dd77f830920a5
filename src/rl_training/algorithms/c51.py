"""C51: a categorical distribution of the return (Bellemare et al., arXiv:1707.06887)."""

from __future__ import annotations

from typing import Annotated, cast

import torch
from pydantic import Field, model_validator
from torch import Tensor
from torch.nn import functional as F

from rl_training.algorithms.config import Integer, Number
from rl_training.algorithms.epsilon_greedy import EpsilonGreedyPolicy
from rl_training.algorithms.q_values import Values, select_actions, take_action
from rl_training.algorithms.update import NOTHING, Known
from rl_training.algorithms.value import LossOutput, ValueAlgorithm, ValueConfig, make_body
from rl_training.models import CategoricalQNetwork
from rl_training.types import SpaceSpec, TransitionBatch

__all__ = ["C51", "C51Config", "categorical_projection"]


class C51Config(ValueConfig):
    """Settings of C51."""

    num_atoms: Annotated[Integer, Field(ge=2)] = Field(51, description="number of atoms per action")
    v_min: Number = Field(-10.0, description="lowest value of the support")
    v_max: Number = Field(10.0, description="highest value of the support")

    @model_validator(mode="after")
    def _support_is_not_empty(self) -> C51Config:
        if self.v_min >= self.v_max:
            raise ValueError(f"v_min ({self.v_min}) must be below v_max ({self.v_max})")
        if self.initial_value is not None and not self.v_min <= self.initial_value <= self.v_max:
            raise ValueError(
                f"initial_value ({self.initial_value}) must be between v_min ({self.v_min}) and v_max ({self.v_max})"
            )
        return self

    def initial_outputs(self) -> Tensor | None:
        """Logits that fall off by 1 per atom on both sides of the initial value."""
        if self.initial_value is None:
            return None
        support = torch.linspace(self.v_min, self.v_max, self.num_atoms)
        return -(support - self.initial_value).abs() / (support[1] - support[0])


def categorical_projection(values: Tensor, probabilities: Tensor, support: Tensor) -> Tensor:
    """Projects probabilities of arbitrary values (batch, j) onto an evenly spaced support (i,): (batch, i).

    Equation 7 of the paper: the probability of a value is divided between its two neighbouring atoms. If the value is an
    atom, that atom receives all of it; values outside the support are clipped to its ends.
    """
    assert values.shape == probabilities.shape
    count = len(support)
    step = (support[-1] - support[0]) / (count - 1)
    position = ((values - support[0]) / step).clamp(0.0, count - 1.0)
    lower = position.floor()
    upper_share = position - lower
    index = lower.long()
    projected = values.new_zeros(len(values), count + 1)  # one extra atom: the upper neighbour of the last one
    projected.scatter_add_(1, index, probabilities * (1.0 - upper_share))
    projected.scatter_add_(1, index + 1, probabilities * upper_share)
    return projected[:, :count]


class C51(ValueAlgorithm[C51Config]):
    """Deep Q-learning of the distribution of the return, on fixed atoms (Bellemare et al. 2017).

    With all options enabled it is Rainbow (Hessel et al. 2017).
    """

    name = "c51"
    summary = "a categorical distribution of the return, with DQN's options; with all of them it is Rainbow"

    @classmethod
    def make_policy(cls, config: C51Config, spec: SpaceSpec, generator: torch.Generator) -> EpsilonGreedyPolicy:
        trunk, head = make_body(config, spec, generator, atoms=config.num_atoms)
        network = CategoricalQNetwork(trunk, head, config.v_min, config.v_max)
        return EpsilonGreedyPolicy(network, spec, config, noisy=config.noisy)

    def loss(self, online: Values, target: Values, batch: TransitionBatch, known: Known = NOTHING) -> LossOutput:
        support = cast("CategoricalQNetwork", self.target).support
        with torch.no_grad():
            next_probabilities = target(batch.next_obs).softmax(dim=2)
            chooser = online(batch.next_obs).softmax(dim=2) if self.config.double else next_probabilities
            bootstrap = take_action(next_probabilities, select_actions(chooser @ support, batch))
            values = batch.reward.unsqueeze(1) + batch.discount.unsqueeze(1) * support
            projected = categorical_projection(values, bootstrap, support)
        logits = take_action(online(batch.obs), batch.action)
        loss = -(projected * F.log_softmax(logits, dim=1)).sum(dim=1)
        value, target_mean = logits.detach().softmax(dim=1) @ support, projected @ support
        metrics = {"q_value_mean": value, "target_mean": target_mean, "td_error_mean": (target_mean - value).abs()}
        divergence = loss.detach() + torch.xlogy(projected, projected).sum(dim=1)
        return LossOutput(loss, metrics, divergence)  # Rainbow's priority: the KL divergence, 0 for a perfect fit
