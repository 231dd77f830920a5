"""QR-DQN: its loss by worked numbers with as many targets as quantiles and with more, its bootstrap, its network."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from batches import SPEC, discrete_batch
from hypothesis import given, settings
from hypothesis import strategies as st
from learning import must_be

from rl_training.algorithms.base import init_generator
from rl_training.algorithms.qr_dqn import QRDQN, QRDQNConfig, quantile_huber_loss, quantile_levels
from rl_training.models import MLPQRQNetwork
from rl_training.models.value_network import AtomNetwork
from rl_training.rng import RandomStreams
from rl_training.types import TransitionBatch


def make_qr_dqn(**options: object) -> QRDQN:
    config = QRDQNConfig.model_validate({"hidden_sizes": (8,), "num_quantiles": 5, **options})
    return QRDQN(QRDQN.make_policy(config, SPEC, init_generator(0)), config, RandomStreams(0))


def make_batch(size: int = 6) -> TransitionBatch:
    return discrete_batch(*[0.9, 0.0] * (size // 2), seed=1)


def test_loss_of_worked_numbers_with_more_targets_than_quantiles() -> None:
    loss = quantile_huber_loss(
        torch.tensor([[-1.0, 3.0]]), torch.tensor([[-3.0, 4.0, 2.0]]), torch.tensor([0.2, 0.7]), kappa=2.0
    )
    # quantile -1: u = -2, 5, 3 -> Huber 2, 8, 4 weighted .8, .2, .2 -> 4 / 3
    # quantile  3: u = -6, 1, -1 -> Huber 10, .5, .5 weighted .3, .7, .3 -> 3.5 / 3
    torch.testing.assert_close(loss, torch.tensor([2.5]))


def naive_loss(quantiles: list[float], targets: list[float], taus: list[float], kappa: float) -> float:
    total = 0.0
    for theta, tau in zip(quantiles, taus, strict=True):
        inner = 0.0
        for y in targets:
            u = y - theta
            huber = 0.5 * u * u if abs(u) <= kappa else kappa * (abs(u) - 0.5 * kappa)
            inner += abs(tau - (1.0 if u < 0 else 0.0)) * huber
        total += inner / len(targets)
    return total


numbers = st.floats(-5, 5, width=32)


@settings(max_examples=60, deadline=None)
@given(
    quantiles=st.lists(numbers, min_size=1, max_size=5),
    targets=st.lists(numbers, min_size=1, max_size=7),
    kappa=st.sampled_from([0.5, 1.0, 2.0]),
)
def test_loss_equals_the_double_loop(quantiles: list[float], targets: list[float], kappa: float) -> None:
    taus = quantile_levels(len(quantiles))
    found = quantile_huber_loss(torch.tensor([quantiles]), torch.tensor([targets]), taus, kappa)
    assert found.item() == pytest.approx(naive_loss(quantiles, targets, taus.tolist(), kappa), rel=1e-4, abs=1e-5)


def test_levels_are_midpoints() -> None:
    torch.testing.assert_close(quantile_levels(4), torch.tensor([0.125, 0.375, 0.625, 0.875]))


@must_be(below=0.06)
def error_of_quantiles_found_by_the_loss(seed: int) -> float:
    samples = torch.from_numpy(np.random.default_rng(seed).exponential(size=(1, 4000)).astype(np.float32))
    taus = quantile_levels(4)
    quantiles = torch.zeros(1, 4, requires_grad=True)
    optimizer = torch.optim.Adam([quantiles], lr=0.05)
    for _ in range(400):
        optimizer.zero_grad()
        quantile_huber_loss(quantiles, samples, taus, kappa=0.01).sum().backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    expected = torch.quantile(samples[0], taus)
    return float((quantiles[0].detach() - expected).abs().max())


def test_minimising_the_loss_finds_the_quantiles() -> None:
    error_of_quantiles_found_by_the_loss.check()


@pytest.mark.parametrize("double", [False, True])
def test_the_target_takes_all_quantiles_of_one_action(double: bool) -> None:
    algorithm, batch = make_qr_dqn(double=double), make_batch()
    with torch.no_grad():
        assert isinstance(algorithm.target, AtomNetwork)
        algorithm.target.head.advantage.linears[-1].weight.neg_()
        next_quantiles = algorithm.target(batch.next_obs)  # (batch, action, quantile)
        chooser = algorithm.policy.network if double else algorithm.target
        best = chooser(batch.next_obs).mean(dim=2).argmax(dim=1)
        targets = [batch.reward[i] + batch.discount[i] * next_quantiles[i, best[i]].mean() for i in range(len(batch.reward))]
    output = algorithm.loss(algorithm.policy.network, algorithm.target, batch)
    torch.testing.assert_close(output.metrics["target_mean"], torch.stack(targets))


def test_update_reports_named_metrics_and_moves_only_the_online_network() -> None:
    algorithm = make_qr_dqn()
    before, target_before = algorithm.optimizer.parameters.clone(), algorithm.target(torch.ones(1, 4)).clone()
    result = algorithm.update(make_batch())
    assert set(result.metrics) == {"loss", "q_value_mean", "target_mean", "td_error_mean"}
    assert not torch.equal(algorithm.optimizer.parameters, before)
    assert torch.equal(algorithm.target(torch.ones(1, 4)), target_before)


def test_state_round_trip_continues_exactly() -> None:
    original, restored = make_qr_dqn(target_update_interval=2), make_qr_dqn(target_update_interval=2)
    for _ in range(3):
        original.update(make_batch())
    restored.policy.load_state_dict(original.policy.state_dict())
    restored.load_state_dict(original.state_dict())
    for algorithm in (original, restored):
        algorithm.update(make_batch())
    assert torch.equal(original.optimizer.parameters, restored.optimizer.parameters)


def test_network_gives_quantiles_and_acts_by_their_mean() -> None:
    network = MLPQRQNetwork(4, 3, 7, (16, 16), init_generator(0))
    obs = torch.randn(10, 4, generator=torch.Generator().manual_seed(0))
    quantiles = network(obs)
    assert quantiles.shape == (10, 3, 7)
    assert torch.equal(network.act(obs), quantiles.mean(dim=2).argmax(dim=1))
    np.testing.assert_allclose(network.q_function()(obs.numpy()), quantiles.mean(dim=2).detach(), rtol=1e-4, atol=1e-5)
