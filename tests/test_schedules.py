"""Schedules by worked numbers, and in the settings of every algorithm."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from conftest import ALGORITHMS, config_fields, tiny_config, tiny_values

from rl_training.algorithms.config import AlgorithmConfig, ScheduleConfig
from rl_training.errors import ConfigError
from rl_training.experiment.config import TrainConfig, resolve_config
from rl_training.experiment.plain_data import parse_yaml
from rl_training.runtime.trainer import Trainer
from rl_training.schedules import PiecewiseSchedule

COSINE = "{kind: cosine, from: 3e-4, to: 1e-5, steps: 1e5}"


def schedule_of(text: str) -> Any:
    return AlgorithmConfig(learning_rate=parse_yaml(text, "test")).learning_rate_schedule()


def test_a_cosine_by_hand() -> None:
    schedule = schedule_of(COSINE)
    assert schedule(0) == 3e-4
    assert schedule(50_000) == pytest.approx((3e-4 + 1e-5) / 2)
    # a quarter of the way, (1 - cos(45 degrees)) / 2 of the distance
    assert schedule(25_000) == pytest.approx(3e-4 - 2.9e-4 * (1 - math.sqrt(0.5)) / 2)
    assert schedule(100_000) == schedule(10**9) == 1e-5


def test_a_line_and_a_constant_by_hand() -> None:
    line = schedule_of("{kind: linear, from: 1.0, to: 0.2, steps: 8}")
    assert [line(step) for step in (0, 2, 4, 8, 9)] == pytest.approx([1.0, 0.8, 0.6, 0.2, 0.2])
    constant = schedule_of("{kind: constant, from: 0.3}")
    assert constant(0) == constant(10**6) == 0.3


def test_pieces_by_hand() -> None:
    pieces = schedule_of("{kind: piecewise, points: [[10, 1.0], [20, 0.5], [20, 0.1], [40, 0.3]]}")
    assert [pieces(step) for step in (0, 10, 15, 19)] == pytest.approx([1.0, 1.0, 0.75, 0.55])
    assert [pieces(step) for step in (20, 30, 40, 99)] == pytest.approx([0.1, 0.2, 0.3, 0.3])  # a jump at 20
    assert PiecewiseSchedule(((5, 2.0),))(0) == PiecewiseSchedule(((5, 2.0),))(9) == 2.0


def test_a_learning_rate_may_end_with_zero() -> None:
    settings = {"learning_rate": {"kind": "linear", "from": 1e-3, "to": 0, "steps": 60}, "clip_range": 0.2}
    trainer = Trainer(resolve_config(tiny_values("ppo", num_envs=2, total_timesteps=96, algo_kwargs=settings)))
    trainer.train(64, evaluate=False)  # the update at 64 has the rate 0
    before = [parameter.clone() for parameter in trainer.policy.network.parameters()]
    trainer.train(96, evaluate=False)
    after = list(trainer.policy.network.parameters())
    trainer.close()
    assert trainer.learner.updates > 6
    assert all(torch.equal(one, other) for one, other in zip(before, after, strict=True))


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ("{learning_rate: {kind: cosine, from: 3e-4, to: 1e-5}}", "needs exactly: kind, from, to, steps"),
        ("{learning_rate: {kind: constant, from: 3e-4, to: 1e-5}}", "needs exactly: kind, from"),
        ("{learning_rate: {kind: cosin, from: 1}}", "algo_kwargs.learning_rate.kind: input should be 'constant', 'linear'"),
        (
            "{learning_rate: {kind: linear, from: 1, to: -1, steps: 3}}",
            "algo_kwargs.learning_rate.to: input should be greater",
        ),
        ("{learning_rate: {kind: linear, from: 0, to: 0, steps: 3}}", "0 from its beginning to its end would learn nothing"),
        ("{learning_rate: {kind: linear, fro: 1, to: 1, steps: 3}}", "'algo_kwargs.learning_rate.fro'; did you mean 'from'?"),
        ("{learning_rate: -1}", "algo_kwargs.learning_rate: input should be greater than 0"),
        ("{learning_rate: [1]}", "algo_kwargs.learning_rate: input should be a valid number"),
        ("{learning_rate: {kind: piecewise, points: []}}", "there must be at least one"),
        ("{learning_rate: {kind: piecewise, points: [[5, 1], [4, 2]]}}", "in the order of their steps"),
        (
            "{learning_rate: {kind: constant, from: 1}, final_learning_rate: 1, learning_rate_decay_steps: 5}",
            "learning_rate is a schedule already: leave out final_learning_rate and learning_rate_decay_steps",
        ),
        ("{final_learning_rate: 1}", "final_learning_rate and learning_rate_decay_steps go together"),
        ("{epsilon: {kind: constant, from: 1.5}}", "algo_kwargs.epsilon.from: input should be less than or equal to 1"),
        ("{epsilon: 0.1, exploration_steps: 5}", "epsilon replaces the linear decay: leave out exploration_steps"),
    ],
)
def test_a_mistake_is_one_sentence(settings: str, expected: str) -> None:
    with pytest.raises(ConfigError) as raised:
        resolve_config(tiny_values("dqn", algo_kwargs=parse_yaml(settings, "test")))
    assert expected in str(raised.value)
    assert len(str(raised.value).splitlines()) == 1


def saved(config: TrainConfig) -> TrainConfig:
    return resolve_config(parse_yaml(config.to_yaml(), "the saved config"))


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_every_algorithm_takes_every_kind_for_its_learning_rate(algo: str) -> None:
    for text in (COSINE, "{kind: piecewise, points: [[0, 1e-3], [100, 1e-4]]}", "{kind: constant, from: 1e-3}"):
        config = tiny_config(algo, algo_kwargs={"learning_rate": parse_yaml(text, "test")})
        assert saved(config) == config
        assert isinstance(config.algo_kwargs.learning_rate, ScheduleConfig)
        trainer = Trainer(config)
        trainer.close()
        expected = config.algo_kwargs.learning_rate.schedule()
        assert trainer.algorithm.schedule_values(70)["learning_rate"] == expected(70)


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_a_schedule_and_its_short_form_are_the_same_run(algo: str) -> None:
    short: dict[str, Any] = {"learning_rate": 1e-2, "final_learning_rate": 1e-4, "learning_rate_decay_steps": 150}
    long: dict[str, Any] = {"learning_rate": {"kind": "linear", "from": 1e-2, "to": 1e-4, "steps": 150}}
    fields = config_fields(algo)
    if "clip_range" in fields:
        short |= {"clip_range": 0.3, "final_clip_range": 0.1, "clip_range_decay_steps": 150, "entropy_coef": 0.02}
        points = [[0, 0.02], [10_000, 0.02]]
        long |= {"clip_range": {"kind": "linear", "from": 0.3, "to": 0.1, "steps": 150}}
        long |= {"entropy_coef": {"kind": "piecewise", "points": points}}
    if "epsilon" in fields:
        short |= {"exploration_initial_eps": 0.9, "exploration_final_eps": 0.1, "exploration_steps": 120}
        long |= {"epsilon": {"kind": "linear", "from": 0.9, "to": 0.1, "steps": 120}}
    weights = []
    for settings in (short, long):
        trainer = Trainer(tiny_config(algo, compile="off", algo_kwargs=settings))
        trainer.train(150)
        trainer.close()
        assert trainer.learner.updates > 5
        weights.append(trainer.policy.state_dict())
    for name, value in weights[0].items():
        assert torch.equal(value, weights[1][name])
