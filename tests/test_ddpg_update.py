"""DDPG: its update against a plain program, and that it is TD3 with other settings."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from batches import CONTINUOUS_SPEC, continuous_batch
from test_td3_update import make_td3
from torch.nn import functional as F

from rl_training.algorithms.base import init_generator
from rl_training.algorithms.ddpg import DDPG, DDPGConfig
from rl_training.rng import RandomStreams


def make_ddpg(**settings: Any) -> DDPG:
    config = DDPGConfig(**{"hidden_sizes": (16, 16), "batch_size": 8, "buffer_size": 100, **settings})
    return DDPG(DDPG.make_policy(config, CONTINUOUS_SPEC, init_generator(0)), config, RandomStreams(0))


def test_updates_follow_the_paper_step_by_step() -> None:
    """Algorithm 1 with torch's own Adam: critic, actor and both target networks every time, without noise."""
    algorithm, batch = make_ddpg(learning_rate=1e-2, tau=0.1), continuous_batch()
    network = copy.deepcopy(algorithm.policy.network)
    assert len(network.critic.functions) == 1
    target_actor, target_critic = copy.deepcopy(network.actor), copy.deepcopy(network.critic)
    critic_adam = torch.optim.Adam(network.critic.parameters(), lr=1e-2)
    actor_adam = torch.optim.Adam(network.actor.parameters(), lr=1e-2)
    for _ in range(4):
        with torch.no_grad():
            next_input = torch.cat([batch.next_obs, torch.tanh(target_actor(batch.next_obs))], dim=1)
            y = batch.reward + batch.discount * target_critic.q1(next_input).squeeze(1)
        critic_loss = F.mse_loss(network.critic.q1(torch.cat([batch.obs, batch.action], dim=1)).squeeze(1), y)
        critic_adam.zero_grad()
        torch.autograd.backward(critic_loss)
        critic_adam.step()
        actor_loss = -network.critic.q1(torch.cat([batch.obs, torch.tanh(network.actor(batch.obs))], dim=1)).mean()
        actor_adam.zero_grad()
        torch.autograd.backward(actor_loss)
        actor_adam.step()
        with torch.no_grad():
            for follower, leader in ((target_actor, network.actor), (target_critic, network.critic)):
                for parameter, online in zip(follower.parameters(), leader.parameters(), strict=True):
                    parameter.lerp_(online, 0.1)
        result = algorithm.update(batch)
        assert result.metrics["critic_loss"] == pytest.approx(float(critic_loss.detach()), rel=1e-4)
        assert result.metrics["actor_loss"] == pytest.approx(float(actor_loss.detach()), rel=1e-3, abs=1e-5)
    for found, expected in ((algorithm.target_actor, target_actor), (algorithm.target, target_critic)):
        for parameter, other in zip(found.parameters(), expected.parameters(), strict=True):
            torch.testing.assert_close(parameter, other, rtol=1e-3, atol=1e-4)


def test_it_is_td3_with_one_critic_without_smoothing_and_delay() -> None:
    ddpg = make_ddpg()
    td3 = make_td3(n_critics=1, target_noise=0.0, actor_update_interval=1, target_update_interval=1)
    for seed in range(3):
        ddpg.update(continuous_batch(seed=seed))
        td3.update(continuous_batch(seed=seed))
    assert torch.equal(ddpg.critic_optimizer.parameters, td3.critic_optimizer.parameters)
    assert torch.equal(ddpg.actor_optimizer.parameters, td3.actor_optimizer.parameters)
    assert torch.equal(ddpg.target_actor_network.vector, td3.target_actor_network.vector)


def test_nothing_is_drawn_for_an_update() -> None:
    algorithm = make_ddpg()
    assert algorithm.updater.draw(continuous_batch()) == {}
