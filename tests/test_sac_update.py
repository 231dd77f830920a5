"""SAC by worked numbers: the squashed Gaussian, targets, losses, which loss moves which weights, the temperature."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from learning import must_be
from soft_twin import SETTINGS, SoftTwin
from torch import Tensor

from rl_training.algorithms.base import init_generator
from rl_training.algorithms.drq import DrQConfig
from rl_training.algorithms.sac import SAC, SACConfig, sac_actor_loss, sac_target, temperature_loss, twin_critic_loss
from rl_training.models.action_head import scale_to_env
from rl_training.models.continuous import squashed_log_prob, squashed_sample
from rl_training.rng import RandomStreams
from rl_training.runtime.cadence import cpu_threads
from rl_training.types import ActionSpec, ObservationSpec, SpaceSpec, Step, TransitionBatch, Transitions

SPEC = SpaceSpec(ObservationSpec.vector(3), ActionSpec("continuous", low=(-2.0, 0.0), high=(2.0, 10.0), raw_shape=(2,)))


def make_sac(seed: int = 0, **settings: Any) -> SAC:
    config = SACConfig(**{"hidden_sizes": (16, 16), "batch_size": 8, "buffer_size": 100, **settings})
    return SAC(SAC.make_policy(config, SPEC, init_generator(seed)), config, RandomStreams(seed))


def make_batch(rows: int = 8, seed: int = 0) -> TransitionBatch:
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    return TransitionBatch(
        normal(rows, 3), torch.tanh(normal(rows, 2)), normal(rows), normal(rows, 3), torch.full((rows,), 0.9)
    )


# ------------------------------------------------------------------------------------------- the squashed Gaussian


@pytest.mark.parametrize(("mean", "log_std"), [(0.0, 0.0), (0.7, -1.0), (-1.5, 0.5), (0.2, 1.0)])
def test_the_density_integrates_to_one(mean: float, log_std: float) -> None:
    """Over the actions themselves, in cells that get finer towards -1 and 1."""
    u = torch.linspace(-15.0, 15.0, 300_001, dtype=torch.float64)
    width = torch.tanh(u).diff()
    middle = ((u[1:] + u[:-1]) / 2.0).unsqueeze(1)
    log_prob = squashed_log_prob(middle, torch.full_like(middle, mean), torch.full_like(middle, log_std))
    assert float((log_prob.exp() * width).sum()) == pytest.approx(1.0, abs=1e-6)


def test_the_density_is_that_of_a_change_of_variables() -> None:
    """log N(u) - log(1 - tanh(u)^2), by hand at u = 0.5, mean 0.2, std 0.5, in two dimensions with u = 0 in the other."""
    u, mean, log_std = torch.tensor([[0.5, 0.0]]), torch.tensor([[0.2, 0.0]]), torch.tensor([[np.log(0.5), 0.0]]).float()
    first = -0.5 * 0.6**2 - np.log(0.5) - 0.9189385332 - np.log(1.0 - np.tanh(0.5) ** 2)
    second = -0.9189385332
    assert float(squashed_log_prob(u, mean, log_std)) == pytest.approx(first + second, abs=1e-6)


@pytest.mark.parametrize("u", [-20.0, 20.0])
def test_the_density_is_finite_far_out(u: float) -> None:
    """At |u| = 20 the tanh is 1 in float32, where log(1 - tanh^2) is minus infinity; the true value is 2 (log 2 - 20)."""
    point = torch.full((1, 1), u)
    found = squashed_log_prob(point, point, torch.zeros(1, 1))
    assert float(found) == pytest.approx(-0.9189385332 - 2.0 * (np.log(2.0) - 20.0), rel=1e-6)
    mean = torch.full((1, 1), u, requires_grad=True)
    _, log_prob = squashed_sample(mean, torch.zeros(1, 1), torch.zeros(1, 1))
    (gradient,) = torch.autograd.grad(log_prob.sum(), mean)
    assert float(gradient) == pytest.approx(2.0 * np.sign(u), rel=1e-5)


def test_a_sample_has_the_density_it_reports() -> None:
    mean, log_std, noise = torch.tensor([[0.3, -1.0]]), torch.tensor([[-0.5, 0.2]]), torch.tensor([[1.2, -0.7]])
    action, log_prob = squashed_sample(mean, log_std, noise)
    u = mean + log_std.exp() * noise
    torch.testing.assert_close(action, torch.tanh(u))
    torch.testing.assert_close(log_prob, squashed_log_prob(u, mean, log_std))


# --------------------------------------------------------------------------------------------------- worked losses


def test_target_by_hand() -> None:
    """1 + 0.9 (min(4, 3) - 0.5 * 2) = 2.8; a terminated transition keeps its reward only."""
    target = sac_target(
        torch.tensor([1.0, 1.0]),
        torch.tensor([0.9, 0.0]),
        torch.tensor([[4.0, 4.0], [3.0, 3.0]]),
        torch.tensor([2.0, 2.0]),
        torch.tensor(0.5),
    )
    torch.testing.assert_close(target, torch.tensor([2.8, 1.0]))


@pytest.mark.parametrize("config_class", [SACConfig, DrQConfig])
def test_the_description_of_n_step_says_what_is_left_out(config_class: type[SACConfig]) -> None:
    assert "leaves out the entropy of the states between" in str(config_class.model_fields["n_step"].description)


def test_an_n_step_target_has_the_entropy_of_its_last_state_only() -> None:
    """Rewards 1 and 2 on the way from s to s'', through s'. With gamma 0.5 the target is 1 + 0.5 * 2 + 0.25 (Q'' + H''). The
    exact soft value would also have 0.5 H', the entropy at s', which needs the current policy there."""
    algorithm = make_sac(n_step=2, gamma=0.5, batch_size=1, alpha=0.3, learn_alpha=False)
    replay = algorithm.make_replay(1)
    rng = np.random.default_rng(0)
    s = rng.normal(size=(4, 1, 3)).astype(np.float32)
    no = np.zeros(1, np.bool_)
    for t in range(3):
        action = np.zeros((1, 2), np.float32)
        replay.observe(Step(s[t], action, np.array([t + 1.0], np.float32), s[t + 1], no, no, None), ())
    batch = replay.sample(0)
    assert len(replay) >= 1
    first = torch.equal(batch.obs[0], torch.from_numpy(s[0, 0]))
    rewards, last = ((1.0, 2.0), s[2]) if first else ((2.0, 3.0), s[3])
    noise = torch.tensor([[0.4, -1.1]])
    with torch.no_grad():
        target = algorithm.target_values(batch.next_obs, batch.reward, batch.discount, noise)
        action_drawn, log_prob = algorithm.draw(torch.from_numpy(last), noise)
        value = algorithm.target.values(torch.from_numpy(last), action_drawn).min(dim=0).values
    expected = rewards[0] + 0.5 * rewards[1] + 0.25 * (value - 0.3 * log_prob)
    torch.testing.assert_close(target, expected)


def test_losses_by_hand() -> None:
    critic = twin_critic_loss(torch.tensor([[1.0, 2.0], [3.0, 0.0]]), torch.tensor([2.0, 2.0]))
    torch.testing.assert_close(critic.loss, torch.tensor([1.0 + 1.0, 0.0 + 4.0]))
    torch.testing.assert_close(critic.metrics["target_q_mean"], torch.tensor([2.0, 2.0]))
    actor = sac_actor_loss(torch.tensor([2.0, -1.0]), torch.tensor([[1.0, 5.0], [3.0, 4.0]]), torch.tensor(0.5))
    torch.testing.assert_close(actor.loss, torch.tensor([1.0 - 1.0, -0.5 - 4.0]))
    torch.testing.assert_close(actor.metrics["entropy_term"], torch.tensor([-1.0, 0.5]))


def test_the_targets_gradient_goes_nowhere() -> None:
    q, target = torch.zeros(2, 3, requires_grad=True), torch.ones(3, requires_grad=True)
    torch.autograd.backward(twin_critic_loss(q, target).loss.sum())
    assert target.grad is None
    torch.testing.assert_close(q.grad, torch.full((2, 3), -2.0))


def test_temperature_rises_below_the_target_entropy_and_falls_above() -> None:
    """d/d log alpha of -alpha (log pi + H) is -alpha (log pi + H): 0.5 * (3 - 2) for entropy -3 and target -2."""
    for log_prob, expected in ((3.0, -0.5), (1.0, 0.5)):
        log_alpha = torch.tensor(np.log(0.5), requires_grad=True)
        torch.autograd.backward(temperature_loss(log_alpha, torch.tensor([log_prob]), target_entropy=-2.0).sum())
        assert log_alpha.grad is not None
        assert float(log_alpha.grad) == pytest.approx(expected)


# ------------------------------------------------------------------------------------------------- the whole update


def snapshot(algorithm: SAC) -> dict[str, Tensor]:
    return {
        "actor": algorithm.actor_optimizer.parameters.clone(),
        "critic": algorithm.critic_optimizer.parameters.clone(),
        "target": algorithm.target_network.vector.clone(),
        "alpha": algorithm.alpha.clone(),
    }


def changed(algorithm: SAC, before: dict[str, Tensor]) -> set[str]:
    return {name for name, value in snapshot(algorithm).items() if not torch.equal(value, before[name])}


def test_each_loss_moves_only_its_own_weights() -> None:
    algorithm, batch = make_sac(), make_batch()
    network = algorithm.policy.network
    known = algorithm.updater.draw(batch)
    torch.autograd.backward(algorithm.critic_loss(batch, known).loss.sum())
    assert algorithm.critic_optimizer.gradient.abs().sum() > 0
    assert algorithm.actor_optimizer.gradient.abs().sum() == 0
    algorithm.critic_optimizer.gradient.zero_()
    torch.autograd.backward(algorithm.actor_loss(batch, known).loss.sum())
    assert algorithm.actor_optimizer.gradient.abs().sum() > 0
    assert algorithm.critic_optimizer.gradient.abs().sum() == 0
    assert all(parameter.grad is None for parameter in algorithm.target.parameters())
    assert all(parameter.grad is None for parameter in algorithm.frozen_critic.parameters())
    assert algorithm.temperature.log_alpha.grad is not None
    assert algorithm.temperature.log_alpha.grad == 0
    assert {id(p) for p in network.actor.parameters()}.isdisjoint(id(p) for p in network.critic.parameters())


def test_the_frozen_critic_has_the_weights_of_the_critic() -> None:
    algorithm, batch = make_sac(), make_batch()
    for _ in range(3):
        algorithm.update(batch)
        values = algorithm.frozen_critic.values(batch.obs, batch.action)
        torch.testing.assert_close(values, algorithm.policy.network.critic.values(batch.obs, batch.action), rtol=0, atol=0)


def test_an_update_follows_the_paper_step_by_step() -> None:
    algorithm, batch = make_sac(**SETTINGS), make_batch()
    twin = SoftTwin(algorithm)
    for _ in range(4):
        alpha = twin.alpha
        with torch.no_grad():
            next_action, next_log_prob = twin.draw(batch.next_obs)
            next_q = twin.target.values(batch.next_obs, next_action).min(dim=0).values
            y = batch.reward + batch.discount * (next_q - alpha * next_log_prob)
        q1, q2 = twin.network.critic.values(batch.obs, batch.action)
        twin.learn_critic(torch.nn.functional.mse_loss(q1, y) + torch.nn.functional.mse_loss(q2, y))
        action, log_prob = twin.draw(batch.obs)
        twin.learn_actor((alpha * log_prob - twin.network.critic.values(batch.obs, action).min(dim=0).values).mean())
        twin.learn_temperature(-log_prob, -2.0)
        result = algorithm.update(batch)
    twin.assert_equal()
    names = {"critic_loss", "actor_loss", "q_value_mean", "target_q_mean", "entropy_term", "log_prob_mean", "alpha"}
    assert set(result.metrics) == names
    assert algorithm.updates == 4


def test_scaled_rewards_are_the_rewards_times_their_scale() -> None:
    batch = make_batch()
    scaled, plain = make_sac(reward_scale=0.25), make_sac()
    scaled.update(batch)
    plain.update(batch._replace(reward=0.25 * batch.reward))
    assert torch.equal(scaled.critic_optimizer.parameters, plain.critic_optimizer.parameters)


def test_a_fixed_temperature_stays() -> None:
    algorithm = make_sac(learn_alpha=False, alpha=0.2)
    before = snapshot(algorithm)
    algorithm.update(make_batch())
    assert changed(algorithm, before) == {"actor", "critic", "target"}
    assert float(algorithm.alpha) == pytest.approx(0.2)


@pytest.mark.parametrize(("given", "expected"), [(None, -2.0), (-0.5, -0.5)])
def test_target_entropy(given: float | None, expected: float) -> None:
    """Minus the number of dimensions, unless one is given."""
    assert make_sac(target_entropy=given).target_entropy == expected


@must_be(below=0.2)
def error_of_the_entropy_of_sac(seed: int) -> float:
    """Rewards pull the action to 0, against which only the right temperature keeps the entropy where it should be."""
    algorithm = make_sac(seed, learning_rate=1e-2, target_entropy=-1.0, alpha=0.3)
    batch = make_batch(64, seed)._replace(discount=torch.zeros(64))
    batch = batch._replace(reward=-3.0 * batch.action.square().sum(1))
    with cpu_threads(1):
        entropies = [-algorithm.update(batch).metrics["log_prob_mean"] for _ in range(900)]
    return abs(float(np.mean(entropies[-100:])) + 1.0)


@pytest.mark.slow  # fast for discrete SAC, with the same temperature
def test_the_entropy_settles_at_its_target() -> None:
    error_of_the_entropy_of_sac.check()


@pytest.mark.parametrize(("interval", "expected"), [(1, {1, 2, 3, 4}), (2, {2, 4}), (3, {3})])
def test_intervals_of_actor_and_target(interval: int, expected: set[int]) -> None:
    for setting, name in (("actor_update_interval", "actor"), ("target_update_interval", "target")):
        algorithm = make_sac(**{setting: interval})
        moved = set()
        for k in range(1, 5):
            before = snapshot(algorithm)
            algorithm.update(make_batch(seed=k))
            if name in changed(algorithm, before):
                moved.add(k)
        assert moved == expected


# ------------------------------------------------------------------------------------------------------------ acting


def test_warm_up_acts_uniformly_then_by_the_actor() -> None:
    policy = make_sac(learning_starts=50).policy
    obs = np.zeros((4000, 3), np.float32)
    drawn = policy.act(obs, (), rng=np.random.default_rng(0), env_steps=49).action
    assert drawn.shape == (4000, 2)
    assert drawn.dtype == np.float32
    np.testing.assert_allclose(np.quantile(drawn, [0.1, 0.5, 0.9], axis=0), [[-0.8] * 2, [0.0] * 2, [0.8] * 2], atol=0.06)
    acted = policy.act(obs, (), rng=np.random.default_rng(0), env_steps=50).action
    mean, log_std = policy.network.distribution(policy.network(torch.from_numpy(obs[:1])))
    expected = np.tanh(mean.detach().numpy() + log_std.exp().detach().numpy() * [[-1.2816], [0.0], [1.2816]])
    np.testing.assert_allclose(np.quantile(acted, [0.1, 0.5, 0.9], axis=0), expected, atol=0.06)
    greedy = policy.act(obs[:1], ()).action
    np.testing.assert_allclose(greedy, torch.tanh(mean).detach().numpy(), atol=1e-6)


def test_scaled_actions_stay_within_any_bounds() -> None:
    """In float32 low + (high - low) can be above high, by the last bit; -3 and 0.2 are such bounds."""
    draws = np.random.default_rng(0).uniform(-10.0, 10.0, (2, 20_000)).astype(np.float32)
    low, high = np.sort(np.concatenate([draws, [[-3.0], [0.2]]], axis=1, dtype=np.float32), axis=0)
    assert (low + (high - low) > high).sum() > 1000
    spec = ActionSpec("continuous", low=tuple(low.tolist()), high=tuple(high.tolist()), raw_shape=low.shape)
    space = spaces.Box(low, high)
    for x in (-1.0, 1.0, -3.0, 3.0):
        action = np.full((1, len(low)), x, np.float32)
        scaled = spec.to_env(action)
        assert space.contains(scaled[0])
        np.testing.assert_allclose(scaled[0], low if x < 0 else high, rtol=1e-5, atol=1e-5)
        assert np.array_equal(scale_to_env(torch.from_numpy(action), spec).numpy(), scaled)


def test_of_symmetric_bounds_scaling_is_the_same_to_the_bit() -> None:
    rng = np.random.default_rng(0)
    high = rng.uniform(0.01, 10.0, 500).astype(np.float32)
    action = np.concatenate([rng.uniform(-1.0, 1.0, (50, 500)), np.ones((1, 500))]).astype(np.float32)
    spec = ActionSpec("continuous", low=tuple((-high).tolist()), high=tuple(high.tolist()), raw_shape=(500,))
    assert np.array_equal(spec.to_env(action), -high + (action + 1.0) * 0.5 * (high + high))


def test_batches_are_drawn_into_the_same_memory_and_no_metric_lies_there() -> None:
    algorithm = make_sac()
    buffer = algorithm.make_replay(1).buffer
    batch = make_batch(50)
    columns = (column.numpy() for column in batch[:5])
    buffer.add(Transitions(*columns))
    first = buffer.sample(8)
    result = algorithm.update(first)
    before = {name: value.clone() for name, value in result.samples.items()}
    second = buffer.sample(8)
    assert second.obs.data_ptr() == first.obs.data_ptr()
    assert all(torch.equal(value, before[name]) for name, value in result.samples.items())


def test_actions_are_scaled_to_the_bounds() -> None:
    action = np.array([[-1.0, -1.0], [0.0, 0.0], [1.0, 1.0], [0.5, -0.5]], np.float32)
    env = SPEC.action.to_env(action)
    np.testing.assert_allclose(env, [[-2.0, 0.0], [0.0, 5.0], [2.0, 10.0], [1.0, 2.5]])
    assert ActionSpec("discrete", count=3, start=5).to_env(np.array([0, 2])).tolist() == [5, 7]
    policy = make_sac().policy
    obs = torch.randn(5, 3, generator=torch.Generator().manual_seed(0))
    exported, mean = policy.export_module()(obs)
    np.testing.assert_allclose(exported.detach().numpy(), SPEC.action.to_env(mean.detach().numpy()), rtol=1e-6)
    np.testing.assert_allclose(mean.detach().numpy(), policy.act(obs.numpy(), ()).action, atol=1e-6)
