"""Discrete SAC by worked numbers and against a plain program; its warm-up; what it does with action masks."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from batches import SPEC, discrete_batch
from learning import must_be
from soft_twin import SETTINGS, SoftTwin
from torch.nn import functional as F

from rl_training.algorithms.base import init_generator
from rl_training.algorithms.discrete_sac import (
    DiscreteSAC,
    DiscreteSACConfig,
    discrete_sac_actor_loss,
    discrete_sac_target,
)
from rl_training.rng import RandomStreams
from rl_training.runtime.cadence import cpu_threads
from rl_training.types import TransitionBatch

HALVES = torch.tensor([[0.5, 0.25, 0.25]]).log()


def make_discrete_sac(seed: int = 0, **settings: Any) -> DiscreteSAC:
    config = DiscreteSACConfig(**{"hidden_sizes": (16, 16), "batch_size": 8, "buffer_size": 100, **settings})
    return DiscreteSAC(DiscreteSAC.make_policy(config, SPEC, init_generator(seed)), config, RandomStreams(seed))


def make_batch(rows: int = 8, seed: int = 0) -> TransitionBatch:
    return discrete_batch(*[0.9, 0.9, 0.9, 0.0] * (rows // 4), seed=seed)


def test_target_by_hand() -> None:
    """E[min Q] = 0.5 * 1 + 0.25 * 2 + 0.25 * 4 = 2; the entropy is 1.5 log 2; so 1 + 0.9 (2 + 0.5 * 1.5 log 2)."""
    next_q = torch.tensor([[[1.0, 3.0, 4.0]], [[5.0, 2.0, 6.0]]])
    found = discrete_sac_target(torch.tensor([1.0]), torch.tensor([0.9]), next_q, HALVES, torch.tensor(0.5))
    torch.testing.assert_close(found, torch.tensor([1.0 + 0.9 * (2.0 + 0.75 * math.log(2.0))]))
    found = discrete_sac_target(torch.tensor([1.0]), torch.tensor([0.0]), next_q, HALVES, torch.tensor(0.5))
    torch.testing.assert_close(found, torch.tensor([1.0]))


def test_actor_loss_by_hand() -> None:
    """0.5 * (-1.5 log 2) - 2, and no gradient to the critics."""
    q = torch.tensor([[[1.0, 3.0, 4.0]], [[5.0, 2.0, 6.0]]], requires_grad=True)
    log_policy = HALVES.clone().requires_grad_()
    output = discrete_sac_actor_loss(log_policy, q, torch.tensor(0.5))
    torch.testing.assert_close(output.loss, torch.tensor([-0.75 * math.log(2.0) - 2.0]))
    torch.testing.assert_close(output.metrics["log_prob_mean"], torch.tensor([-1.5 * math.log(2.0)]))
    torch.autograd.backward(output.loss.sum())
    assert q.grad is None
    assert log_policy.grad is not None


def test_the_actors_loss_is_least_at_the_softmax_of_the_values() -> None:
    """The best policy for fixed values is exp(min Q / alpha), normalised."""
    q = torch.tensor([[[1.0, 0.5, 2.0]], [[3.0, 0.7, 1.2]]])
    logits = torch.zeros(1, 3, requires_grad=True)
    optimizer = torch.optim.Adam([logits], lr=0.05)
    for _ in range(600):
        optimizer.zero_grad()
        torch.autograd.backward(discrete_sac_actor_loss(logits.log_softmax(1), q, torch.tensor(0.4)).loss.sum())
        optimizer.step()
    expected = F.softmax(torch.tensor([[1.0, 0.5, 1.2]]) / 0.4, dim=1)
    torch.testing.assert_close(logits.detach().softmax(1), expected, atol=1e-3, rtol=0.0)


def test_updates_follow_the_paper_step_by_step() -> None:
    algorithm, batch = make_discrete_sac(**SETTINGS, target_entropy=0.5), make_batch()
    twin = SoftTwin(algorithm)
    for _ in range(4):
        alpha = float(twin.alpha)
        y = torch.empty(8)
        with torch.no_grad():
            for i in range(8):
                probabilities = F.softmax(twin.network.actor(batch.next_obs[i : i + 1]), dim=1)[0]
                q1, q2 = twin.target(batch.next_obs[i : i + 1])[:, 0]
                value = sum(p * (min(a, b) - alpha * p.log()) for p, a, b in zip(probabilities, q1, q2, strict=True))
                y[i] = batch.reward[i] + batch.discount[i] * value
        rows = torch.arange(8)
        q1, q2 = twin.network.critic(batch.obs)
        critic_loss = F.mse_loss(q1[rows, batch.action], y) + F.mse_loss(q2[rows, batch.action], y)
        twin.learn_critic(critic_loss)
        distribution = torch.distributions.Categorical(logits=twin.network.actor(batch.obs))
        entropy = distribution.entropy()  # type: ignore[no-untyped-call]
        q = twin.network.critic(batch.obs).detach().min(dim=0).values
        actor_loss = (-alpha * entropy - (distribution.probs * q).sum(1)).mean()
        twin.learn_actor(actor_loss)
        twin.learn_temperature(entropy, 0.5)
        result = algorithm.update(batch)
        assert result.metrics["critic_loss"] == pytest.approx(float(critic_loss.detach()), rel=1e-4)
        assert result.metrics["actor_loss"] == pytest.approx(float(actor_loss.detach()), rel=1e-3, abs=1e-5)
    twin.assert_equal()


@must_be(below=0.1)
def error_of_the_entropy_of_discrete_sac(seed: int) -> float:
    """Rewards pull to one action, against which only the right temperature keeps the entropy where it should be."""
    algorithm = make_discrete_sac(seed, learning_rate=1e-2, target_entropy=0.7, alpha=0.3)
    batch = make_batch(64, seed)._replace(discount=torch.zeros(64))
    batch = batch._replace(reward=(batch.action == 1).float())
    with cpu_threads(1):
        entropies = [-algorithm.update(batch).metrics["log_prob_mean"] for _ in range(600)]
    return abs(float(np.mean(entropies[-100:])) - 0.7)


def test_the_entropy_settles_at_its_target() -> None:
    error_of_the_entropy_of_discrete_sac.check()


@pytest.mark.parametrize(("given", "expected"), [(None, 0.98 * math.log(3.0)), (0.4, 0.4)])
def test_target_entropy(given: float | None, expected: float) -> None:
    assert make_discrete_sac(target_entropy=given).target_entropy == pytest.approx(expected)


def test_forbidden_actions_have_no_part_in_targets_and_in_the_actors_loss() -> None:
    algorithm, batch = make_discrete_sac(), make_batch()
    mask = torch.tensor([True, False, True]).expand(8, 3)
    masked = batch._replace(next_action_mask=mask)
    before = algorithm.critic_loss(masked, {}).loss, algorithm.actor_loss(masked, {}).loss
    with torch.no_grad():
        for critics in (algorithm.target, algorithm.frozen_critic):
            for network in (critics.q1, critics.q2):
                network.linears[-1].bias[1] -= 50.0  # type: ignore[union-attr, index]
    rows = batch.action != 1  # the value of the action that was taken has changed too
    torch.testing.assert_close(algorithm.critic_loss(masked, {}).loss[rows], before[0][rows])
    torch.testing.assert_close(algorithm.actor_loss(masked, {}).loss, before[1])
    assert not torch.allclose(algorithm.actor_loss(batch, {}).loss, before[1])
    assert before[1][batch.discount == 0].abs().sum() == 0  # of terminal observations there is nothing to learn


def test_warm_up_acts_uniformly_then_by_the_actor_and_evaluation_takes_the_mode() -> None:
    policy = make_discrete_sac(learning_starts=50).policy
    obs = np.ones((6000, 4), np.float32)
    warm = policy.act(obs, (), rng=np.random.default_rng(0), env_steps=49).action
    np.testing.assert_allclose(np.bincount(warm) / 6000, [1 / 3] * 3, atol=0.03)
    with torch.no_grad():
        policy.network.actor.mlp.linears[-1].bias.copy_(torch.tensor([0.0, 2.0, 1.0]))
        expected = F.softmax(policy.network.actor(torch.from_numpy(obs[:1])), dim=1)[0].numpy()
    acted = policy.act(obs, (), rng=np.random.default_rng(0), env_steps=50).action
    np.testing.assert_allclose(np.bincount(acted, minlength=3) / 6000, expected, atol=0.03)
    assert set(policy.act(obs, ()).action.tolist()) == {int(expected.argmax())}
    mask = np.tile([True, False, False], (6000, 1))
    for step in (0, 50):
        assert not policy.act(obs, (), rng=np.random.default_rng(1), env_steps=step, action_mask=mask).action.any()
