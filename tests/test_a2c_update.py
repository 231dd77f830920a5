"""A2C: its loss by worked numbers, and its update against plain torch with n-step returns by hand."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from rollouts import DISCRETE, GAUSSIAN, random_rollout
from torch import Tensor, nn

from rl_training.algorithms.a2c import A2C, A2CConfig, a2c_loss
from rl_training.algorithms.base import init_generator
from rl_training.algorithms.on_policy import flat
from rl_training.data import Rollout
from rl_training.models import ActorCritic
from rl_training.rng import RandomStreams
from rl_training.types import Array, SpaceSpec


def make_a2c(spec: SpaceSpec = DISCRETE, **settings: Any) -> A2C:
    config = A2CConfig.model_validate({"hidden_sizes": (8,), **settings})
    return A2C(A2C.make_policy(config, spec, init_generator(0)), config, RandomStreams(3))


def test_loss_of_worked_numbers() -> None:
    """-log pi * A + 0.5 (V - R)^2 - 0.1 H: 1 + 2 - 0.05 and -6 + 0.5 - 0.1."""
    log_prob = torch.tensor([-0.5, -2.0], requires_grad=True)
    value = torch.tensor([1.0, 2.0], requires_grad=True)
    advantage, target = torch.tensor([2.0, -3.0], requires_grad=True), torch.tensor([3.0, 1.0], requires_grad=True)
    entropy = torch.tensor([0.5, 1.0], requires_grad=True)
    output = a2c_loss(log_prob, advantage, value, target, entropy, value_coef=0.5, entropy_coef=0.1)
    torch.testing.assert_close(output.loss, torch.tensor([2.95, -5.6]))
    torch.autograd.backward(output.loss.sum())
    for tensor, expected in ((log_prob, [-2.0, 3.0]), (value, [-2.0, 1.0]), (entropy, [-0.1, -0.1])):
        assert tensor.grad is not None
        torch.testing.assert_close(tensor.grad, torch.tensor(expected))
    assert advantage.grad is None
    assert target.grad is None
    torch.testing.assert_close(output.metrics["policy_loss"], torch.tensor([1.0, -6.0]))
    torch.testing.assert_close(output.metrics["value_loss"], torch.tensor([4.0, 1.0]))


def n_step_returns(rollout: Rollout, network: ActorCritic, gamma: float) -> Array:
    """For each step, the discounted rewards up to the end of its episode or of the rollout, then the value that follows."""
    steps, envs = rollout.reward.shape
    returns = np.zeros((steps, envs))
    for i in range(envs):
        for t in range(steps):
            total, scale, k = 0.0, 1.0, t
            while True:
                total += scale * float(rollout.reward[k, i])
                scale *= gamma
                if rollout.terminated[k, i]:
                    break
                if rollout.truncated[k, i] or k == steps - 1:
                    with torch.no_grad():
                        total += scale * float(network.value(torch.from_numpy(rollout.next_obs[k, i][None])))
                    break
                k += 1
            returns[t, i] = total
    return returns


@pytest.mark.parametrize("spec", [DISCRETE, GAUSSIAN], ids=["discrete", "gaussian"])
def test_an_update_is_one_step_of_plain_torch_on_n_step_returns(spec: SpaceSpec) -> None:
    algorithm = make_a2c(spec, learning_rate=1e-2, max_grad_norm=0.1, entropy_coef=0.01, value_coef=0.25, gamma=0.9)
    network = copy.deepcopy(algorithm.policy.network)
    assert isinstance(network, ActorCritic)
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-2, eps=1e-5)
    for seed in range(3):
        rollout = random_rollout(spec, seed=seed)
        returns = torch.from_numpy(n_step_returns(rollout, network, 0.9)).float().reshape(-1)
        output, value = network(torch.from_numpy(flat(rollout.obs)))
        action = torch.from_numpy(flat(rollout.action))
        distribution: Any
        if spec is DISCRETE:
            distribution = torch.distributions.Categorical(logits=output)
            log_prob, entropy = distribution.log_prob(action), distribution.entropy()
        else:
            log_std: Tensor = network.head.log_std  # type: ignore[assignment]
            distribution = torch.distributions.Normal(output, log_std.exp())
            log_prob, entropy = distribution.log_prob(action).sum(1), distribution.entropy().sum(1)
        advantage = (returns - value).detach()
        loss = (-log_prob * advantage + 0.25 * (value - returns).square() - 0.01 * entropy).mean()
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        nn.utils.clip_grad_norm_(network.parameters(), 0.1)
        optimizer.step()
        result = algorithm.update(rollout)
        assert result.metrics["loss"] == pytest.approx(float(loss.detach()), rel=1e-4)
    for name, value in algorithm.policy.network.state_dict().items():
        torch.testing.assert_close(value, network.state_dict()[name], rtol=1e-3, atol=1e-5)
    assert algorithm.updates == 3
    assert set(result.metrics) == {"loss", "policy_loss", "value_loss", "entropy", "explained_variance"}


def test_the_entropy_bonus_widens_the_policy() -> None:
    def final_entropy(coefficient: float) -> float:
        algorithm = make_a2c(learning_rate=1e-2, entropy_coef=coefficient)
        for seed in range(60):
            rollout = random_rollout(DISCRETE, seed=seed)
            result = algorithm.update(rollout._replace(reward=(rollout.action == 1).astype(np.float32)))
        return result.metrics["entropy"]

    plain, widened = final_entropy(0.0), final_entropy(2.0)
    assert plain < 0.9
    assert widened > 1.05  # the largest possible is log 3 = 1.099
