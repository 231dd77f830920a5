"""Running statistics of observations and returns: exact, part of the weights or of the checkpoint, frozen while acting."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from rollouts import DISCRETE, IMAGE, random_rollout
from test_ppo_update import make_ppo

from rl_training.algorithms.on_policy import flat
from rl_training.algorithms.return_scale import ReturnScale
from rl_training.errors import SpaceError
from rl_training.models import ObservationNormalizer, RunningMoments


def test_running_moments_are_those_of_all_that_was_seen() -> None:
    rng = np.random.default_rng(0)
    data = rng.normal(1000.0, 0.1, (100, 3))  # far from zero, where the naive sum of squares fails
    moments = RunningMoments((3,))
    for part in np.array_split(data, [1, 10, 50]):
        moments.update(part)
    np.testing.assert_allclose(moments.mean, data.mean(0))
    np.testing.assert_allclose(moments.std, data.std(0), rtol=1e-6)


def test_observation_statistics_travel_with_the_weights_and_reach_the_export() -> None:
    algorithm = make_ppo(normalize_observations=True)
    rollout = random_rollout(DISCRETE)
    algorithm.update(rollout)
    state = algorithm.policy.state_dict()
    obs = flat(rollout.obs)
    np.testing.assert_allclose(state["encoder.normalizer.mean"].numpy(), obs.astype(np.float64).mean(0))
    other = make_ppo(normalize_observations=True).policy
    other.load_state_dict(state)
    with torch.no_grad():
        found, expected = (policy.export_module()(torch.from_numpy(obs))[1] for policy in (algorithm.policy, other))
    assert torch.equal(found, expected)
    assert other.act(obs, ()).action.tolist() == algorithm.policy.act(obs, ()).action.tolist()


def test_normalised_observations_have_mean_0_and_deviation_1_and_are_clipped() -> None:
    normalizer = ObservationNormalizer(2)
    data = np.random.default_rng(0).normal([5.0, -3.0], [2.0, 0.01], (1000, 2)).astype(np.float32)
    assert torch.equal(normalizer(torch.ones(1, 2)), torch.ones(1, 2))  # nothing seen: left as it is
    normalizer.update(data)
    x = normalizer(torch.from_numpy(data))
    torch.testing.assert_close(x.mean(0), torch.zeros(2), atol=1e-3, rtol=0.0)
    torch.testing.assert_close(x.std(0), torch.ones(2), atol=1e-2, rtol=0.0)
    assert normalizer(torch.tensor([[1e6, -1e6]])).tolist() == [[10.0, -10.0]]
    np.testing.assert_array_equal(normalizer.numpy_forward()(data), x.numpy())


def test_acting_and_evaluating_leave_the_statistics_alone() -> None:
    policy = make_ppo(normalize_observations=True).policy
    before = policy.state_dict()
    policy.act(np.full((4, 4), 9.0, np.float32), (), rng=np.random.default_rng(0))
    assert all(torch.equal(before[name], value) for name, value in policy.state_dict().items())


def test_rewards_are_scaled_by_the_deviation_of_the_discounted_return() -> None:
    scale = ReturnScale(gamma=0.5)
    reward = np.array([[1.0, 2.0], [1.0, 2.0], [1.0, 2.0]], np.float32)
    ended = np.array([[False, True], [False, False], [False, False]])
    first = scale.scale(reward, ended)
    returns = [1.0, 2.0, 1.5, 2.0, 1.75, 3.0]
    np.testing.assert_allclose(first, reward / np.std(returns), rtol=1e-6)
    again = ReturnScale(gamma=0.5)
    again.load_state_dict(scale.state_dict())
    second = scale.scale(reward, ended)
    np.testing.assert_array_equal(second, again.scale(reward, ended))
    # the second rollout continues from the returns of the open episodes
    returns += [1.875, 3.5, 1.9375, 2.0, 1.96875, 3.0]
    np.testing.assert_allclose(again.scale(reward * 0, ended) + 1, np.ones_like(reward))
    np.testing.assert_allclose(second, reward / np.std(returns), rtol=1e-6)


def test_images_are_not_normalised_twice() -> None:
    with pytest.raises(SpaceError, match="normalize_observations: false"):
        make_ppo(IMAGE, normalize_observations=True)
