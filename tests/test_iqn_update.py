"""IQN: its network and its loss against plain loops, and that it learns a distribution that is known."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from batches import SPEC, discrete_batch
from learning import must_be
from torch import Tensor

from rl_training.algorithms.base import init_generator
from rl_training.algorithms.iqn import IQN, ImplicitQuantileNetwork, IQNConfig
from rl_training.models import MLP
from rl_training.rng import RandomStreams
from rl_training.runtime.cadence import cpu_threads
from rl_training.types import TransitionBatch


def make_iqn(seed: int = 0, **options: Any) -> IQN:
    sizes = {"num_quantiles": 5, "num_target_quantiles": 7, "num_acting_quantiles": 6, "num_cosines": 4}
    config = IQNConfig.model_validate({"hidden_sizes": (8, 8), **sizes, **options})
    return IQN(IQN.make_policy(config, SPEC, init_generator(seed)), config, RandomStreams(seed))


def network_of(algorithm: IQN) -> ImplicitQuantileNetwork:
    network = algorithm.policy.network
    assert isinstance(network, ImplicitQuantileNetwork)
    return network


def make_batch(size: int = 6) -> TransitionBatch:
    return discrete_batch(*[0.9, 0.0] * (size // 2), seed=1)


def naive_quantile(network: ImplicitQuantileNetwork, obs: Tensor, level: float) -> Tensor:
    """All actions' quantiles at one level, (action,): equation 4 term by term."""
    (embed,) = network.embedding.linears
    features = network.trunk(obs.unsqueeze(0))[0]
    embedded = torch.empty_like(features)
    for j in range(len(features)):
        total = sum(math.cos(math.pi * i * level) * embed.weight[j, i] for i in range(embed.weight.shape[1]))
        embedded[j] = torch.relu(total + embed.bias[j])
    values: Tensor = network.head((features * embedded).unsqueeze(0))[0, :, 0]
    return values


@pytest.mark.parametrize("dueling", [False, True])
@torch.no_grad()
def test_the_network_multiplies_features_by_the_embedding_of_a_level(dueling: bool) -> None:
    network = network_of(make_iqn(dueling=dueling))
    obs, levels = make_batch().obs, torch.rand(6, 5, generator=torch.Generator().manual_seed(2))
    quantiles = network(obs, levels)
    assert quantiles.shape == (6, 3, 5)
    for b in range(6):
        for k in range(5):
            torch.testing.assert_close(quantiles[b, :, k], naive_quantile(network, obs[b], float(levels[b, k])))


@torch.no_grad()
def test_a_q_value_is_the_mean_over_midpoints() -> None:
    network, obs = network_of(make_iqn()), make_batch().obs
    middle = [1 / 12, 3 / 12, 5 / 12, 7 / 12, 9 / 12, 11 / 12]
    expected = torch.stack([torch.stack([naive_quantile(network, row, level) for level in middle]).mean(0) for row in obs])
    torch.testing.assert_close(network.q_values(obs), expected)
    np.testing.assert_allclose(network.q_function()(obs.numpy()), expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("double", [False, True])
@pytest.mark.parametrize("kappa", [1.0, 0.3])
@torch.no_grad()
def test_loss_equals_the_double_loop(double: bool, kappa: float) -> None:
    algorithm, batch = make_iqn(double=double, kappa=kappa), make_batch()
    online, target = network_of(algorithm), algorithm.target
    assert isinstance(target, ImplicitQuantileNetwork)
    assert isinstance(target.trunk, MLP)
    target.trunk.linears[-1].weight.neg_()  # so that the two networks prefer different actions
    known = algorithm.updater.draw(batch)
    assert known["levels"].shape == (6, 5)
    assert known["target_levels"].shape == (6, 7)
    output = algorithm.loss(online, target, batch, known)
    for b in range(6):
        best = int((online if double else target).q_values(batch.next_obs[b : b + 1]).argmax())
        targets = [
            float(batch.reward[b] + batch.discount[b] * naive_quantile(target, batch.next_obs[b], float(level))[best])
            for level in known["target_levels"][b]
        ]
        total = 0.0
        for level in known["levels"][b].tolist():
            predicted = float(naive_quantile(online, batch.obs[b], level)[batch.action[b]])
            for y in targets:
                u = y - predicted
                huber = 0.5 * u * u if abs(u) <= kappa else kappa * (abs(u) - 0.5 * kappa)
                total += abs(level - (1.0 if u < 0 else 0.0)) * huber / kappa / len(targets)
        assert float(output.loss[b]) == pytest.approx(total, rel=1e-4, abs=1e-6)
        assert float(output.metrics["target_mean"][b]) == pytest.approx(np.mean(targets), rel=1e-4, abs=1e-6)


@must_be(below=0.5)
def error_of_quantiles_learned_by_iqn(seed: int) -> float:
    """Rewards are exponential, so the quantile at a level is -log(1 - level). Every batch has one of each 64th of them: drawn
    at random, the last few of them would decide how far off the highest quantile is."""
    algorithm = make_iqn(
        seed,
        hidden_sizes=(32, 32),
        num_cosines=16,
        num_quantiles=16,
        num_acting_quantiles=2,
        kappa=0.05,
        learning_rate=3e-3,
        max_grad_norm=None,
    )
    rows = 64
    obs, zeros = torch.ones(rows, 4), torch.zeros(rows)
    reward = -torch.log(1.0 - (torch.arange(rows) + 0.5) / rows)
    with cpu_threads(1):
        for _ in range(600):
            algorithm.update(TransitionBatch(obs, torch.ones(rows, dtype=torch.long), reward, obs, zeros))
    levels = torch.tensor([[0.1, 0.25, 0.5, 0.75, 0.9]])
    found = network_of(algorithm)(obs[:1], levels)[0, 1].detach()
    return float((found + torch.log(1.0 - levels[0])).abs().max())


def test_it_learns_the_quantiles_of_a_known_distribution() -> None:
    error_of_quantiles_learned_by_iqn.check()


def test_levels_are_drawn_anew_from_the_runs_stream() -> None:
    first, second, batch = make_iqn(), make_iqn(), make_batch()
    drawn = [first.updater.draw(batch)["levels"] for _ in range(2)]
    assert not torch.equal(drawn[0], drawn[1])
    assert torch.equal(second.updater.draw(batch)["levels"], drawn[0])
