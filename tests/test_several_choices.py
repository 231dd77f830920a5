"""Actions of several choices, actions without bounds, and their masks."""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import tiny_config
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st
from test_any_space import described

from rl_training.api import load_agent
from rl_training.envs.checks import make_receiver
from rl_training.envs.factory import RegisteredEnv
from rl_training.envs.pool import SeededEnvPool
from rl_training.experiment.run import Run
from rl_training.models.action_head import FORBIDDEN, GaussianHead, MultiCategoricalHead, index_to_env
from rl_training.models.observation import describe_action
from rl_training.runtime.sessions import resume_training
from rl_training.runtime.trainer import Trainer
from rl_training.types import ActionSpec, ObservationSpec, SpaceSpec

CHOICES = spaces.MultiDiscrete(np.array([[2, 3], [1, 4]]), start=np.array([[0, 1], [5, -2]]))


@pytest.mark.parametrize(
    "space",
    [
        CHOICES,
        spaces.MultiBinary((2, 2)),
        spaces.Box(-1, 2, (2,), np.int32),
        spaces.Box(0, 3, (1, 2), np.uint8),
    ],
)
def test_every_combination_of_choices_has_its_index(space: spaces.Space[Any]) -> None:
    spec = described(spaces.Discrete(2), space).action
    every = np.array(list(itertools.product(*(range(size) for size in spec.sizes))))
    sent = spec.to_env(every)
    assert all(space.contains(one) for one in sent)
    assert len(np.unique(sent.reshape(len(sent), -1), axis=0)) == len(every)
    joint = spec.joint
    indices = np.arange(math.prod(spec.sizes))
    np.testing.assert_array_equal(joint.to_env(indices), sent)
    np.testing.assert_array_equal(index_to_env(torch.from_numpy(indices), joint).numpy(), sent)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(1, 3), min_size=1, max_size=3), st.integers(0, 2**16))
def test_masks_of_choices_are_masks_of_their_product(sizes: list[int], seed: int) -> None:
    spec = described(spaces.Discrete(2), spaces.MultiDiscrete(sizes)).action
    allowed = [np.random.default_rng([seed, k]).random(size) < 0.6 for k, size in enumerate(sizes)]
    row = np.concatenate(allowed)
    expected = [all(part[c] for part, c in zip(allowed, choice, strict=True)) for choice in np.ndindex(*sizes)]
    assert spec.joint.mask_of(row).tolist() == expected
    assert spec.mask_of(row) is row


def test_the_head_of_several_choices_is_a_product_of_categoricals() -> None:
    spec = described(spaces.Discrete(2), CHOICES).action
    head, rng = MultiCategoricalHead(spec), np.random.default_rng(0)
    output = torch.randn(200, spec.count, generator=torch.Generator().manual_seed(0))
    action = torch.from_numpy(head.sample(output.numpy(), rng))
    log_prob, entropy = head.log_prob_and_entropy(output, action)
    parts: list[Any] = [
        torch.distributions.Categorical(logits=logits) for logits in torch.split(output, list(spec.sizes), dim=1)
    ]
    torch.testing.assert_close(log_prob, sum(part.log_prob(action[:, k]) for k, part in enumerate(parts)))
    torch.testing.assert_close(entropy, sum(part.entropy() for part in parts))
    mode = head.mode(output.numpy())
    np.testing.assert_array_equal(mode, np.stack([part.probs.argmax(1).numpy() for part in parts], axis=1))
    np.testing.assert_array_equal(head.env_mode(output).numpy(), spec.to_env(mode))
    masked = np.where(np.arange(spec.count) == 0, FORBIDDEN, output.numpy())
    assert (head.sample(masked, rng)[:, 0] == 1).all()
    draws = head.sample(np.tile(output.numpy()[:1], (20_000, 1)), rng)
    for k, part in enumerate(parts):
        share = np.bincount(draws[:, k], minlength=spec.sizes[k]) / len(draws)
        np.testing.assert_allclose(share, part.probs[0].numpy(), atol=0.02)


def test_numbers_without_bounds_are_passed_on_as_they_are() -> None:
    low, high = np.array([-np.inf, -1.0, 0.0, -np.inf]), np.array([np.inf, 3.0, np.inf, np.inf])
    space = spaces.Box(low.astype(np.float32), high.astype(np.float32))
    spec = described(spaces.Discrete(2), space).action
    assert spec.kind == "unbounded"
    action = np.array([[50.0, 0.5, -2.0, -70.0], [0.25, 9.0, 2.0, 0.0]], np.float32)
    expected = np.array([[50.0, 2.0, 0.0, -70.0], [0.25, 3.0, 2.0, 0.0]], np.float32)
    np.testing.assert_array_equal(spec.to_env(action), expected)
    exported = GaussianHead(spec, 0.0).env_mode(torch.from_numpy(action))
    np.testing.assert_array_equal(exported.numpy(), expected)
    assert all(space.contains(one) for one in spec.to_env(action))


