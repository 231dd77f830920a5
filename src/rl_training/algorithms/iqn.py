"""IQN: implicit quantile networks (Dabney et al., arXiv:1806.06923)."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from pydantic import Field
from torch import Tensor

from rl_training.algorithms.config import Positive, PositiveNumber
from rl_training.algorithms.epsilon_greedy import EpsilonGreedyPolicy
from rl_training.algorithms.q_values import Values, select_actions, take_action
from rl_training.algorithms.qr_dqn import quantile_huber_loss, quantile_levels
from rl_training.algorithms.update import NOTHING, Draw, Known
from rl_training.algorithms.value import LossOutput, ValueAlgorithm, ValueConfig, ValueRangeConfig, make_body
from rl_training.models import ValueHead, ValueNetwork
from rl_training.models.encoder import Encoder
from rl_training.models.mlp import make_mlp
from rl_training.types import Array, SpaceSpec, TransitionBatch

__all__ = ["IQN", "IQNConfig"]


class IQNConfig(ValueRangeConfig, ValueConfig):
    """Settings of IQN."""

    num_quantiles: Positive = Field(32, description="quantiles drawn for each prediction (N)")
    num_target_quantiles: Positive = Field(32, description="quantiles drawn for each target (N')")
    num_acting_quantiles: Positive = Field(32, description="quantiles averaged in a Q-value, when acting (K)")
    num_cosines: Positive = Field(64, description="cosines in the embedding of a quantile's level (n)")
    kappa: PositiveNumber = Field(1.0, description="threshold of the quantile Huber loss")


class ImplicitQuantileNetwork(ValueNetwork):
    """``forward``: (batch, ...) and levels (batch, k) -> the return's quantiles at these levels, (batch, action, k).

    The features are multiplied by an embedding of the level: a layer on cos(pi i level), i = 0 .. n - 1 (equation 4).
    Without levels, it uses fixed midpoints in place of the paper's random samples, so that acting is deterministic.
    """

    frequencies: Tensor
    midpoints: Tensor

    def __init__(self, trunk: Encoder, head: ValueHead, config: IQNConfig, generator: torch.Generator) -> None:
        super().__init__()
        self.trunk = trunk
        self.head = head
        self.embedding = make_mlp([config.num_cosines, trunk.out_features], generator, config.style(), activate_last=True)
        self.register_buffer("frequencies", math.pi * torch.arange(config.num_cosines))
        self.register_buffer("midpoints", quantile_levels(config.num_acting_quantiles))

    def forward(self, obs: Tensor, levels: Tensor | None = None) -> Tensor:
        cosines = torch.cos((self.midpoints if levels is None else levels).unsqueeze(-1) * self.frequencies)
        features = self.trunk(self.trunk.prepare(obs)).unsqueeze(1) * self.embedding(cosines)  # (batch, k, feature)
        quantiles: Tensor = self.head(features.flatten(0, 1)).view(-1, cosines.shape[-2], self.head.actions)
        return quantiles.transpose(1, 2)

    def q_values(self, obs: Tensor) -> Tensor:
        return self.forward(obs).mean(dim=2)

    def q_function(self, noisy: bool = False) -> Callable[[Array], Array]:
        if not (self.trunk.has_numpy() and self.embedding.has_numpy()):
            return super().q_function(noisy)
        trunk, embed, head = self.trunk.numpy_forward(), self.embedding.numpy_forward(), self.head.numpy_forward(noisy)
        cosines = torch.cos(self.midpoints.unsqueeze(1) * self.frequencies).numpy()

        def q_values(obs: Array) -> Array:
            features = trunk(obs)[:, None] * embed(cosines)
            values: Array = head(features.reshape(-1, features.shape[2])).reshape(*features.shape[:2], -1).mean(axis=1)
            return values

        return q_values


class IQN(ValueAlgorithm[IQNConfig]):
    """Deep Q-learning of the return's whole quantile function, at random levels (Dabney et al. 2018)."""

    name = "iqn"
    summary = "implicit quantile networks: quantiles of the return at random levels, with DQN's options"

    @classmethod
    def make_policy(cls, config: IQNConfig, spec: SpaceSpec, generator: torch.Generator) -> EpsilonGreedyPolicy:
        network = ImplicitQuantileNetwork(*make_body(config, spec, generator), config, generator)
        return EpsilonGreedyPolicy(network, spec, config, noisy=config.noisy)

    def loss_terms(self) -> int:
        return self.config.batch_size * self.config.num_quantiles * self.config.num_target_quantiles

    def draws(self) -> dict[str, Draw[TransitionBatch]]:
        counts = {"levels": self.config.num_quantiles, "target_levels": self.config.num_target_quantiles}

        def uniform(count: int) -> Draw[TransitionBatch]:
            return Draw(lambda batch: (len(batch.reward), count), "uniform")

        return {name: uniform(count) for name, count in counts.items()}

    def loss(self, online: Values, target: Values, batch: TransitionBatch, known: Known = NOTHING) -> LossOutput:
        config, levels = self.config, known["levels"]
        with torch.no_grad():
            chooser = online if config.double else target
            best = select_actions(chooser(batch.next_obs).mean(dim=2), batch)
            bootstrap = take_action(target(batch.next_obs, known["target_levels"]), best)
            targets = batch.reward.unsqueeze(1) + batch.discount.unsqueeze(1) * self.config.clip_values(bootstrap)
        quantiles = take_action(online(batch.obs, levels), batch.action)
        loss = quantile_huber_loss(quantiles, targets, levels, config.kappa) / config.kappa  # equation 3
        value, target_mean = quantiles.detach().mean(dim=1), targets.mean(dim=1)
        error = (target_mean - value).abs()
        return LossOutput(loss, {"q_value_mean": value, "target_mean": target_mean, "td_error_mean": error}, error)
