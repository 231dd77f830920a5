"""TD3 by worked numbers and against a plain program: clipped double Q-learning, smoothed targets, delayed updates."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from batches import CONTINUOUS_SPEC, continuous_batch
from torch.nn import functional as F

from rl_training.algorithms.base import init_generator
from rl_training.algorithms.td3 import TD3, TD3Config, td3_target
from rl_training.rng import RandomStreams


def make_td3(**settings: Any) -> TD3:
    config = TD3Config(**{"hidden_sizes": (16, 16), "batch_size": 8, "buffer_size": 100, **settings})
    return TD3(TD3.make_policy(config, CONTINUOUS_SPEC, init_generator(0)), config, RandomStreams(0))


def test_target_by_hand() -> None:
    """1 + 0.9 min(4, 3, 5) = 3.7; a terminated transition keeps its reward only."""
    next_q = torch.tensor([[4.0, 4.0], [3.0, 3.0], [5.0, 5.0]])
    target = td3_target(torch.tensor([1.0, 1.0]), torch.tensor([0.9, 0.0]), next_q)
    torch.testing.assert_close(target, torch.tensor([3.7, 1.0]))


def test_updates_follow_the_paper_step_by_step() -> None:
    """Algorithm 1 with torch's own Adam: the actor and all target networks every other time."""
    algorithm, batch = make_td3(learning_rate=1e-2, tau=0.1, target_noise=0.7, noise_clip=0.5), continuous_batch()
    network = copy.deepcopy(algorithm.policy.network)
    target_actor, target_critic = copy.deepcopy(network.actor), copy.deepcopy(network.critic)
    critic_adam = torch.optim.Adam(network.critic.parameters(), lr=1e-2)
    actor_adam = torch.optim.Adam(network.actor.parameters(), lr=1e-2)
    stream = RandomStreams(0)["noise"]
    for number in range(1, 6):
        with torch.no_grad():
            noise = (0.7 * torch.from_numpy(stream.standard_normal((8, 2), np.float32))).clamp(-0.5, 0.5)
            next_action = (torch.tanh(target_actor(batch.next_obs)) + noise).clamp(-1.0, 1.0)
            q1, q2 = target_critic.values(batch.next_obs, next_action)
            y = batch.reward + batch.discount * torch.minimum(q1, q2)
        q1, q2 = network.critic.values(batch.obs, batch.action)
        critic_loss = F.mse_loss(q1, y) + F.mse_loss(q2, y)
        critic_adam.zero_grad()
        torch.autograd.backward(critic_loss)
        critic_adam.step()
        result = algorithm.update(batch)
        assert result.metrics["critic_loss"] == pytest.approx(float(critic_loss.detach()), rel=1e-4)
        if number % 2:
            continue
        actor_loss = -network.critic.q1(torch.cat([batch.obs, torch.tanh(network.actor(batch.obs))], dim=1)).mean()
        actor_adam.zero_grad()
        torch.autograd.backward(actor_loss)
        actor_adam.step()
        assert result.metrics["actor_loss"] == pytest.approx(float(actor_loss.detach()), rel=1e-4)
        with torch.no_grad():
            for follower, leader in ((target_actor, network.actor), (target_critic, network.critic)):
                for parameter, online in zip(follower.parameters(), leader.parameters(), strict=True):
                    parameter.lerp_(online, 0.1)
    pairs = (
        (algorithm.policy.network.actor, network.actor),
        (algorithm.policy.network.critic, network.critic),
        (algorithm.target_actor, target_actor),
        (algorithm.target, target_critic),
    )
    for found, expected in pairs:
        for parameter, other in zip(found.parameters(), expected.parameters(), strict=True):
            torch.testing.assert_close(parameter, other, rtol=1e-3, atol=1e-4)
    assert set(result.metrics) == {"critic_loss", "actor_loss", "q_value_mean", "target_q_mean"}


@pytest.mark.parametrize(("settings", "expected"), [({}, {2, 4, 6}), ({"actor_update_interval": 3}, {3, 6})])
def test_the_actor_is_delayed(settings: dict[str, int], expected: set[int]) -> None:
    algorithm, moved, followed = make_td3(**settings), set(), set()
    for number in range(1, 7):
        actor, target = algorithm.actor_optimizer.parameters.clone(), algorithm.target_network.vector.clone()
        algorithm.update(continuous_batch(seed=number))
        if not torch.equal(actor, algorithm.actor_optimizer.parameters):
            moved.add(number)
        if not torch.equal(target, algorithm.target_network.vector):
            followed.add(number)
    assert moved == expected
    assert followed == {2, 4, 6}


def test_each_loss_moves_only_its_own_weights_and_the_actor_listens_to_the_first_critic() -> None:
    algorithm, batch = make_td3(), continuous_batch()
    torch.autograd.backward(algorithm.critic_loss(batch, algorithm.updater.draw(batch)).loss.sum())
    assert algorithm.critic_optimizer.gradient.abs().sum() > 0
    assert algorithm.actor_optimizer.gradient.abs().sum() == 0
    algorithm.critic_optimizer.gradient.zero_()
    before = algorithm.actor_loss(batch, {}).loss
    torch.autograd.backward(before.sum())
    assert algorithm.actor_optimizer.gradient.abs().sum() > 0
    assert algorithm.critic_optimizer.gradient.abs().sum() == 0
    with torch.no_grad():
        algorithm.policy.network.critic.functions[1].linears[-1].bias.add_(100.0)
    assert torch.equal(algorithm.actor_loss(batch, {}).loss, before)
    with torch.no_grad():
        algorithm.policy.network.critic.q1.linears[-1].bias.add_(100.0)
    torch.testing.assert_close(algorithm.actor_loss(batch, {}).loss, before - 100.0)


def test_exploration_adds_clipped_noise_to_the_deterministic_action() -> None:
    policy = make_td3(learning_starts=10, exploration_noise=0.3).policy
    obs = np.zeros((4000, 3), np.float32)
    mean = policy.act(obs, (), env_steps=10).action
    drawn = policy.act(obs, (), rng=np.random.default_rng(0), env_steps=10).action
    assert np.abs(drawn).max() <= 1.0
    quantiles = np.quantile(drawn - mean, [0.16, 0.5, 0.84], axis=0)
    np.testing.assert_allclose(quantiles, [[-0.3, -0.3], [0.0, 0.0], [0.3, 0.3]], atol=0.03)
    uniform = policy.act(obs, (), rng=np.random.default_rng(0), env_steps=9).action
    np.testing.assert_allclose(np.quantile(uniform, [0.1, 0.9], axis=0), [[-0.8] * 2, [0.8] * 2], atol=0.05)


def test_the_state_includes_the_target_actor_and_continues_exactly() -> None:
    original, restored = make_td3(), make_td3()
    for seed in range(3):
        original.update(continuous_batch(seed=seed))
    restored.policy.load_state_dict(original.policy.state_dict())
    restored.load_state_dict(original.state_dict())
    restored.streams.load_state_dict(original.streams.state_dict())
    for algorithm in (original, restored):
        algorithm.update(continuous_batch(seed=9))
    assert torch.equal(original.target_actor_network.vector, restored.target_actor_network.vector)
    assert torch.equal(original.critic_optimizer.parameters, restored.critic_optimizer.parameters)
