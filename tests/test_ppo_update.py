"""PPO's advantages and loss by hand-worked numbers, its update against plain torch, and what it normalises."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from rollouts import DISCRETE, GAUSSIAN, IMAGE, act_and_store, random_rollout, strengthen
from torch import Tensor, nn
from torch.nn import functional as F

from rl_training.algorithms.base import init_generator
from rl_training.algorithms.on_policy import ActorCriticPolicy, flat, gae
from rl_training.algorithms.ppo import PPO, PPOConfig, ppo_loss
from rl_training.algorithms.recurrent_ppo import RecurrentPPO
from rl_training.data import Rollout
from rl_training.errors import ConfigError
from rl_training.experiment.config import resolve_config
from rl_training.models import ActorCritic
from rl_training.rng import RandomStreams
from rl_training.types import Array, SpaceSpec


def make_ppo(spec: SpaceSpec = DISCRETE, **settings: Any) -> PPO:
    config = PPOConfig.model_validate({"hidden_sizes": (8,), "n_minibatches": 2, "n_epochs": 2, **settings})
    return PPO(PPO.make_policy(config, spec, init_generator(0)), config, RandomStreams(3))


def column(*values: float) -> Array:
    return np.array(values)[:, None]


# ------------------------------------------------------------------------------------------------- advantages


def test_gae_of_worked_numbers() -> None:
    value, next_value = column(0.5, 0.4, 0.3), column(0.4, 0.3, 0.2)
    advantage = gae(column(1, 1, 1), value, next_value, column(0.9, 0.9, 0.9), column(0.72, 0.72, 0.72))
    np.testing.assert_allclose(advantage, column(1.942592, 1.5036, 0.88))


def test_gae_does_not_look_past_a_termination() -> None:
    # the second step terminates: no value after it, and the first step's trace ends there
    value, next_value = column(0.5, 0.4, 0.3), column(0.4, 100.0, 0.2)
    advantage = gae(column(1, 1, 1), value, next_value, column(0.9, 0.0, 0.9), column(0.72, 0.0, 0.72))
    np.testing.assert_allclose(advantage, column(0.86 + 0.72 * 0.6, 0.6, 0.88))


def test_gae_bootstraps_a_truncation_from_its_final_observation_and_stops_there() -> None:
    value, next_value = column(0.5, 0.4, 0.3), column(0.4, 2.0, 0.2)  # 2: the value of the final observation
    advantage = gae(column(1, 1, 1), value, next_value, column(0.9, 0.9, 0.9), column(0.72, 0.0, 0.72))
    np.testing.assert_allclose(advantage, column(0.86 + 0.72 * 2.4, 1.0 + 0.9 * 2.0 - 0.4, 0.88))


def test_gae_with_lambda_1_is_the_discounted_return_less_the_value() -> None:
    rng = np.random.default_rng(0)
    reward, value = rng.normal(size=(6, 2)), rng.normal(size=(7, 2))
    advantage = gae(reward, value[:-1], value[1:], np.full((6, 2), 0.9), np.full((6, 2), 0.9))
    powers = 0.9 ** np.arange(7)
    expected = (powers[:6, None] * reward).sum(0) + powers[6] * value[6] - value[0]
    np.testing.assert_allclose(advantage[0], expected)


# ------------------------------------------------------------------------------------------------------- loss


def loss_of(ratio: list[float], advantage: list[float], **settings: Any) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    log_prob = torch.tensor(ratio).log().requires_grad_()
    zeros = torch.zeros(len(ratio))
    output = ppo_loss(log_prob, zeros, torch.tensor(advantage), zeros, zeros, zeros, clip_range=0.2, **settings)
    output.loss.sum().backward()  # type: ignore[no-untyped-call]
    assert log_prob.grad is not None
    return output.loss.detach(), log_prob.grad, dict(output.metrics)


def test_the_surrogate_is_clipped_only_where_that_makes_it_worse() -> None:
    loss, gradient, metrics = loss_of([1.0, 1.5, 1.5, 0.5, 0.5], [2.0, 2.0, -2.0, 2.0, -2.0])
    torch.testing.assert_close(loss, -torch.tensor([2.0, 2.4, -3.0, 1.0, -1.6]))
    torch.testing.assert_close(gradient, -torch.tensor([2.0, 0.0, -3.0, 1.0, 0.0]))  # ratio * advantage, or nothing
    assert metrics["clip_fraction"].tolist() == [0.0, 1.0, 1.0, 1.0, 1.0]
    torch.testing.assert_close(metrics["approx_kl"][1], torch.tensor(0.5 - np.log(1.5), dtype=torch.float32))


def test_value_and_entropy_terms() -> None:
    zeros = torch.zeros(3)
    value, target = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([2.0, 2.0, 1.0])
    options = {"clip_range": 0.2, "value_coef": 0.5, "entropy_coef": 0.1}
    loss = ppo_loss(zeros, zeros, zeros, value, target, torch.ones(3), **options).loss  # type: ignore[arg-type]
    torch.testing.assert_close(loss, torch.tensor([0.5, 0.0, 2.0]) - 0.1)


def test_a_clipped_value_takes_the_worse_of_both() -> None:
    zeros = torch.zeros(3)
    value, old_value = torch.tensor([1.0, 1.0, 1.0]), torch.tensor([0.0, 0.9, 0.0])
    target = torch.tensor([2.0, 2.0, 0.0])
    output = ppo_loss(
        zeros, zeros, zeros, value, target, zeros, clip_range=0.2, value_coef=1.0, clip_value=0.2, old_value=old_value
    )
    # clipped to .2: error 1.8 beats 1; not clipped: 1; clipped to .2: .2 is better than 1, so 1
    torch.testing.assert_close(output.loss, torch.tensor([1.8**2, 1.0, 1.0]))


def test_shapes_that_would_broadcast_are_refused() -> None:
    with pytest.raises(AssertionError):
        four = torch.zeros(4)
        ppo_loss(four, four, four, torch.zeros(4, 1), four, four, clip_range=0.2)


# ----------------------------------------------------------------------------------------------------- heads


def test_categorical_log_probabilities_entropy_and_draws() -> None:
    network = ActorCritic(DISCRETE, (8,), init_generator(0))
    logits = torch.tensor([[0.0, 1.0, -1.0]]).repeat(20_000, 1)
    reference: Any = torch.distributions.Categorical(logits=logits[:3])
    log_prob, entropy = network.head.log_prob_and_entropy(logits[:3], torch.tensor([0, 1, 2]))
    torch.testing.assert_close(log_prob, reference.log_prob(torch.tensor([0, 1, 2])))
    torch.testing.assert_close(entropy, reference.entropy())
    drawn = network.head.sample(logits.numpy(), np.random.default_rng(0))
    np.testing.assert_allclose(np.bincount(drawn) / 20_000, reference.probs[0].numpy(), atol=0.01)
    assert set(network.head.mode(logits.numpy()).tolist()) == {1}


def test_gaussian_log_probabilities_entropy_and_draws() -> None:
    network = ActorCritic(GAUSSIAN, (8,), init_generator(0), initial_log_std=-0.5)
    mean = torch.tensor([[0.3, -2.0]]).repeat(20_000, 1)
    action = torch.tensor([[0.0, 0.5], [1.0, -1.0], [5.0, 5.0]])
    reference: Any = torch.distributions.Normal(mean[:3], float(np.exp(-0.5)))
    log_prob, entropy = network.head.log_prob_and_entropy(mean[:3], action)
    torch.testing.assert_close(log_prob, reference.log_prob(action).sum(1))
    torch.testing.assert_close(entropy, reference.entropy().sum(1))
    drawn = network.head.sample(mean.numpy(), np.random.default_rng(0))
    np.testing.assert_allclose(drawn.mean(0), [0.3, -2.0], atol=0.02)
    np.testing.assert_allclose(drawn.std(0), np.exp([-0.5, -0.5]), rtol=0.02)
    assert drawn.dtype == np.float32
    assert (np.abs(drawn) > 1).any()  # stored as drawn; the environment gets it clipped
    assert np.abs(GAUSSIAN.action.to_env(drawn)).max() <= 2.0


# ---------------------------------------------------------------------------------------------------- update


@pytest.mark.parametrize("minibatches", [3, 21])  # 21: single rows, which torch computes in another way than many
@pytest.mark.parametrize("spec", [DISCRETE, GAUSSIAN, IMAGE], ids=["discrete", "continuous", "image"])
def test_the_ratio_is_exactly_1_before_the_first_step(
    spec: SpaceSpec, minibatches: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    algorithm = make_ppo(spec, n_minibatches=minibatches, normalize_observations=spec is GAUSSIAN, hidden_sizes=(64, 64))
    algorithm.update(random_rollout(spec))  # there are statistics
    strengthen(algorithm.policy.network.actor)  # type: ignore[arg-type]
    network: Any = copy.deepcopy(algorithm.policy.network)
    rollout = act_and_store(algorithm.policy, steps=7, num_envs=3)
    ratios: list[Tensor] = []
    old: list[Tensor] = []
    original = ppo_loss

    def noting(log_prob: Tensor, old_log_prob: Tensor, *args: Any, **kwargs: Any) -> Any:
        ratios.append((log_prob - old_log_prob).exp().detach())
        old.append(old_log_prob)
        return original(log_prob, old_log_prob, *args, **kwargs)

    monkeypatch.setattr("rl_training.algorithms.ppo.ppo_loss", noting)
    algorithm.update(rollout)
    assert (ratios[0] == 1.0).all()
    assert (torch.cat(ratios[1:]) != 1.0).any()
    with torch.no_grad():  # and they are those of the policy that acted, statistics included
        output = network.action_output(torch.from_numpy(flat(rollout.obs)))
        acted, _ = network.head.log_prob_and_entropy(output, torch.from_numpy(flat(rollout.action)))
    torch.testing.assert_close(torch.cat(old[:minibatches]).sort()[0], acted.sort()[0], rtol=1e-4, atol=1e-5)


def test_acting_agrees_with_the_network_in_torch() -> None:
    for spec in (DISCRETE, GAUSSIAN, IMAGE):
        algorithm = make_ppo(spec, normalize_observations=spec is GAUSSIAN, learning_rate=0.1)
        algorithm.update(random_rollout(spec))  # acting follows the update
        obs = flat(random_rollout(spec, seed=5).obs)
        network = algorithm.policy.network
        assert isinstance(network, ActorCritic)
        with torch.no_grad():
            expected = network.action_output(torch.from_numpy(obs)).numpy()
        np.testing.assert_allclose(network.numpy_action_output()(obs), expected, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(algorithm.policy.act(obs, ()).action, network.head.mode(expected), atol=1e-5)


def test_update_equals_plain_torch() -> None:
    settings: dict[str, Any] = {"learning_rate": 0.01, "entropy_coef": 0.01, "max_grad_norm": 0.1, "gamma": 0.9}
    algorithm = make_ppo(**settings)
    rollout = random_rollout(DISCRETE)
    network: Any = copy.deepcopy(algorithm.policy.network)
    optimizer = torch.optim.Adam(network.parameters(), lr=0.01, eps=1e-5)
    algorithm.update(rollout)

    obs, action = torch.from_numpy(flat(rollout.obs)), torch.from_numpy(flat(rollout.action))
    with torch.no_grad():
        old_log_prob = F.log_softmax(network(obs)[0], 1).gather(1, action[:, None])[:, 0]
        advantage, target = map(torch.from_numpy, map(flat, by_hand(network, rollout, 0.9, 0.95)))
    order = RandomStreams(3)["minibatch"]
    for _ in range(2):
        for steps in np.array_split(order.permutation(len(obs)), 2):
            logits, value = network(obs[steps])
            log_probs = F.log_softmax(logits, 1)
            ratio = (log_probs.gather(1, action[steps, None])[:, 0] - old_log_prob[steps]).exp()
            a = advantage[steps]
            a = (a - a.mean()) / (a.std(correction=0) + 1e-8)
            policy_loss = -torch.min(ratio * a, ratio.clamp(0.8, 1.2) * a).mean()
            entropy = -(log_probs.exp() * log_probs).sum(1).mean()
            optimizer.zero_grad()
            loss = policy_loss + 0.5 * F.mse_loss(value, target[steps]) - 0.01 * entropy
            loss.backward()  # type: ignore[no-untyped-call]
            nn.utils.clip_grad_norm_(network.parameters(), 0.1)
            optimizer.step()
    for found, expected in zip(algorithm.policy.network.parameters(), network.parameters(), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def by_hand(network: Any, rollout: Rollout, gamma: float, lam: float) -> tuple[Array, Array]:
    """Advantages and targets, one environment and one step at a time, backwards."""
    advantage, target = np.zeros_like(rollout.reward), np.zeros_like(rollout.reward)

    def value(obs: Array) -> float:
        return float(network.value(torch.from_numpy(obs[None])))

    steps, num_envs = rollout.reward.shape
    for i in range(num_envs):
        later = 0.0
        for t in reversed(range(steps)):
            if rollout.terminated[t, i]:
                delta, later = rollout.reward[t, i] - value(rollout.obs[t, i]), 0.0
            else:
                delta = rollout.reward[t, i] + gamma * value(rollout.next_obs[t, i]) - value(rollout.obs[t, i])
                later = 0.0 if rollout.truncated[t, i] else later
            later = delta + gamma * lam * later
            advantage[t, i], target[t, i] = later, later + value(rollout.obs[t, i])
    return advantage, target


@pytest.mark.parametrize("seed", range(5))
def test_advantages_equal_a_plain_loop(seed: int) -> None:
    algorithm = make_ppo(gamma=0.9, gae_lambda=0.8)
    network: Any = algorithm.policy.network
    rollout = random_rollout(DISCRETE, seed=seed)
    with torch.no_grad():
        value = network.value(torch.from_numpy(flat(rollout.obs))).numpy().reshape(rollout.reward.shape)
        advantage, target = algorithm.targets(algorithm.begin_phase(rollout), value)
        expected = by_hand(network, rollout, 0.9, 0.8)
    np.testing.assert_allclose(advantage, expected[0], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(target, expected[1], rtol=1e-4, atol=1e-5)


def test_the_first_gradient_step_does_not_repeat_the_pass_that_the_old_policy_took() -> None:
    ppo = make_ppo()
    passes = []
    ppo.policy.network.register_forward_hook(lambda *_: passes.append(torch.is_grad_enabled()))
    ppo.update(random_rollout(DISCRETE))
    assert passes == [True] * (2 + 2 * 2 - 1)  # two minibatches under the old policy, two passes over both, less the first


def test_every_epoch_goes_through_every_step_once() -> None:
    algorithm = make_ppo()
    phase = algorithm.begin_phase(random_rollout(DISCRETE))
    rng = np.random.default_rng(0)
    orders = []
    for _ in range(2):
        parts = phase.minibatches(4, rng)
        assert max(map(len, parts)) - min(map(len, parts)) <= 1
        orders.append(torch.cat(list(parts)).tolist())
        assert sorted(orders[-1]) == list(range(len(phase.action)))
    assert orders[0] != orders[1]


def test_a_phase_ends_when_the_divergence_passes_its_target() -> None:
    rollout = random_rollout(DISCRETE)
    free, bound = make_ppo(learning_rate=0.1, n_epochs=10), make_ppo(learning_rate=0.1, n_epochs=10, target_kl=1e-3)
    for algorithm in (free, bound):
        algorithm.update(rollout)
    assert free.updates == 20
    assert 1 <= bound.updates < 20


def test_update_reports_named_metrics() -> None:
    result = make_ppo().update(random_rollout(DISCRETE))
    names = {"loss", "policy_loss", "value_loss", "entropy", "approx_kl", "clip_fraction", "explained_variance"}
    assert set(result.metrics) == names
    assert all(np.isfinite(value) for value in result.metrics.values())
    assert not any(sample.requires_grad for sample in result.samples.values())


def test_schedules_fall_with_env_steps() -> None:
    algorithm = make_ppo(
        learning_rate=1e-2,
        final_learning_rate=1e-4,
        learning_rate_decay_steps=100,
        clip_range=0.4,
        final_clip_range=0.2,
        clip_range_decay_steps=50,
    )
    assert algorithm.schedule_values(25) == {"learning_rate": pytest.approx(7.525e-3), "clip_range": pytest.approx(0.3)}
    with pytest.raises(ValueError, match="go together"):
        make_ppo(final_clip_range=0.1)


def test_initial_weights_are_orthogonal_and_the_first_policy_nearly_uniform() -> None:
    network = ActorCritic(DISCRETE, (8, 8), init_generator(0))
    weight = network.actor.linears[1].weight.detach()
    torch.testing.assert_close(weight @ weight.T, 2.0 * torch.eye(8), rtol=1e-4, atol=1e-5)
    assert torch.linalg.svdvals(network.actor.linears[-1].weight).max().item() == pytest.approx(0.01, rel=1e-4)
    assert torch.linalg.svdvals(network.critic.linears[-1].weight).max().item() == pytest.approx(1.0, rel=1e-4)


def test_state_round_trip_continues_exactly() -> None:
    settings: dict[str, Any] = {"normalize_observations": True, "normalize_rewards": True}
    original, restored = make_ppo(**settings), make_ppo(**settings)
    for seed in range(3):
        original.update(random_rollout(DISCRETE, seed=seed))
    restored.streams.load_state_dict(original.streams.state_dict())
    restored.policy.load_state_dict(original.policy.state_dict())
    restored.load_state_dict(original.state_dict())
    for seed in range(3, 6):
        for algorithm in (original, restored):
            algorithm.update(random_rollout(DISCRETE, seed=seed))
    assert original.updates == restored.updates
    states = [algorithm.policy.state_dict() for algorithm in (original, restored)]
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])


@pytest.mark.parametrize("algorithm_class", [PPO, RecurrentPPO])
def test_forbidden_actions_are_neither_taken_nor_learned_from(algorithm_class: Any) -> None:
    config = algorithm_class.config_class.model_validate({"hidden_sizes": (8,), "n_minibatches": 2, "entropy_coef": 0.1})
    algorithm = algorithm_class(algorithm_class.make_policy(config, DISCRETE, init_generator(0)), config, RandomStreams(3))
    policy = algorithm.policy
    mask = np.array([[True, False, True], [False, True, False]] * 50)
    obs = np.ones((100, 4), np.float32)
    for rng in (None, np.random.default_rng(0)):
        output = policy.act(obs, policy.initial_carry(100), rng=rng, action_mask=mask)
        assert mask[np.arange(100), output.action].all()
        assert output.extras["action_mask"] is mask
    rollout = act_and_store(policy, steps=6, num_envs=2)
    allowed = np.zeros((6, 2, 3), np.bool_)
    np.put_along_axis(allowed, rollout.action[..., None], True, axis=2)  # only what was done: nothing to choose
    result = algorithm.update(rollout._replace(action_mask=allowed))
    assert result.metrics["entropy"] == 0.0
    assert result.metrics["policy_loss"] == pytest.approx(0.0, abs=1e-6)
    assert result.metrics["approx_kl"] == 0.0
    assert all(torch.isfinite(value).all() for value in policy.state_dict().values())


# ---------------------------------------------------------------------------------------------------- config


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"num_envs": 8, "total_timesteps": 1000, "algo_kwargs": {"n_steps": 126}}, "one rollout"),
        ({"num_envs": 2, "algo_kwargs": {"n_steps": 2, "n_minibatches": 5}}, "n_minibatches \\(5\\) exceeds"),
        ({"algo_kwargs": {"clip_rage": 0.1}}, "did you mean 'clip_range'"),
    ],
)
def test_a_config_that_cannot_learn_is_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        resolve_config({"algo": "ppo", "env_id": "CartPole-v1", **values})


def test_the_policy_of_a_fresh_agent_is_the_same_class_everywhere() -> None:
    assert isinstance(make_ppo().policy, ActorCriticPolicy)
