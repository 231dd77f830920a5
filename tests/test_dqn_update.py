"""DQN's loss by hand-worked numbers, its update against torch's own optimiser, its target network and its acting."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from batches import SPEC, discrete_batch
from torch import nn

from rl_training.algorithms.base import init_generator
from rl_training.algorithms.dqn import DQN, DQNConfig, dqn_loss
from rl_training.algorithms.optimizer import FlatAdam
from rl_training.algorithms.qr_dqn import QRDQN, QRDQNConfig
from rl_training.models import MLPQNetwork, MLPQRQNetwork
from rl_training.models.value_network import AtomNetwork
from rl_training.rng import RandomStreams
from rl_training.types import TransitionBatch


def make_dqn(**settings: object) -> DQN:
    config = DQNConfig.model_validate({"hidden_sizes": (8,), **settings})
    return DQN(DQN.make_policy(config, SPEC, init_generator(0)), config, RandomStreams(0))


def make_batch(size: int = 5, seed: int = 0) -> TransitionBatch:
    return discrete_batch(*[0.9] * size, seed=seed)


def test_loss_of_worked_numbers() -> None:
    q = torch.tensor([[1.0, 2.0], [0.5, 3.0], [4.0, 0.0]], requires_grad=True)
    output = dqn_loss(
        q,
        action=torch.tensor([0, 1, 0]),
        reward=torch.tensor([1.0, 0.5, 2.0]),
        discount=torch.tensor([0.5, 0.9, 0.0]),  # the last one terminated
        next_value=torch.tensor([4.0, 1.0, 100.0]),
    )
    # targets: 1 + .5 * 4 = 3, .5 + .9 * 1 = 1.4, 2; errors: 2, -1.6, -2; Huber: |e| - .5
    torch.testing.assert_close(output.loss, torch.tensor([1.5, 1.1, 1.5]))
    torch.testing.assert_close(output.metrics["target_mean"], torch.tensor([3.0, 1.4, 2.0]))
    torch.testing.assert_close(output.metrics["q_value_mean"], torch.tensor([1.0, 3.0, 4.0]))
    torch.testing.assert_close(output.metrics["td_error_mean"], torch.tensor([2.0, 1.6, 2.0]))
    output.loss.sum().backward()  # type: ignore[no-untyped-call]
    assert q.grad is not None
    assert q.grad.tolist() == [[-1.0, 0.0], [0.0, 1.0], [1.0, 0.0]]  # only the action taken, clipped to 1


def test_loss_is_quadratic_near_zero() -> None:
    output = dqn_loss(torch.tensor([[1.0]]), torch.tensor([0]), torch.tensor([1.5]), torch.zeros(1), torch.zeros(1))
    torch.testing.assert_close(output.loss, torch.tensor([0.125]))


@pytest.mark.parametrize(
    ("delta", "loss", "slope"), [(1.0, 2.5, -1.0), (2.0, 4.0, -2.0), (3.0, 4.5, -3.0), (50.0, 4.5, -3.0)]
)
def test_an_error_counts_as_its_square_up_to_the_threshold(delta: float, loss: float, slope: float) -> None:
    q = torch.tensor([[1.0]], requires_grad=True)  # an error of 3: delta (3 - delta / 2) beyond delta, 3^2 / 2 within it
    output = dqn_loss(q, torch.tensor([0]), torch.tensor([4.0]), torch.zeros(1), torch.zeros(1), delta)
    output.loss.sum().backward()  # type: ignore[no-untyped-call]
    assert q.grad is not None
    assert (output.loss.item(), q.grad.item()) == (loss, slope)


def test_the_threshold_of_the_loss_is_a_setting() -> None:
    batch = make_batch()._replace(reward=torch.full((5,), 40.0))
    losses = {}
    for delta in (1.0, 1000.0):
        algorithm = make_dqn(huber_delta=delta)
        losses[delta] = algorithm.loss(algorithm.policy.network, algorithm.target, batch)
    torch.testing.assert_close(losses[1000.0].loss, losses[1.0].metrics["td_error_mean"].square() / 2)


@pytest.mark.parametrize("double", [False, True])
def test_the_bootstrap_action_is_chosen_by_the_right_network(double: bool) -> None:
    batch = make_batch()
    algorithm = make_dqn(double=double)
    with torch.no_grad():  # make the two networks disagree
        assert isinstance(algorithm.target, AtomNetwork)
        algorithm.target.head.advantage.linears[-1].weight.neg_()
        chooser = algorithm.policy.network if double else algorithm.target
        choice = chooser(batch.next_obs).argmax(1)
        expected = batch.reward + batch.discount * algorithm.target(batch.next_obs)[torch.arange(5), choice]
    output = algorithm.loss(algorithm.policy.network, algorithm.target, batch)
    torch.testing.assert_close(output.metrics["target_mean"], expected)


def test_shapes_that_would_broadcast_are_refused() -> None:
    with pytest.raises(AssertionError):
        dqn_loss(torch.zeros(4, 2), torch.zeros(4, 1).long(), torch.zeros(4), torch.zeros(4), torch.zeros(4))


def test_update_equals_torch_adam_with_clipping() -> None:
    algorithm = make_dqn(learning_rate=0.01, max_grad_norm=0.1, target_update_interval=3)
    network, target = copy.deepcopy(algorithm.policy.network), copy.deepcopy(algorithm.target)
    reference = torch.optim.Adam(network.parameters(), lr=0.01, eps=1e-8)
    for i in range(7):
        batch = make_batch(seed=i)
        reference.zero_grad()
        with torch.no_grad():
            target_values = batch.reward + batch.discount * target(batch.next_obs).amax(1)
        chosen = network(batch.obs).gather(1, batch.action[:, None])[:, 0]
        nn.functional.smooth_l1_loss(chosen, target_values).backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(network.parameters(), 0.1)
        reference.step()
        algorithm.update(batch)
        if (i + 1) % 3 == 0:
            target.load_state_dict(network.state_dict())
    for found, expected in zip(algorithm.policy.network.parameters(), network.parameters(), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
    for found, expected in zip(algorithm.target.parameters(), target.parameters(), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


def test_update_reports_named_metrics() -> None:
    result = make_dqn().update(make_batch())
    assert set(result.metrics) == {"loss", "q_value_mean", "target_mean", "td_error_mean"}
    assert all(np.isfinite(value) for value in result.metrics.values())
    assert not any(sample.requires_grad for sample in result.samples.values())


def test_a_hard_target_copies_on_its_interval() -> None:
    algorithm = make_dqn(target_update_interval=3)
    for update in range(1, 7):
        algorithm.update(make_batch(seed=update))
        same = torch.equal(algorithm.target(torch.ones(1, 4)), algorithm.policy.network(torch.ones(1, 4)))
        assert same == (update % 3 == 0)


def test_a_soft_target_moves_by_tau() -> None:
    algorithm = make_dqn(tau=0.25, target_update_interval=1)
    before = [parameter.clone() for parameter in algorithm.target.parameters()]
    algorithm.update(make_batch())
    for old, online, new in zip(before, algorithm.policy.network.parameters(), algorithm.target.parameters(), strict=True):
        torch.testing.assert_close(new, old + 0.25 * (online.detach() - old))


def test_the_learning_rate_decays_with_env_steps() -> None:
    algorithm = make_dqn(learning_rate=1e-2, final_learning_rate=1e-4, learning_rate_decay_steps=100)
    assert algorithm.learning_rate(0) == 1e-2
    assert algorithm.learning_rate(50) == pytest.approx((1e-2 + 1e-4) / 2)
    assert algorithm.learning_rate(100) == algorithm.learning_rate(10**6) == 1e-4
    moved = []
    for env_steps in (0, 100):
        fresh = make_dqn(learning_rate=1e-2, final_learning_rate=1e-4, learning_rate_decay_steps=100)
        before = fresh.optimizer.parameters.clone()
        fresh.update(make_batch(), env_steps)
        moved.append((fresh.optimizer.parameters - before).abs().max().item())
    assert moved[0] == pytest.approx(1e-2, rel=1e-3)  # Adam's first step is the step size itself
    assert moved[1] == pytest.approx(1e-4, rel=1e-2)


def test_state_round_trip_continues_exactly() -> None:
    original, restored = make_dqn(target_update_interval=4), make_dqn(target_update_interval=4)
    for i in range(5):
        original.update(make_batch(seed=i))
    restored.policy.load_state_dict(original.policy.state_dict())
    restored.load_state_dict(original.state_dict())
    for i in range(5, 10):
        original.update(make_batch(seed=i))
        restored.update(make_batch(seed=i))
    assert torch.equal(original.optimizer.parameters, restored.optimizer.parameters)
    assert torch.equal(original.target(torch.ones(1, 4)), restored.target(torch.ones(1, 4)))


def test_what_trains_is_the_network_of_its_name() -> None:
    options = {"hidden_sizes": (8, 6)}
    quantile_config = QRDQNConfig.model_validate({**options, "num_quantiles": 7})
    pairs: list[tuple[nn.Module, nn.Module]] = [
        (
            DQN.make_policy(DQNConfig.model_validate(options), SPEC, init_generator(0)).network,
            MLPQNetwork(4, 3, (8, 6), init_generator(0)),
        ),
        (
            QRDQN.make_policy(quantile_config, SPEC, init_generator(0)).network,
            MLPQRQNetwork(4, 3, 7, (8, 6), init_generator(0)),
        ),
    ]
    for trained, alone in pairs:
        found, expected = trained.state_dict(), alone.state_dict()
        assert list(found) == list(expected)
        assert all(torch.equal(found[name], expected[name]) for name in found)


def test_parameters_are_views_of_the_flat_vector() -> None:
    network = MLPQNetwork(4, 3, (8, 8), init_generator(0))
    expected = torch.cat([parameter.detach().reshape(-1).clone() for parameter in network.parameters()])
    optimizer = FlatAdam(network, max_norm=None)
    assert torch.equal(optimizer.parameters, expected)
    optimizer.parameters.zero_()
    assert all(not parameter.any() for parameter in network.parameters())


def test_acting_follows_every_update() -> None:
    algorithm = make_dqn(learning_rate=0.1)
    obs = np.random.default_rng(0).standard_normal((6, 4)).astype(np.float32)
    for i in range(3):
        algorithm.update(make_batch(seed=i))
        expected = algorithm.policy.network.q_values(torch.from_numpy(obs)).detach().numpy()
        np.testing.assert_allclose(algorithm.policy.q(obs), expected, rtol=1e-5, atol=1e-6)
        greedy = algorithm.policy.act(obs, ()).action
        assert greedy.tolist() == expected.argmax(1).tolist()
        assert greedy.tolist() == algorithm.policy.network.act(torch.from_numpy(obs)).tolist()


def test_each_environment_draws_its_own_exploration() -> None:
    policy = make_dqn(exploration_initial_eps=0.5, exploration_steps=10**9, learning_starts=0).policy
    obs = np.zeros((20_000, 4), np.float32)
    actions = policy.act(obs, (), rng=np.random.default_rng(0)).action
    greedy = int(policy.act(obs[:1], ()).action[0])
    share = float((actions == greedy).mean())
    assert share == pytest.approx(0.5 + 0.5 / 3, abs=0.01)
    assert set(actions.tolist()) == {0, 1, 2}


def test_warm_up_acts_at_random_and_epsilon_falls_in_a_line() -> None:
    policy = make_dqn(learning_starts=10, exploration_final_eps=0.1, exploration_steps=100).policy
    assert policy.epsilon(9) == 1.0
    assert policy.epsilon(50) == pytest.approx(0.55)
    assert policy.epsilon(100) == policy.epsilon(5000) == 0.1


def test_initial_weights_come_from_their_own_generator() -> None:
    state = torch.random.get_rng_state()
    first = MLPQNetwork(4, 2, (8,), init_generator(7))
    second = MLPQNetwork(4, 2, (8,), init_generator(7))
    other = MLPQNetwork(4, 2, (8,), init_generator(8))
    assert torch.equal(torch.random.get_rng_state(), state)
    assert torch.equal(first(torch.ones(1, 4)), second(torch.ones(1, 4)))
    assert not torch.equal(first(torch.ones(1, 4)), other(torch.ones(1, 4)))
    bound = 1 / np.sqrt(4)
    weight = first.head.advantage.linears[0].weight
    assert weight.abs().max() <= bound
    assert weight.std().item() == pytest.approx(bound / np.sqrt(3), rel=0.3)
