"""Small parts: random streams, schedules, cadence, evaluation, specs."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from conftest import ALGORITHMS, tiny_config

from rl_training.errors import ConfigError
from rl_training.experiment.registry import get_algorithm
from rl_training.rng import RandomStreams, derive_seed
from rl_training.runtime.cadence import Due
from rl_training.runtime.trainer import Trainer
from rl_training.schedules import LinearSchedule
from rl_training.types import ActionSpec, ObservationSpec, SpaceSpec


def test_streams_are_named_independent_and_restorable() -> None:
    streams = RandomStreams(3)
    first, other = streams["explore"].random(5), streams["replay"].random(5)
    assert not np.array_equal(first, other)
    saved = json.loads(json.dumps(streams.state_dict()))
    expected = streams["explore"].random(5)
    restored = RandomStreams(0)
    restored.load_state_dict(saved)
    assert np.array_equal(restored["explore"].random(5), expected)
    # a stream does not depend on which others are in use
    assert np.array_equal(RandomStreams(3)["replay"].random(5), other)


def test_derived_seeds_depend_on_every_key() -> None:
    seeds = {derive_seed(s, stream, i, k) for s in (0, 1) for stream in ("env", "eval") for i in (0, 1) for k in (0, 1)}
    assert len(seeds) == 16


def test_nothing_draws_from_a_global_generator(algo: str) -> None:
    import random

    import torch

    before = (np.random.get_state()[1].tolist(), random.getstate(), torch.random.get_rng_state())  # type: ignore[index]  # noqa: NPY002
    Trainer(tiny_config(algo)).train()
    after = (np.random.get_state()[1].tolist(), random.getstate(), torch.random.get_rng_state())  # type: ignore[index]  # noqa: NPY002
    assert before[:2] == after[:2]
    assert torch.equal(before[2], after[2])


def test_a_linear_schedule_is_a_line_and_then_constant() -> None:
    schedule = LinearSchedule(1.0, 0.2, 8)
    assert [schedule(step) for step in (0, 4, 8, 9)] == pytest.approx([1.0, 0.6, 0.2, 0.2])
    assert LinearSchedule(1.0, 0.2, 0)(0) == 0.2


def test_a_debt_is_never_stepped_over() -> None:
    due, times = Due(10), []
    for _ in range(20):
        due.add(7)
        times.append(due.settle())
    assert sum(times) == 14
    assert Due(3, owed=10).settle() == 3
    never = Due(0)
    never.add(100)
    assert never.count() == 0


def test_evaluation_counts_the_same_episodes_however_many_environments() -> None:
    results = []
    for num_envs in (1, 4):
        config = tiny_config(
            "dqn",
            env_id="rl_training_test_envs:Counting-v0",
            env_kwargs={"length": 6},
            eval={"num_envs": num_envs, "final_episodes": 1},
        )
        result = Trainer(config).evaluate(7)
        assert result is not None
        results.append((result.returns, result.lengths))
    assert results[0] == results[1] == ([21.0] * 7, [6] * 7)


def test_continuous_actions_are_scaled_and_clipped() -> None:
    spec = ActionSpec("continuous", low=(-2.0, 0.0), high=(2.0, 10.0), raw_shape=(2,))
    scaled = spec.to_env(np.array([[-1.0, -1.0], [0.0, 0.0], [1.0, 5.0]], np.float32))
    assert scaled.tolist() == [[-2.0, 0.0], [0.0, 5.0], [2.0, 10.0]]


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_a_training_entry_takes_its_own_algorithms_only(algo: str, tmp_path: Path) -> None:
    config, right = tiny_config(algo, output_dir=str(tmp_path / "run")), get_algorithm(algo).load_trainer()
    others = {get_algorithm(other).load_trainer() for other in ALGORITHMS} - {right}
    assert len(others) == 7
    for train in others:
        with pytest.raises(ConfigError, match=rf"{train.__name__} does not train {algo}; use {right.__name__}"):
            train(config)
    assert list(tmp_path.iterdir()) == []


def test_multi_discrete_observations_are_blocks_of_one_hot() -> None:
    spec = ObservationSpec("vector", (5,), (2,), one_hot_sizes=(2, 3), one_hot_starts=(0, 7))
    assert spec.encode(np.array([[1, 9], [0, 7]])).tolist() == [[0, 1, 0, 0, 1], [1, 0, 1, 0, 0]]


def test_specs_survive_json() -> None:
    spec = SpaceSpec(ObservationSpec("vector", (5,), (2,), (2, 3), (0, 7)), ActionSpec("discrete", count=3, start=5))
    assert SpaceSpec.from_json(json.loads(json.dumps(spec.to_json()))) == spec
