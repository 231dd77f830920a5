"""Action distributions on the outputs of a policy network: log-probabilities, sampling and modes.

Learning uses torch; sampling uses numpy and the run's own generator.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rl_training.types import ActionSpec, Array

#: The logit of a forbidden action. It makes the probability exactly 0 and, unlike minus infinity, the entropy term too.
FORBIDDEN = -1e8
_LOG_SQRT_2_PI = 0.5 * math.log(2.0 * math.pi)


class ActionHead(nn.Module, ABC):
    """The distribution over actions that a network describes with ``outputs`` numbers."""

    outputs: int
    output_name: str

    @abstractmethod
    def log_prob_and_entropy(self, output: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """(batch, outputs), (batch, ...) -> log-probability and entropy, each (batch,)."""

    @abstractmethod
    def sample(self, output: Array, rng: np.random.Generator) -> Array:
        """One action per row, sampled independently."""

    @abstractmethod
    def mode(self, output: Array) -> Array:
        """The most likely action of each row."""

    @abstractmethod
    def env_mode(self, output: Tensor) -> Tensor:
        """``mode`` as environment actions, in torch, for export."""


class CategoricalHead(ActionHead):
    """Discrete actions from logits."""

    output_name = "logits"

    def __init__(self, spec: ActionSpec) -> None:
        super().__init__()
        self.outputs = spec.count
        self._spec = spec

    def log_prob_and_entropy(self, output: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        log_probs = output.log_softmax(dim=1)
        chosen = log_probs.gather(1, action.unsqueeze(1)).squeeze(1)
        return chosen, -(log_probs.exp() * log_probs).sum(dim=1)

    def sample(self, output: Array, rng: np.random.Generator) -> Array:
        # The Gumbel-max trick: -log of an exponential draw is Gumbel noise, and the largest noisy logit is a sample.
        action: Array = (output - np.log(rng.standard_exponential(output.shape))).argmax(axis=1)
        return action

    def mode(self, output: Array) -> Array:
        action: Array = output.argmax(axis=1)
        return action

    def env_mode(self, output: Tensor) -> Tensor:
        return index_to_env(output.argmax(dim=1), self._spec)


class MultiCategoricalHead(ActionHead):
    """Several independent choices, each from its own logits. The probability of an action is the product of theirs."""

    output_name = "logits"

    def __init__(self, spec: ActionSpec) -> None:
        super().__init__()
        self.outputs = spec.count
        self._spec, self._sizes, self._cuts = spec, list(spec.sizes), np.cumsum(spec.sizes)[:-1]

    def log_prob_and_entropy(self, output: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        log_prob, entropy = torch.zeros_like(output[:, 0]), torch.zeros_like(output[:, 0])
        for logits, chosen in zip(torch.split(output, self._sizes, dim=1), action.unbind(1), strict=True):
            log_probs = F.log_softmax(logits, dim=1)
            log_prob = log_prob + log_probs.gather(1, chosen.unsqueeze(1)).squeeze(1)
            entropy = entropy - (log_probs.exp() * log_probs).sum(dim=1)
        return log_prob, entropy

    def sample(self, output: Array, rng: np.random.Generator) -> Array:
        return self.mode(output - np.log(rng.standard_exponential(output.shape)))  # the Gumbel-max trick, as above

    def mode(self, output: Array) -> Array:
        return np.stack([logits.argmax(axis=1) for logits in np.split(output, self._cuts, axis=1)], axis=1)

    def env_mode(self, output: Tensor) -> Tensor:
        chosen = [logits.argmax(dim=1) for logits in torch.split(output, self._sizes, dim=1)]
        return _choices_to_env(chosen, self._spec)


class GaussianHead(ActionHead):
    """Continuous actions from their means, with one learned, state-independent standard deviation per dimension.

    A sampled action may be outside [-1, 1]: the environment gets it clipped, but learning uses it unclipped. Where the
    environment sets no bounds, it gets the sample as it is.
    """

    output_name = "mean"

    def __init__(self, spec: ActionSpec, initial_log_std: float) -> None:
        super().__init__()
        self.outputs = len(spec.low)
        self._spec = spec
        self.log_std = nn.Parameter(torch.full((self.outputs,), initial_log_std))

    def log_prob_and_entropy(self, output: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        distance = (action - output) * (-self.log_std).exp()
        log_prob = -(0.5 * distance.square() + self.log_std + _LOG_SQRT_2_PI).sum(dim=1)
        entropy = (self.log_std + 0.5 + _LOG_SQRT_2_PI).sum()
        return log_prob, entropy.expand_as(log_prob)

    def sample(self, output: Array, rng: np.random.Generator) -> Array:
        noise = rng.standard_normal(output.shape, np.float32)
        std = np.exp(self.log_std.detach().cpu().numpy())
        action: Array = output + std * noise
        return action

    def mode(self, output: Array) -> Array:
        return output

    def env_mode(self, output: Tensor) -> Tensor:
        return scale_to_env(output, self._spec)


def scale_to_env(action: Tensor, spec: ActionSpec) -> Tensor:
    """``ActionSpec.to_env`` of continuous actions as torch operations, for export."""
    low, high = map(torch.from_numpy, spec.scaled_bounds)
    scaled = low + (action.clamp(-1.0, 1.0) + 1.0) * 0.5 * (high - low)
    scaled = torch.minimum(scaled, high)
    if spec.kind == "unbounded":
        within = action.clamp(torch.tensor(spec.low), torch.tensor(spec.high))
        scaled = torch.where(torch.from_numpy(spec.has_bounds), scaled, within)
    return scaled.reshape(-1, *spec.raw_shape)


def index_to_env(action: Tensor, spec: ActionSpec) -> Tensor:
    """``ActionSpec.to_env`` of discrete actions (batch,) as torch operations, for export."""
    if not spec.sizes:
        return action + spec.start
    chosen: list[Tensor] = []
    for size in reversed(spec.sizes):  # the last choice changes fastest
        chosen.insert(0, action % size)
        action = torch.div(action, size, rounding_mode="floor")
    return _choices_to_env(chosen, spec)


def _choices_to_env(chosen: Sequence[Tensor], spec: ActionSpec) -> Tensor:
    return (torch.stack(list(chosen), dim=1) + torch.tensor(spec.starts)).reshape(-1, *spec.raw_shape)


def make_action_head(spec: ActionSpec, initial_log_std: float = 0.0) -> ActionHead:
    """The head that fits an action space."""
    if spec.kind == "multi_discrete":
        return MultiCategoricalHead(spec)
    return CategoricalHead(spec) if spec.kind == "discrete" else GaussianHead(spec, initial_log_std)
