"""C51: its projection by worked numbers and properties, its loss and its network."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from learning import must_be

from rl_training.algorithms.base import init_generator
from rl_training.algorithms.c51 import C51, C51Config, categorical_projection
from rl_training.models.value_network import AtomNetwork
from rl_training.rng import RandomStreams
from rl_training.types import ActionSpec, ObservationSpec, SpaceSpec, TransitionBatch

SPEC = SpaceSpec(ObservationSpec.vector(4), ActionSpec("discrete", count=3))
SUPPORT = torch.tensor([-1.0, -0.5, 0.0, 0.5, 1.0])
P = torch.tensor([[0.1, 0.2, 0.4, 0.2, 0.1]])


def project(reward: float, discount: float, support: torch.Tensor = SUPPORT, p: torch.Tensor = P) -> torch.Tensor:
    return categorical_projection((reward + discount * support).unsqueeze(0), p, support)[0]


def test_projection_of_worked_numbers() -> None:
    torch.testing.assert_close(project(0.25, 0.5), torch.tensor([0.0, 0.05, 0.45, 0.45, 0.05]))
    torch.testing.assert_close(project(0.0, 1.0), P[0])  # every value exactly on an atom: nothing is lost
    torch.testing.assert_close(project(0.3, 0.0), torch.tensor([0.0, 0.0, 0.4, 0.6, 0.0]))  # terminal
    torch.testing.assert_close(project(7.0, 1.0), torch.tensor([0.0, 0.0, 0.0, 0.0, 1.0]))  # beyond the end
    torch.testing.assert_close(project(-7.0, 1.0), torch.tensor([1.0, 0.0, 0.0, 0.0, 0.0]))


def triangular_kernel(values: torch.Tensor, p: torch.Tensor, support: torch.Tensor) -> torch.Tensor:
    """The paper's equation 7 as it stands: an independent way to the same numbers."""
    step = support[1] - support[0]
    clipped = values.clamp(support[0], support[-1])
    share = (1.0 - (clipped.unsqueeze(1) - support.view(1, -1, 1)).abs() / step).clamp(0.0, 1.0)  # (batch, i, j)
    return (share * p.unsqueeze(1)).sum(dim=2)


@settings(max_examples=60, deadline=None)
@given(
    reward=st.floats(-3, 3, width=32),
    discount=st.floats(0, 1, width=32),
    ends=st.sampled_from([(-1.0, 1.0), (0.0, 1.0), (-10.0, 10.0), (0.0, 100.0)]),
    atoms=st.integers(2, 12),
    seed=st.integers(0, 100),
)
def test_projection_keeps_mass_and_mean_and_equals_the_kernel(
    reward: float, discount: float, ends: tuple[float, float], atoms: int, seed: int
) -> None:
    support = torch.linspace(*ends, atoms)
    p = torch.from_numpy(np.random.default_rng(seed).dirichlet(np.ones(atoms), 1).astype(np.float32))
    values = (reward + discount * support).unsqueeze(0)
    found = categorical_projection(values, p, support)
    torch.testing.assert_close(found, triangular_kernel(values, p, support), atol=2e-4, rtol=0.0)
    assert found.sum().item() == pytest.approx(1.0, abs=1e-5)
    assert (found >= 0).all()
    mean = (p * values.clamp(*ends)).sum().item()
    assert (found @ support).item() == pytest.approx(mean, abs=1e-3 * (ends[1] - ends[0]))


def make_c51(seed: int = 0, **options: object) -> C51:
    config = C51Config.model_validate({"hidden_sizes": (8,), "num_atoms": 5, "v_min": -1, "v_max": 1, **options})
    return C51(C51.make_policy(config, SPEC, init_generator(seed)), config, RandomStreams(seed))


def make_batch() -> TransitionBatch:
    generator = torch.Generator().manual_seed(1)
    return TransitionBatch(
        torch.randn(6, 4, generator=generator),
        torch.randint(0, 3, (6,), generator=generator),
        torch.rand(6, generator=generator),
        torch.randn(6, 4, generator=generator),
        torch.tensor([0.9, 0.0, 0.5] * 2),
    )


