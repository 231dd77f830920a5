"""What prepares observations and rewards: running statistics, exact, saved, frozen while acting, and fixed factors."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import numpy as np
import pytest
import torch
from conftest import OFF_POLICY, family, settings_of, tiny_config
from rollouts import DISCRETE, IMAGE, random_rollout
from test_ppo_update import make_ppo

from rl_training.algorithms.on_policy import flat
from rl_training.algorithms.return_scale import ReturnScale
from rl_training.algorithms.value import QLearning
from rl_training.errors import RLTrainingError, SpaceError
from rl_training.experiment.registry import algorithms, get_algorithm
from rl_training.models import ObservationNormalizer, RunningMoments
from rl_training.models.continuous import ContinuousActorCritic
from rl_training.models.normalization import copied
from rl_training.models.observation import make_preparation
from rl_training.models.value_network import AtomNetwork
from rl_training.runtime.trainer import Trainer
from rl_training.specs import ObservationLeaf, ObservationSpec


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


@pytest.mark.parametrize("algo", [name for name in algorithms() if "vector" in get_algorithm(name).observations])
def test_every_algorithm_on_vectors_can_multiply_them_by_fixed_numbers(algo: str) -> None:
    """Acting and learning: a policy with factors on raw observations is one without on observations multiplied before."""
    size = 4 if "discrete" in get_algorithm(algo).actions else 3  # CartPole and Pendulum
    factors = tuple(float(2**k) for k in range(size))  # powers of two, which multiply exactly
    inside: dict[str, Any] = {"algo_kwargs": {"observation_scale": factors}}
    outside: dict[str, Any] = {"wrappers": [{"name": "scale_observation", "factors": list(factors)}]}
    scaled, plain = (_trained(algo, **values) for values in (inside, outside))
    for (name, value), (other, expected) in zip(scaled.items(), plain.items(), strict=True):
        assert name.replace(".mlp.", ".") == other.replace(".mlp.", ".")  # a module between has a name of its own
        assert torch.equal(value, expected), name


def _trained(algo: str, **values: Any) -> dict[str, torch.Tensor]:
    with closing(Trainer(tiny_config(algo, num_envs=2, **values))) as trainer:
        trainer.train(120)
        return {name: value for name, value in trainer.policy.state_dict().items() if "normalizer" not in name}


def test_a_loaded_policy_has_its_factors() -> None:
    policy, other = (make_ppo(observation_scale=factors).policy for factors in ((2.0, 2.0, 20.0, 2.0), (1.0, 1.0, 1.0, 1.0)))
    obs = torch.from_numpy(np.random.default_rng(0).normal(size=(9, 4)).astype(np.float32))
    networks: list[Any] = [policy.network, other.network]
    before = [network.action_output(obs).detach() for network in networks]
    other.load_state_dict(policy.state_dict())
    assert not torch.equal(*before)
    assert torch.equal(*(network.action_output(obs) for network in networks))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"observation_scale": [1.0, 2.0]}, "observation_scale has 2 numbers, but an observation has 4; give one for each"),
        (
            {"observation_scale": [1.0] * 4, "normalize_observations": True},
            "both scale the inputs: set observation_scale to null or normalize_observations to false",
        ),
        ({"observation_scale": [1.0, 0.0, 1.0, 1.0]}, "observation_scale.1"),
        ({"observation_scale": [1.0, 1e300, 1.0, 1.0]}, "beyond what single precision can represent"),
        ({"observation_scale": [1.0, 1e-60, 1.0, 1.0]}, "beyond what single precision can represent"),
    ],
)
def test_factors_that_make_no_sense_are_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(RLTrainingError, match=words):
        Trainer(tiny_config("ppo", algo_kwargs=settings))


def test_the_entries_of_a_dict_have_factors_in_order() -> None:
    leaves = (
        ObservationLeaf("vector", (2,), (2,), path=("arm",)),
        ObservationLeaf("one_hot", (3,), (), sizes=(3,), starts=(0,), path=("mode",)),
    )
    spec = ObservationSpec(leaves)
    with pytest.raises(SpaceError, match=r"observation_scale has 4 numbers, but an observation has 5 \(arm 2, mode 3\)"):
        make_preparation(spec, False, [1.0] * 4)
    scale = make_preparation(spec, False, [1.0, 2.0, 3.0, 4.0, 5.0])
    assert scale is not None
    assert scale(torch.ones(1, 5)).tolist() == [[1.0, 2.0, 3.0, 4.0, 5.0]]


def test_a_copy_of_a_network_scales_with_the_same_tensor() -> None:
    network: Any = make_ppo(observation_scale=(2.0, 2.0, 20.0, 2.0)).policy.network
    other = copied(network)
    assert other.encoder.normalizer.factors is network.encoder.normalizer.factors
    assert not any(one is two for one, two in zip(network.parameters(), other.parameters(), strict=True))


def test_images_have_no_factors() -> None:
    with pytest.raises(SpaceError, match="observation_scale is for observations without images"):
        make_ppo(IMAGE, observation_scale=(1.0,))


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


def off_policy_trainer(algo: str, **values: Any) -> Trainer:
    settings = settings_of(algo, {"normalize_observations": True, "normalize_rewards": True, "n_step": 2})
    return Trainer(tiny_config(algo, num_envs=2, algo_kwargs=settings, **values))


VECTORS = [name for name in OFF_POLICY if "vector" in get_algorithm(name).observations]


@pytest.mark.parametrize("algo", VECTORS)
def test_replay_learns_from_observations_standardised_by_all_steps_so_far(algo: str) -> None:
    trainer = off_policy_trainer(algo)
    seen: list[Any] = []
    add = trainer.learner.add

    def watched(collected: Any) -> None:
        seen.append(collected.step.obs.copy())
        add(collected)

    trainer.learner.add = watched  # type: ignore[method-assign]
    trainer.train(120)
    trainer.close()
    (normalizer,) = (module for module in trainer.policy.network.modules() if isinstance(module, ObservationNormalizer))
    obs = np.concatenate(seen)
    assert float(normalizer.count) == len(obs) == 120
    np.testing.assert_allclose(normalizer.mean, obs.mean(0, np.float64), rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(1.0 / normalizer.scale, np.sqrt(obs.var(0, dtype=np.float64) + 1e-8), rtol=1e-5)
    # acting, on numpy where it can, sees them through the same function
    network: Any = trainer.policy.network
    if isinstance(network, ContinuousActorCritic):
        sampled = torch.from_numpy(obs[:9])
        torch.testing.assert_close(network.prepare(sampled), normalizer(sampled))
        expected = network(torch.from_numpy(obs[:9])).detach().numpy()
        np.testing.assert_allclose(network.numpy_forward()(obs[:9]), expected, rtol=1e-4, atol=1e-5)
    elif isinstance(network, AtomNetwork):
        expected = network.eval().q_values(torch.from_numpy(obs[:9])).detach().numpy()
        np.testing.assert_allclose(network.q_function()(obs[:9]), expected, rtol=1e-4, atol=1e-5)
        assert network.trunk.has_numpy()


@pytest.mark.parametrize("algo", family(QLearning))
def test_a_target_network_has_its_own_weights_and_the_same_statistics(algo: str) -> None:
    trainer = off_policy_trainer(algo)
    trainer.train(60)
    trainer.close()
    algorithm: Any = trainer.algorithm
    pairs = zip(algorithm.policy.network.named_buffers(), algorithm.target.buffers(), strict=True)
    shared = [(name, online is target) for (name, online), target in pairs]
    assert all(same == ("normalizer" in name) for name, same in shared)
    assert any(same for _, same in shared)
    online, target = algorithm.policy.network.parameters(), algorithm.target.parameters()
    assert all(one.data_ptr() != other.data_ptr() for one, other in zip(online, target, strict=True))


@pytest.mark.parametrize("algo", OFF_POLICY)
def test_sampled_rewards_are_divided_by_the_deviation_of_the_return(algo: str) -> None:
    trainer = off_policy_trainer(algo)
    trainer.train(60)
    trainer.close()
    learner: Any = trainer.learner
    algorithm = learner.algorithm
    batch = learner.replay.sample(60)
    std = float(algorithm.return_scale.state_dict()["moments"]["squares"] / 60 + 1e-8) ** 0.5
    limit = 10.0 * getattr(algorithm.config, "n_step", 1)
    expected = (batch.reward / std).clamp(-limit, limit)
    torch.testing.assert_close(algorithm.inputs(batch).reward, expected)
    assert (expected != batch.reward).any()


def test_sampled_rewards_by_hand() -> None:
    scale = ReturnScale(gamma=0.5)
    scale.observe(
        np.array([[1.0, 2.0], [1.0, 2.0], [1.0, 2.0]], np.float32), np.array([[False, True], [False] * 2, [False] * 2])
    )
    std = float(np.std([1.0, 2.0, 1.5, 2.0, 1.75, 3.0]))
    found = scale.scale_batch(torch.tensor([1.0, -2.0, 1000.0]), n_step=3)
    torch.testing.assert_close(found, torch.tensor([1.0 / std, -2.0 / std, 30.0]))
