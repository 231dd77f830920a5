"""DRQN: the network's surface, and the update by worked numbers and by a walk through the episodes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from learning import must_be
from replays import held_slots
from sequences import ACTIONS, STATE, World, make_algorithm, walk_q_values, walk_targets

from rl_training.algorithms.base import init_generator
from rl_training.algorithms.drqn import DRQN
from rl_training.algorithms.r2d2 import R2D2, rescale, unrescale
from rl_training.algorithms.recurrent_value import sequence_td_loss, state_values
from rl_training.data import RecurrentReplayBuffer
from rl_training.models import LSTMQNetwork


def test_lstm_q_network_vector_obs_returns_q_values_actions_and_state() -> None:
    network = LSTMQNetwork((4,), 2, init_generator(0), encoder_sizes=(16,), lstm_size=8, lstm_layers=2, hidden_sizes=(16,))
    state = network.initial_state(3)
    assert [tuple(part.shape) for part in state] == [(3, 2, 8)] * 2
    assert not any(part.any() for part in state)
    obs = torch.randn(5, 3, 4, generator=torch.Generator().manual_seed(0))
    output = network.act(obs[0], state)
    assert output.q_values.shape == (3, 2)
    assert torch.equal(output.action, output.q_values.argmax(dim=1))
    assert [part.shape for part in output.state] == [part.shape for part in state]
    with torch.no_grad():
        q_values, after = network.q_values_sequence(obs, state)
    assert q_values.shape == (5, 3, 2)
    torch.testing.assert_close(q_values[0], output.q_values)
    for t in range(5):
        output = network.act(obs[t], state)
        torch.testing.assert_close(output.q_values, q_values[t], rtol=1e-4, atol=1e-5)
        state = output.state
    for found, expected in zip(state, after, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    reset = network.reset_state(state, torch.tensor([False, True, False]))
    for before, part in zip(state, reset, strict=True):
        assert not part[1].any()
        assert torch.equal(part[[0, 2]], before[[0, 2]])


def test_a_shortcut_leads_around_the_lstm() -> None:
    network = LSTMQNetwork((4,), 2, init_generator(0), lstm_size=8, shortcut=True, takes_previous=True)
    obs = torch.randn(5, 3, 4, generator=torch.Generator().manual_seed(0))
    previous = torch.randn(5, 3, 3, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        q_values, _ = network.q_values_sequence(obs, network.initial_state(3), previous)
        state, step = network.initial_state(3), network.numpy_step()
        carry = tuple(part.numpy() for part in state)
        for t in range(5):
            output = network.act(obs[t], state, previous[t])
            torch.testing.assert_close(output.q_values, q_values[t], rtol=1e-4, atol=1e-5)
            on_numpy, carry = step(obs[t].numpy(), carry, previous[t].numpy())
            np.testing.assert_allclose(on_numpy, q_values[t], rtol=1e-4, atol=1e-5)
            state = output.state
        for parameter in network.core.parameters():
            parameter.zero_()  # the LSTM's output is now 0 whatever it is shown
        assert (network.act(obs[0], network.initial_state(3), previous[0]).q_values.std(dim=0) > 0.01).all()


def test_the_loss_of_a_step_by_hand() -> None:
    q_values = torch.tensor([[[1.0, 2.0]], [[3.0, 0.5]]])  # (time 2, batch 1, action 2)
    output = sequence_td_loss(q_values, torch.tensor([[1], [0]]), torch.tensor([[2.5], [5.0]]))
    torch.testing.assert_close(output.loss, torch.tensor([[0.125], [1.5]]))  # quadratic below an error of 1, then linear
    torch.testing.assert_close(output.error, torch.tensor([[0.5], [2.0]]))
    torch.testing.assert_close(output.metrics["q_value_mean"], torch.tensor([[2.0], [3.0]]))


@pytest.mark.parametrize("delta", [0.01, 100.0])
def test_errors_count_squared_up_to_huber_delta(delta: float) -> None:
    algorithm = make_algorithm(DRQN, sequence_length=5, huber_delta=delta)
    output = algorithm.loss(World(300, sequence_length=5).run(60).buffer.sample(8))
    far = output.error > delta
    assert far.float().mean() == pytest.approx(float(delta < 1.0), abs=0.1)
    expected = torch.where(far, delta * (output.error - 0.5 * delta), 0.5 * output.error.square())
    torch.testing.assert_close(output.loss, expected)


def test_the_value_of_a_state_by_hand() -> None:
    target_q, online_q = torch.tensor([[[1.0, 2.0, 5.0]]]), torch.tensor([[[4.0, 3.0, 9.0]]])
    mask = torch.tensor([[[True, True, False]]])
    assert state_values(target_q, None, None).item() == 5.0
    assert state_values(target_q, online_q, None).item() == 5.0
    assert state_values(target_q, None, mask).item() == 2.0
    assert state_values(target_q, online_q, mask).item() == 1.0  # chosen by the online network, among the allowed


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize(("double", "n_step"), [(False, 1), (True, 1), (True, 3)])
def test_targets_are_those_of_a_walk_through_the_episodes(double: bool, n_step: int, masked: bool) -> None:
    algorithm = make_algorithm(DRQN, sequence_length=5, double=double, n_step=n_step)
    buffer = algorithm.make_replay(2).buffer
    assert isinstance(buffer, RecurrentReplayBuffer)
    assert buffer.n_step == n_step
    world = World(300, sequence_length=5, masked=masked, seed=2, n_step=n_step).run(60)
    batch = world.buffer.gather(held_slots(world.buffer))
    found = algorithm.loss(batch).metrics["target_mean"]
    expected = [cut for env in range(world.num_envs) for cut in world.expected(env)]
    for b, cut in enumerate(expected):
        networks = (algorithm.policy.network, algorithm.target)
        targets = walk_targets(*networks, cut, double=double, rescaled=False, masked=masked)
        np.testing.assert_allclose(found[: len(targets), b].numpy(), targets, rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize("kind", [DRQN, R2D2])
@pytest.mark.parametrize("masked", [False, True])
def test_traces_go_on_as_long_as_actions_are_greedy(kind: type[DRQN | R2D2], masked: bool) -> None:
    options: dict[str, Any] = {"rescale_values": True} if kind is R2D2 else {}
    algorithm = make_algorithm(kind, sequence_length=8, double=True, n_step=1, trace_lambda=0.7, **options)
    world = World(300, sequence_length=8, masked=masked, seed=3).run(80)
    found = algorithm.loss(world.buffer.gather(held_slots(world.buffer))).metrics["target_mean"]
    to_return, from_return = (unrescale, rescale) if kind is R2D2 else (torch.clone, torch.clone)
    gone_on = 0
    for b, cut in enumerate(cut for env in range(world.num_envs) for cut in world.expected(env)):
        online, target = (walk_q_values(network, cut) for network in (algorithm.policy.network, algorithm.target))
        steps, errors = len(cut["reward"]), []
        predicted = [float(to_return(torch.tensor(target[t][cut["action"][t]]))) for t in range(steps)]
        for t in range(steps):  # the TD error of each step, and whether the trace goes on through its action
            allowed = cut["mask"][t] if masked else np.ones(ACTIONS, np.bool_)
            value = float(to_return(torch.tensor(target[t + 1][np.where(allowed, online[t + 1], -np.inf).argmax()])))
            before = cut["mask"][t - 1] if masked and t else np.ones(ACTIONS, np.bool_)
            best = online[t][before].max()
            greedy = online[t][cut["action"][t]] >= best - 0.01 * abs(best)
            errors.append((cut["reward"][t] + cut["discount"][t] * value - predicted[t], greedy))
        for t in range(steps):
            total, weight = predicted[t], 1.0
            for k in range(t, steps):
                if k > t and not errors[k][1]:
                    break
                weight *= 0.7 * cut["discount"][k - 1] if k > t else 1.0
                total += weight * errors[k][0]
                gone_on += k > t and weight > 0
            expected = float(from_return(torch.tensor(total)))
            assert float(found[t, b]) == pytest.approx(expected, rel=2e-4, abs=2e-4)
    assert gone_on > 20


def test_traces_and_n_step_targets_exclude_each_other() -> None:
    with pytest.raises(ValueError, match="set n_step to 1, not 3"):
        make_algorithm(DRQN, n_step=3, trace_lambda=0.9)


def test_a_batched_unroll_equals_unrolls_of_each_sequence_alone() -> None:
    algorithm = make_algorithm(DRQN, sequence_length=5)
    world = World(300, sequence_length=5, end_chance=0.2).run(60)
    batch = world.buffer.sample(9)
    with torch.no_grad():
        together = algorithm._unroll(algorithm.target, batch)
        for b in range(9):
            length = int(batch.mask[:, b].sum())
            state = tuple(part[b : b + 1] for part in batch.state)
            alone = algorithm.target.q_values_sequence(batch.obs[:length, b : b + 1], state)[0]
            torch.testing.assert_close(together[:length, b : b + 1], alone, rtol=1e-4, atol=1e-5)


def test_the_target_network_is_copied_on_its_interval() -> None:
    algorithm = make_algorithm(DRQN, sequence_length=5, target_update_interval=3)
    batch = World(300, sequence_length=5).run(60).buffer.sample(8)
    before = algorithm.target_network.vector.clone()
    for updates in range(1, 7):
        result = algorithm.update(batch)
        copied = torch.equal(algorithm.target_network.vector, algorithm.optimizer.parameters)
        assert copied == (updates % 3 == 0)
        if updates < 3:
            assert torch.equal(algorithm.target_network.vector, before)
    assert set(result.metrics) == {"loss", "q_value_mean", "target_mean", "td_error_mean"}
    assert result.priorities is None


@must_be(below=0.2)
def loss_left_after_300_updates_of_drqn(seed: int) -> float:
    """On one batch, as a share of the first loss."""
    algorithm = make_algorithm(DRQN, seed=seed, sequence_length=5, learning_rate=1e-2, target_update_interval=10_000)
    batch = World(300, sequence_length=5).run(60).buffer.sample(8)
    losses = [algorithm.update(batch).metrics["loss"] for _ in range(300)]
    return float(losses[-1] / losses[0])


def test_updates_on_one_batch_lower_its_loss() -> None:
    loss_left_after_300_updates_of_drqn.check()


@pytest.mark.parametrize("masked", [False, True])
def test_exploring_and_greedy_acting_move_the_memory_alike(masked: bool) -> None:
    """The state continues whatever was drawn: what replay stores must be what the network has seen."""
    policy = make_algorithm(DRQN, learning_starts=100).policy
    rng = np.random.default_rng(0)
    carry, exploring = policy.initial_carry(3), policy.initial_carry(3)
    drawn = set()
    for _ in range(20):
        obs = rng.standard_normal((3, 4), np.float32)
        mask = rng.random((3, ACTIONS)) < 0.6
        mask[:, 1] = True
        options = {"action_mask": mask if masked else None}
        greedy, random = policy.act(obs, carry, **options), policy.act(obs, exploring, rng=rng, env_steps=0, **options)
        for action in (greedy.action, random.action):
            assert not masked or mask[np.arange(3), action].all()
        drawn |= set(random.action.tolist())
        carry, exploring = greedy.carry, random.carry
        for found, expected in zip(carry, exploring, strict=True):
            np.testing.assert_array_equal(found, expected)
    assert drawn == set(range(ACTIONS))
    assert carry[0].shape == (3, *STATE)