@pytest.mark.parametrize("double", [False, True])
def test_loss_is_the_cross_entropy_with_the_projected_target(double: bool) -> None:
    algorithm, batch = make_c51(double=double), make_batch()
    with torch.no_grad():
        assert isinstance(algorithm.target, AtomNetwork)
        algorithm.target.head.advantage.linears[-1].weight.neg_()
        chooser = algorithm.policy.network if double else algorithm.target
        best = (chooser(batch.next_obs).softmax(2) * SUPPORT).sum(2).argmax(1)
        next_p = algorithm.target(batch.next_obs).softmax(2)
    expected, projected, predicted = [], [], []
    for i in range(6):
        m = project(batch.reward[i].item(), batch.discount[i].item(), p=next_p[i, best[i]].unsqueeze(0))
        logits = algorithm.policy.network(batch.obs)[i, batch.action[i]]
        expected.append(-(m * logits.log_softmax(0)).sum())
        projected.append(m)
        predicted.append(logits.detach().softmax(0))
    output = algorithm.loss(algorithm.policy.network, algorithm.target, batch)
    torch.testing.assert_close(output.loss, torch.stack(expected))
    torch.testing.assert_close(output.metrics["target_mean"], torch.stack(projected) @ SUPPORT)
    divergence = [(m * (m.clamp(min=1e-30).log() - p.log())).sum() for m, p in zip(projected, predicted, strict=True)]
    torch.testing.assert_close(output.priority, torch.stack(divergence), atol=1e-6, rtol=1e-5)


def test_a_perfect_fit_has_no_priority() -> None:
    algorithm, batch = make_c51(), make_batch()
    best = algorithm.target.act(batch.obs)
    itself = batch._replace(action=best, next_obs=batch.obs, reward=torch.zeros(6), discount=torch.ones(6))
    output = algorithm.loss(algorithm.policy.network, algorithm.target, itself)
    torch.testing.assert_close(output.priority, torch.zeros(6), atol=1e-6, rtol=0.0)
    assert (output.loss > 0.5).all()  # the entropy of the target is left of the cross-entropy


def test_network_acts_by_the_mean_of_its_distribution() -> None:
    network = make_c51().policy.network
    obs = torch.randn(10, 4, generator=torch.Generator().manual_seed(0))
    logits = network(obs)
    assert logits.shape == (10, 3, 5)
    expected = (logits.softmax(2) * SUPPORT).sum(2).detach()
    torch.testing.assert_close(network.q_values(obs).detach(), expected)
    np.testing.assert_allclose(network.q_function()(obs.numpy()), expected, rtol=1e-4, atol=1e-5)


@must_be(below=0.02)
def error_of_a_distribution_learned_by_c51(seed: int) -> float:
    """Terminal rewards of 0.5 or -0.5: the distribution of the return is half and half, whatever the observation."""
    algorithm = make_c51(seed, learning_rate=0.02)
    size = 64
    batch = TransitionBatch(
        torch.zeros(size, 4),
        torch.zeros(size, dtype=torch.long),
        torch.tensor([0.5, -0.5] * (size // 2)),
        torch.zeros(size, 4),
        torch.zeros(size),
    )
    for _ in range(300):
        algorithm.update(batch)
    learned = algorithm.policy.network(torch.zeros(1, 4))[0, 0].softmax(0).detach()
    return float((learned - torch.tensor([0.0, 0.5, 0.0, 0.5, 0.0])).abs().max())


def test_update_learns_a_known_distribution() -> None:
    error_of_a_distribution_learned_by_c51.check()


def test_update_reports_named_metrics() -> None:
    result = make_c51().update(make_batch())
    assert set(result.metrics) == {"loss", "q_value_mean", "target_mean", "td_error_mean"}
