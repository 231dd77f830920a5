"""Initial priorities from the Q-values of acting, against a twin that computes the TD errors from lists of numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from conftest import settings_of, tiny_config
from test_collectors import fingerprint, stretch_config, trained

from rl_training.algorithms.r2d2 import rescale, unrescale
from rl_training.errors import ConfigError
from rl_training.experiment.config import TrainConfig
from rl_training.runtime.collector import Collected, Collector
from rl_training.runtime.learner import OffPolicyLearner
from rl_training.runtime.sessions import resume_training
from rl_training.runtime.trainer import Trainer

ENVS, STEPS, GAMMA = 4, 35, 0.9
CASES: dict[str, dict[str, Any]] = {
    "transitions": {"algo": "dqn", "algo_kwargs": {"prioritized": True}},
    "n-step transitions": {"algo": "dqn", "algo_kwargs": {"prioritized": True, "n_step": 3}},
    "frames": {"algo": "dqn", "observation": "image", "algo_kwargs": {"prioritized": True, "n_step": 2, "frame_stack": 3}},
    "sequences": {"algo": "r2d2", "algo_kwargs": {"n_step": 2, "sequence_length": 4, "overlap": 1, "burn_in": 2}},
    "rescaled sequences": {"algo": "r2d2", "algo_kwargs": {"sequence_length": 3, "n_step": 1, "rescale_values": True}},
}


class Acted(NamedTuple):
    """What a step of one environment gave, and the Q-values by which it was chosen."""

    q: list[float]
    action: int
    reward: float
    terminated: bool
    truncated: bool
    allowed: list[bool] | None  # at the next observation


def acted(collected: list[Collected], env: int) -> list[Acted]:
    steps = []
    for step, _, _, _, _, q_values in collected:
        assert q_values is not None
        mask = None if step.next_action_mask is None else step.next_action_mask[env].tolist()
        flags = bool(step.terminated[env]), bool(step.truncated[env])
        steps.append(Acted(q_values[env].tolist(), int(step.action[env]), float(step.reward[env]), *flags, mask))
    return steps


def errors_of(steps: list[Acted], n: int, rescaled: bool) -> list[tuple[int, float | None]]:
    """The TD error of each step whose n-step window is complete, with the number of its episode; None if it is not known."""
    found: list[tuple[int, float | None]] = []
    episode = 0
    for begin, first in enumerate(steps[:-1]):  # the last step is held back
        last = begin
        while last + 1 < len(steps) - 1 and last - begin + 1 < n and not (steps[last].terminated or steps[last].truncated):
            last += 1
        ended = steps[last].terminated or steps[last].truncated
        if last - begin + 1 < n and not ended:
            break
        target = sum(GAMMA**k * step.reward for k, step in enumerate(steps[begin : last + 1]))
        if not steps[last].terminated:
            allowed = steps[last].allowed or [True] * len(first.q)
            value = max(q for q, may in zip(steps[last + 1].q, allowed, strict=True) if may)
            value = float(unrescale(torch.tensor(value, dtype=torch.float64))) if rescaled else value
            target += GAMMA ** (last - begin + 1) * value
        target = float(rescale(torch.tensor(target, dtype=torch.float64))) if rescaled else target
        found.append((episode, None if steps[last].truncated else abs(target - first.q[first.action])))
        episode += first.terminated or first.truncated
    return found


def sequence_priorities(steps: list[Acted], settings: Any) -> list[float | None]:
    """Those of the sequences that are complete."""
    found: list[float | None] = []
    errors = errors_of(steps, settings.n_step, settings.rescale_values)
    length, stride = settings.sequence_length, settings.sequence_length - settings.overlap
    for episode in sorted({number for number, _ in errors}):
        own = [error for number, error in errors if number == episode]
        over = sum(step.terminated or step.truncated for step in steps[:-1]) > episode
        for begin in range(0, len(own), stride):
            part = own[begin : begin + length]
            if len(part) < length and not (over and (begin == 0 or len(part) > settings.overlap)):
                break
            known = [error for error in part if error is not None]
            eta = settings.priority_eta
            found.append(eta * max(known) + (1 - eta) * sum(known) / len(known) if known else None)
    return found


def trainer_of(case: str, end: str) -> Trainer:
    values = {**CASES[case]}
    env = {"observation": values.pop("observation", "vector"), "length": 5, "masked": True, "end": end}
    kwargs = {**values.pop("algo_kwargs"), "gamma": GAMMA, "learning_starts": 200, "buffer_size": 600}
    return Trainer(
        tiny_config(
            values.pop("algo"),
            env_id="rl_training_test_envs:Spaces-v0",
            env_kwargs=env,
            num_envs=ENVS,
            collectors={"count": 2, "stretch": 8, "actor_priorities": True},
            algo_kwargs=kwargs,
        )
    )


@pytest.mark.parametrize("end", ["terminated", "truncated"])
@pytest.mark.parametrize("case", CASES)
def test_priorities_are_the_td_errors_of_acting(case: str, end: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[Collector, list[Collected]] = {}
    collect = Collector.collect

    def noted(self: Collector, env_steps: int) -> Collected:
        seen.setdefault(self, []).append(collect(self, env_steps))
        return seen[self][-1]

    monkeypatch.setattr(Collector, "collect", noted)
    trainer = trainer_of(case, end)
    trainer.train(ENVS * STEPS, evaluate=False)
    trainer.close()
    settings: Any = trainer.config.algo_kwargs
    expected: list[float | None] = []
    for collected in seen.values():
        for env in range(ENVS // 2):
            steps = acted(collected, env)
            if case.endswith("sequences"):
                expected += sequence_priorities(steps, settings)
            else:
                expected += [error for _, error in errors_of(steps, settings.n_step, False)]
    assert isinstance(trainer.learner, OffPolicyLearner)
    assert trainer.learner.updates == 0
    buffer: Any = trainer.learner.replay.buffer
    state = buffer.state_dict()
    stored = state["priorities"] if isinstance(state["priorities"], np.ndarray) else state["priorities"]["priorities"]
    wanted = sorted(1.0 if error is None else (error + 1e-6) ** settings.priority_alpha for error in expected)
    assert len(wanted) == len(buffer) > 40
    if not case.endswith("sequences"):  # of which some steps always have a known error
        assert (None in expected) == (end == "truncated")
    np.testing.assert_allclose(sorted(stored[stored > 0].tolist()), wanted, rtol=1e-5, atol=1e-6)
    assert len({round(value, 6) for value in wanted}) > 10


def config_of(name: str, output: Path, deaths: str = "", **collectors: Any) -> TrainConfig:
    config = stretch_config(name, output, deaths, actor_priorities=False, **collectors)
    data = config.model_dump(mode="json")
    settings = {**data["algo_kwargs"], **settings_of(name, {"prioritized": True, "n_step": 3})}
    return config.with_values(algo_kwargs=settings, collectors={**data["collectors"], "actor_priorities": True})


@pytest.mark.parametrize("name", ["dqn", "r2d2"])
def test_what_is_held_back_survives_deaths_and_resuming(name: str, tmp_path: Path) -> None:
    whole, _ = trained(config_of(name, tmp_path / "whole"))
    (tmp_path / "deaths").write_text("37")
    process, restarts = trained(config_of(name, tmp_path / "process", str(tmp_path / "deaths"), kind="process"))
    assert restarts == 1
    assert process == whole
    trained(config_of(name, tmp_path / "parts"), 130)
    trainer = resume_training(tmp_path / "parts", warn=pytest.fail)
    trainer.train()
    trainer.close()
    assert fingerprint(tmp_path / "parts") == whole


@pytest.mark.parametrize(
    ("algo", "settings", "words"),
    [
        ("dqn", {}, "set algo_kwargs.prioritized: true"),
        ("drqn", {}, "act by Q-values and have prioritised replay"),
        ("sac", {}, "act by Q-values and have prioritised replay"),
        ("r2d2", {"normalize_rewards": True}, "algo_kwargs.normalize_rewards scales them"),
    ],
)
def test_where_there_can_be_none(algo: str, settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        tiny_config(algo, collectors={"actor_priorities": True}, algo_kwargs=settings)
