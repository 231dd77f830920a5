"""Small parts: random streams, schedules, cadence, evaluation, specs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from conftest import ALGORITHMS, tiny_config

from rl_training.algorithms.drq import DrQ
from rl_training.algorithms.drqn import DRQN
from rl_training.algorithms.drqv2 import DrQv2
from rl_training.algorithms.ppo import PPO
from rl_training.algorithms.r2d2 import R2D2
from rl_training.algorithms.recurrent_ppo import RecurrentPPO
from rl_training.algorithms.sac import SAC
from rl_training.algorithms.value import ValueAlgorithm
from rl_training.errors import ConfigError
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.registry import get_algorithm
from rl_training.rng import RandomStreams, derive_seed
from rl_training.runtime.cadence import Due
from rl_training.runtime.dqn_trainer import train_dqn
from rl_training.runtime.drq_trainer import train_drq
from rl_training.runtime.drqn_trainer import train_drqn
from rl_training.runtime.drqv2_trainer import train_drqv2
from rl_training.runtime.evaluation import Extent
from rl_training.runtime.ppo_trainer import train_ppo
from rl_training.runtime.r2d2_trainer import train_r2d2
from rl_training.runtime.recurrent_ppo_trainer import train_recurrent_ppo
from rl_training.runtime.sac_trainer import train_sac
from rl_training.runtime.trainer import Trainer, TrainResult
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
        result = Trainer(config).evaluate(Extent(7))
        assert result is not None
        results.append((result.returns, result.lengths))
    assert results[0] == results[1] == ([21.0] * 7, [6] * 7)


def test_continuous_actions_are_scaled_and_clipped() -> None:
    spec = ActionSpec("continuous", low=(-2.0, 0.0), high=(2.0, 10.0), raw_shape=(2,))
    scaled = spec.to_env(np.array([[-1.0, -1.0], [0.0, 0.0], [1.0, 5.0]], np.float32))
    assert scaled.tolist() == [[-2.0, 0.0], [0.0, 5.0], [2.0, 10.0]]


#: the training functions that are kept under their names, and the algorithms that each of them trains
ENTRIES: dict[Callable[[TrainConfig], TrainResult], type] = {
    train_dqn: ValueAlgorithm,
    train_drqn: DRQN,
    train_r2d2: R2D2,
    train_sac: SAC,
    train_drq: DrQ,
    train_drqv2: DrQv2,
    train_ppo: PPO,
    train_recurrent_ppo: RecurrentPPO,
}


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_a_training_entry_takes_its_own_algorithms_only(algo: str, tmp_path: Path) -> None:
    config = tiny_config(algo, output_dir=str(tmp_path / "run"))
    for train, family in ENTRIES.items():
        if not issubclass(get_algorithm(algo), family):
            with pytest.raises(ConfigError, match=rf"{train.__name__} does not train {algo}; use .*sessions.train"):
                train(config)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("train", ENTRIES, ids=lambda train: train.__name__)
def test_an_entry_trains_its_own_algorithm(train: Callable[[TrainConfig], TrainResult], tmp_path: Path) -> None:
    algo = train.__name__.removeprefix("train_")
    assert train(tiny_config(algo, total_timesteps=60, output_dir=str(tmp_path / "run"))).env_steps == 60


def test_multi_discrete_observations_are_blocks_of_one_hot() -> None:
    spec = ObservationSpec.one_hot((2, 3), (0, 7), raw_shape=(2,))
    assert spec.encode(np.array([[1, 9], [0, 7]])).tolist() == [[0, 1, 0, 0, 1], [1, 0, 1, 0, 0]]


def test_specs_survive_json() -> None:
    spec = SpaceSpec(ObservationSpec.one_hot((2, 3), (0, 7), (2,)), ActionSpec("discrete", count=3, start=5))
    assert SpaceSpec.from_json(json.loads(json.dumps(spec.to_json()))) == spec
