"""What is known of the possible returns: ``initial_value``, which untrained networks predict, and ``value_range``."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from conftest import ALGORITHMS, config_fields, tiny_config
from numpy.typing import NDArray

from rl_training.algorithms.c51 import C51Config
from rl_training.algorithms.epsilon_greedy import EpsilonPolicy
from rl_training.algorithms.r2d2 import rescale
from rl_training.errors import ConfigError
from rl_training.runtime.learner import OffPolicyLearner
from rl_training.runtime.trainer import Trainer

VALUE_LEARNERS = [name for name in ALGORITHMS if "initial_value" in config_fields(name)]
OPTIONS = [
    (name, option)
    for name in VALUE_LEARNERS
    for option in (
        {},
        {"dueling": True},
        {"noisy": True},
        {"layer_norm": True},
        {"init": "orthogonal"},
        {"rescale_values": True},
    )
    if option.keys() <= config_fields(name)
]
SUPPORT = {"v_min": 0.0, "v_max": 50.0}


def initial_q_values(algo: str, **settings: Any) -> NDArray[np.float64]:
    """(observation, action) Q-values of a new agent, as it acts on them, at the start of 16 episodes."""
    support = SUPPORT if "v_min" in config_fields(algo) else {}
    trainer = Trainer(tiny_config(algo, num_envs=16, algo_kwargs={**support, **settings}))
    policy = trainer.policy
    assert isinstance(policy, EpsilonPolicy)
    policy.passes_q_values = True
    obs = np.random.default_rng(0).normal(size=(16, *policy.spec.observation.shape)).astype(np.float32)
    output = policy.act(obs, policy.initial_carry(16), rng=np.random.default_rng(1))
    trainer.close()
    return np.asarray(output.extras["q_values"], np.float64)


@pytest.mark.parametrize(("algo", "option"), OPTIONS, ids=str)
def test_every_value_learner_starts_from_the_value(algo: str, option: dict[str, Any]) -> None:
    plain, raised = (initial_q_values(algo, **option, **given) for given in ({}, {"initial_value": 40.0}))
    if algo == "c51":  # the initial distribution is a peak at the value
        assert np.abs(raised - 40.0).max() < 1.5
        assert np.abs(plain - 25.0).max() < 5.0
    else:
        added = rescale(torch.tensor(40.0)).item() if "rescale_values" in option else 40.0
        np.testing.assert_allclose(raised, plain + added, atol=1e-4)
        assert np.abs(plain).max() < 5.0


def test_the_peak_of_c51_has_the_shape_that_is_promised() -> None:
    outputs = C51Config(num_atoms=5, v_min=-2.0, v_max=2.0, initial_value=1.0).initial_outputs()
    assert outputs is not None
    assert outputs.tolist() == [-3.0, -2.0, -1.0, 0.0, -1.0]


@pytest.mark.parametrize("value", [-1.0, 50.5])
def test_a_value_outside_of_the_support_is_refused(value: float) -> None:
    with pytest.raises(
        ConfigError, match=f"initial_value \\({value}\\) must be between v_min \\(0.0\\) and v_max \\(50.0\\)"
    ):
        tiny_config("c51", algo_kwargs={**SUPPORT, "initial_value": value})


BOUNDED = [name for name in VALUE_LEARNERS if "value_range" in config_fields(name)]
CLIPPED: list[tuple[str, dict[str, Any]]] = [(name, {}) for name in BOUNDED] + [
    ("r2d2", {"rescale_values": True}),
    ("drqn", {"trace_lambda": 0.9}),
    ("dqn", {"double": True}),
]


@pytest.mark.parametrize(("algo", "option"), CLIPPED, ids=str)
def test_values_are_clipped_before_they_are_discounted(algo: str, option: dict[str, Any]) -> None:
    """A network that predicts 200 everywhere, where at most 100 is possible: the target is r + discount * 100."""
    config = tiny_config(algo, algo_kwargs={"initial_value": 100.0, "value_range": [0.0, 100.0], "n_step": 1, **option})
    beyond = config.algo_kwargs.model_copy(update={"initial_value": 200.0})  # what training could lead to
    trainer = Trainer(config.model_copy(update={"algo_kwargs": beyond}))
    trainer.train(60)
    trainer.close()
    learner = trainer.learner
    assert isinstance(learner, OffPolicyLearner)
    batch = learner.replay.sample(60)
    reward, discount = batch.reward.numpy(), batch.discount.numpy()
    target = reward + discount * 100.0
    if "trace_lambda" in option:  # a target that goes on replaces the value after the next step, which is 100 as well
        for t in range(len(target) - 2, -1, -1):
            target[t] += 0.9 * discount[t] * (target[t + 1] - 100.0) * (batch.mask[t + 1].numpy() > 0)
    if "rescale_values" in option:
        target = rescale(torch.from_numpy(target)).numpy()
    weights = np.ones_like(target) if not hasattr(batch, "mask") else batch.mask.numpy()
    found = learner.algorithm.update(batch).metrics["target_mean"]
    np.testing.assert_allclose(float(found), (target * weights).sum() / weights.sum(), rtol=1e-4)


def test_c51_has_no_range_besides_its_support() -> None:
    assert set(VALUE_LEARNERS) - set(BOUNDED) == {"c51"}


def test_an_empty_range_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"value_range: the smallest return \(5.0\) must be below the largest \(5.0\)"):
        tiny_config("dqn", algo_kwargs={"value_range": [5.0, 5.0]})


@pytest.mark.parametrize("algo", BOUNDED)
@pytest.mark.parametrize("value", [-0.5, 100.5])
def test_an_initial_value_outside_of_the_range_is_refused(algo: str, value: float) -> None:
    message = rf"initial_value \({value}\) must be within value_range \(0.0 to 100.0\).* or widen value_range"
    with pytest.raises(ConfigError, match=message):
        tiny_config(algo, algo_kwargs={"initial_value": value, "value_range": [0.0, 100.0]})


@pytest.mark.parametrize("value", [0.0, 100.0])
def test_an_initial_value_at_the_ends_of_the_range_is_accepted(value: float) -> None:
    config = tiny_config("dqn", algo_kwargs={"initial_value": value, "value_range": [0.0, 100.0]})
    assert config.describe()["algo_kwargs"]["initial_value"] == value