@pytest.mark.parametrize(
    ("low", "words"),
    [(-np.inf, "2 numbers, 2 of them without bounds: neither squashed nor clipped"),
     (0.0, "2 numbers, 2 of them with one bound or none: not squashed, clipped at a bound")],
)  # fmt: skip
def test_the_words_for_numbers_without_bounds(low: float, words: str) -> None:
    space = spaces.Box(np.array([-np.inf, low], np.float32), np.full(2, np.inf, np.float32))
    assert describe_action(described(spaces.Discrete(2), space).action) == words


def test_a_masked_environment_with_several_choices() -> None:
    """As one mask of all values, or as one for each choice; the product of choices has the product of masks."""
    from rl_training.experiment.registry import fitted, get_algorithm

    kwargs = {"observation": "vector", "action": "multi", "masked": True, "length": 20}
    for algo, width in (("ppo", 5), ("dqn", 6)):
        pool = SeededEnvPool(
            RegisteredEnv("rl_training_test_envs:Spaces-v0", kwargs),
            fit=lambda spec, algo=algo: fitted(get_algorithm(algo), spec, "Spaces-v0"),  # type: ignore[misc]
        )
        pool.reset()
        assert pool.action_mask is not None
        assert pool.action_mask.shape == (1, width)
        assert pool.spec.action.masked
        rng = np.random.default_rng(0)
        for _ in range(15):  # the environment asserts that no forbidden value is chosen
            allowed = pool.action_mask[0]
            choices = np.split(allowed, [2]) if algo == "ppo" else [allowed]
            drawn = [int(rng.choice(np.flatnonzero(part))) for part in choices]
            pool.step(np.array([drawn if algo == "ppo" else drawn[0]]))


def test_a_mask_may_have_one_array_for_each_choice() -> None:
    spec = described(spaces.Discrete(2), spaces.MultiDiscrete([2, 3]))
    action = ActionSpec(**{**vars(spec.action), "masked": True})
    store = make_receiver(SpaceSpec(spec.observation, action)).store
    out, masks = np.zeros((1, 2), np.float32), np.zeros((1, 5), np.bool_)
    assert store(out, masks, 0, (0, (np.array([1, 0]), np.array([0, 0, 0])))) is None
    assert masks.tolist() == [[True, False, True, True, True]]  # a choice without any allowed value is not restricted
    problem = store(out, masks, 0, (0, np.ones(4)))
    assert problem is not None
    assert "(4,)" in problem
    assert "5 values of the 2 choices" in problem


def test_the_mask_of_a_dict_observation_is_stored() -> None:
    spec = described(spaces.Dict({"a": spaces.Discrete(2), "b": spaces.Box(-1.0, 1.0, (2,), np.float32)}), spaces.Discrete(3))
    action = ActionSpec(**{**vars(spec.action), "masked": True})
    store = make_receiver(SpaceSpec(spec.observation, action)).store
    out, masks = np.zeros((1, 4), np.float32), np.zeros((1, 3), np.bool_)
    observed = {"a": 1, "b": np.array([0.5, -0.5], np.float32)}
    assert store(out, masks, 0, (observed, [0, 1, 1])) is None
    assert out.tolist() == [[0.0, 1.0, 0.5, -0.5]]
    assert masks.tolist() == [[False, True, True]]
    problem = store(out, masks, 0, (observed, [1, 1]))
    assert problem is not None
    assert "(2,)" in problem


def test_a_run_keeps_what_its_observations_were_taken_for(tmp_path: Path) -> None:
    """In release 0.2.0 a gray image without a channel axis was a vector: such a run is resumed and evaluated as one."""
    config = tiny_config(
        "dqn",
        env_id="rl_training_test_envs:OddSpaces-v0",
        env_kwargs={"observation": "gray"},
        total_timesteps=60,
        output_dir=str(tmp_path / "run"),
    )
    trainer = Trainer(config, recorded=ObservationSpec.vector(36, 36))
    trainer.run = Run.create(config, "test")
    trainer.train(40)
    trainer.close()
    resumed = resume_training(tmp_path / "run", warn=print)
    assert resumed.policy.spec.observation == ObservationSpec.vector(36, 36)
    resumed.train()
    resumed.close()
    agent = load_agent(tmp_path / "run")
    assert agent.evaluate(2).returns
    agent.learn(70)
    fresh = Trainer(
        tiny_config("dqn", env_id=config.env_id, env_kwargs=config.env_kwargs, algo_kwargs={"cnn_layers": [[4, 8, 4]]})
    )
    assert fresh.policy.spec.observation.kind == "image"
