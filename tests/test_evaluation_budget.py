"""Evaluating costs about a tenth of training by default, is the same in every repetition, and shows how far it is."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import yaml
from conftest import final_fingerprint, settings_of
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from rl_training import DQN
from rl_training.algorithms.policy import ActInput, ExportModule, Policy
from rl_training.api import load_agent
from rl_training.cli import main
from rl_training.envs.factory import RegisteredEnv
from rl_training.envs.limit import LongEpisode
from rl_training.envs.pool import Episode, SeededEnvPool
from rl_training.experiment.config import resolve_config
from rl_training.experiment.metrics import read_metrics
from rl_training.runtime.episodes import EpisodeStatistics
from rl_training.runtime.evaluation import EvaluationResult, Extent, Turns, evaluate_policy
from rl_training.runtime.evaluation_budget import EvaluationBudget
from rl_training.runtime.trainer import Trainer
from rl_training.types import Carry, PolicyOutput

TINY = settings_of(
    "dqn", {"hidden_sizes": [16], "batch_size": 8, "buffer_size": 500, "train_freq": 50, "learning_starts": 100}
)


def write_config(path: Path, **values: object) -> None:
    """Episodes of Pendulum-like length: 200 steps, whatever the policy does."""
    data = {
        "algo": "dqn",
        "env_id": "rl_training_test_envs:RandomWalk-v0",
        "log": {"tensorboard": False},
        "algo_kwargs": TINY,
        **values,
    }
    path.write_text(yaml.safe_dump(data))


def evaluated_steps(run: Path) -> tuple[int, int]:
    """The env steps of the evaluations during training, and of the last one."""
    during = sum(round(record["episodes"] * record["length_mean"]) for record in read_metrics(run, "eval"))
    return during, sum(json.loads((run / "evaluation.json").read_text())["lengths"])


def test_default_evaluations_cost_about_a_tenth_of_the_training_steps(tmp_path: Path) -> None:
    write_config(tmp_path / "c.yaml", env_id="MountainCar-v0", total_timesteps=16_000)  # every episode has 200 steps
    assert main(["train", f"--config={tmp_path}/c.yaml", f"--output-dir={tmp_path}/run", "--quiet"]) == 0
    during, at_end = evaluated_steps(tmp_path / "run")
    assert [record["episodes"] for record in read_metrics(tmp_path / "run", "eval")] == [3]  # at 5000 they cost too much
    assert during + at_end <= 1_600
    assert at_end == 1_000


def test_what_is_asked_for_is_evaluated(tmp_path: Path) -> None:
    assert resolve_config({"algo": "dqn", "env_id": "x"}).eval.budget == 0.1
    for chosen in ({"interval": 3000}, {"episodes": 4}, {"final_episodes": 7}):
        assert resolve_config({"algo": "dqn", "env_id": "x", "eval": chosen}).eval.budget is None
        assert resolve_config({"algo": "dqn", "env_id": "x", "eval": {**chosen, "budget": 0.2}}).eval.budget == 0.2
    config = resolve_config({"algo": "dqn", "env_id": "x"})
    assert resolve_config(config.model_dump(mode="json")) == config  # written out in full, it stays what it is


def test_the_budget_in_numbers() -> None:
    budget = EvaluationBudget(resolve_config({"algo": "dqn", "env_id": "x"}).eval)
    seen = EpisodeStatistics()
    assert budget.during(1_000, 1, seen) is None  # one episode has at least 1000 steps
    seen.load_state_dict({"count": 1, "returns": [0.0], "lengths": [100], "successes": [], "least_returns": []})
    assert budget.during(1_000, 1, seen) is None  # 50 steps
    assert budget.during(8_000, 1, seen) == Extent(4, 800, 400)  # a longer one may take what the last evaluation is to have
    budget.on_evaluation(EvaluationResult([0.0] * 4, [50] * 4, steps=200))
    assert budget.during(8_000, 1, seen) is None  # 200 steps are left, and training episodes have 100
    assert budget.at_end(8_000, 1, seen) == Extent(6, 600, 600)
    better = EvaluationResult([0.0] * 4, [500] * 4, steps=2_300)  # than training shows; a fifth one was left out
    budget.on_evaluation(better)
    last = Extent((10_000 - 2_500) // 500, 7_500, 7_500)  # an episode may take all that is left
    assert budget.at_end(100_000, 1, seen) == last
    assert budget.at_end(100, 1, seen) is None
    assert budget.at_end(100, 1, seen, asked=True) == Extent(1, 1_000)
    again = EvaluationBudget(resolve_config({"algo": "dqn", "env_id": "x"}).eval)
    again.load_state_dict(budget.state_dict())
    assert again.at_end(100_000, 1, seen) == last


@pytest.mark.parametrize(
    ("settings", "steps", "usual", "longest"),
    [
        ({}, 300, None, 0),
        ({}, 50_000, 20, 5_000),
        ({}, 20_000, 7_000, 0),
        ({"max_episode_steps": 70}, 50_000, 20, 70),
        ({"max_episode_steps": 7_000}, 50_000, 20, 5_000),
        ({"final_episodes": 2}, 300, None, None),
    ],
)
def test_an_evaluated_episode_takes_no_more_than_the_budget(
    settings: dict[str, int], steps: int, usual: int | None, longest: int | None
) -> None:
    """0: it is left out."""
    config = resolve_config({"algo": "dqn", "env_id": "x", "eval": settings}).eval
    seen = EpisodeStatistics()
    if usual is not None:
        seen.on_episode(Episode(0, 0, 0.0, usual))
    extent = EvaluationBudget(config).at_end(steps, 1, seen)
    assert (0 if extent is None else extent.longest_episode) == longest


@pytest.mark.parametrize(
    ("most_steps", "episodes"),
    [(None, 6), (24, 6), (23, 5), (12, 3), (10, 2), (1, 1), (0, 1)],
)
def test_episodes_that_cost_too_much_are_left_out(most_steps: int | None, episodes: int) -> None:
    """Of six episodes with four steps each, two at a time."""
    config = resolve_config(
        {"algo": "dqn", "env_id": "rl_training_test_envs:Counting-v0", "algo_kwargs": TINY, "eval": {"num_envs": 2}}
    )
    trainer = Trainer(config)
    whole, result = (trainer.evaluate(Extent(6, None, most)) for most in (None, most_steps))
    trainer.close()
    assert whole is not None
    assert result is not None
    assert whole.lengths == [4] * 6
    assert (result.returns, result.lengths) == (whole.returns[:episodes], whole.lengths[:episodes])


class PoolOf:
    """A pool in so far as turns are concerned: n environments whose episodes have given lengths."""

    def __init__(self, num_envs: int, lengths: list[int]) -> None:
        self.num_envs, self._lengths = num_envs, lengths
        self._number, self._taken = [0] * num_envs, [0] * num_envs

    def step(self, active: list[int]) -> list[Episode]:
        finished = []
        for i in active:
            self._taken[i] += 1
            if self._taken[i] == self._lengths[i + self.num_envs * self._number[i]]:
                finished.append(Episode(i, self._number[i], 0.0, self._taken[i]))
                self._number[i], self._taken[i] = self._number[i] + 1, 0
        return finished


def play(num_envs: int, lengths: list[int], most_steps: int | None) -> EvaluationResult:
    pool: Any = PoolOf(num_envs, lengths)
    turns = Turns(pool, len(lengths), most_steps)
    while active := turns.active():
        turns.add(active, pool.step(active))
    return turns.result()


@given(st.integers(1, 10), st.lists(st.integers(1, 60), min_size=1, max_size=25), st.integers(0, 400))
@settings(max_examples=300, deadline=None)
def test_an_evaluation_takes_no_more_steps_than_it_may(num_envs: int, lengths: list[int], most_steps: int) -> None:
    assert play(num_envs, lengths, None).lengths == lengths
    result = play(num_envs, lengths, most_steps)
    assert result.lengths == lengths[: len(result.lengths)]
    assert result.steps <= max(most_steps, lengths[0])
    assert result.steps == sum(lengths) or result.steps >= most_steps


@pytest.mark.parametrize(
    ("lengths", "most_steps", "episodes"),
    [
        ([500] * 20, 4_000, 8),  # all that there are steps for, though training had episodes of 50
        ([1_000] * 20, 4_000, 4),
        ([100] + [500] * 19, 4_000, 7),  # those after a short one are not all begun in vain
        ([10] + [10**6] * 19, 4_000, 1),
    ],
)
def test_few_steps_are_spent_on_what_is_left_out(lengths: list[int], most_steps: int, episodes: int) -> None:
    assert len(play(10, lengths, most_steps).lengths) == episodes


class CountingPolicy(Policy):
    """Its state is the number of steps that it has acted in the episode, as the environment's observation is."""

    def choose(self, given: ActInput) -> PolicyOutput:
        counts: Any = given.carry[0]
        np.testing.assert_array_equal(counts, given.obs[:, 1])
        return PolicyOutput(np.zeros(len(counts), np.int64), (counts + 1,), {})

    def initial_carry(self, num_envs: int) -> Carry:
        return (np.zeros(num_envs, np.float32),)

    def export_module(self) -> ExportModule:
        raise NotImplementedError


@pytest.mark.parametrize("most_steps", [None, 10, 21])
def test_a_policy_keeps_its_state_while_its_environment_waits(most_steps: int | None) -> None:
    pool = SeededEnvPool(RegisteredEnv("rl_training_test_envs:Counting-v0"), num_envs=3)
    result = evaluate_policy(CountingPolicy(nn.Identity(), pool.spec), pool, 6, most_steps=most_steps)
    pool.close()
    assert result is not None
    assert result.steps == (most_steps or 24)
    assert result.lengths == [4] * (result.steps // 4)


@pytest.mark.parametrize(("length", "episodes"), [(50, 8), (100, 1)])
def test_ordinary_episodes_of_a_vector_environment_are_not_cut(length: int, episodes: int) -> None:
    """400 steps are enough for 50 steps of each of the 8 members. If they are not enough for an episode of each, there is
    only the one that was asked for."""
    StuckEnv.steps = 0
    with DQN(gym.vector.SyncVectorEnv([lambda: StuckEnv(length)] * 8), total_timesteps=4_000, **EXPLORES) as agent:
        result = agent.learn(evaluate=True).result
    assert result is not None
    assert result.evaluation is not None
    assert result.evaluation.lengths == [length] * episodes


def test_a_vector_environment_keeps_to_the_budget_too() -> None:
    """All of its members step, whether their episodes count or not."""
    with DQN(gym.vector.SyncVectorEnv([StuckEnv] * 5), total_timesteps=4_000, **EXPLORES) as agent:
        StuckEnv.steps = 0
        with pytest.warns(LongEpisode, match="was stopped after 80 steps"):
            result = agent.learn(evaluate=True).result
    assert result is not None
    assert result.evaluation is not None
    assert StuckEnv.steps - 4_000 == result.evaluation.steps == 400


class StuckEnv(gym.Env[Any, Any]):
    """Ends when an action differs from the one before, which a policy that does not explore never brings about, or with
    ``length`` after that many steps."""

    observation_space = gym.spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)
    steps = 0  # of all environments
    most = 20_000  # of them: a test in which evaluations have no end fails

    def __init__(self, length: int | None = None) -> None:
        self._length = length

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self._last: int | None = None
        self._taken = 0
        return np.zeros(2, np.float32), {}

    def step(self, action: int) -> Any:
        self._taken += 1
        ended = self._last not in (None, action) if self._length is None else self._taken == self._length
        self._last = action
        StuckEnv.steps += 1
        assert StuckEnv.steps < self.most, "evaluating does not end"
        return np.zeros(2, np.float32), 1.0, ended, False, {}


EXPLORES = {**TINY, "exploration_initial_eps": 1.0, "exploration_final_eps": 1.0}


def train_stuck(folder: Path, **values: object) -> int:
    """Trains on ``StuckEnv`` and returns the steps that evaluating took."""
    StuckEnv.steps = 0
    write_config(folder / "c.yaml", env_id="test_evaluation_budget:StuckEnv", total_timesteps=4_000, **values)
    assert main(["train", f"--config={folder}/c.yaml", f"--output-dir={folder}/run"]) == 0
    return StuckEnv.steps - 4_000


def test_an_episode_that_does_not_end_is_stopped_by_the_budget(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Training has episodes of three steps, so that a hundred would cost less than a tenth."""
    steps = train_stuck(tmp_path, algo_kwargs=EXPLORES)
    assert evaluated_steps(tmp_path / "run") == (0, 400)  # one episode, and not a hundred
    assert steps == 400
    assert "was stopped after 400 steps, so its return is that of these steps" in capsys.readouterr().err


@pytest.mark.parametrize("length", [10**9, 1_000], ids=["none has ended", "some have ended"])
def test_an_evaluation_that_costs_too_much_is_left_out(
    length: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train_stuck(tmp_path, env_kwargs={"length": length}) == 0
    assert not (tmp_path / "run" / "evaluation.json").exists()
    summary = capsys.readouterr().out
    assert "evaluation: left out, because an episode may take more than eval.budget of the training steps" in summary
    assert "evaluation.json" not in summary


def test_an_evaluation_that_is_asked_for_has_an_episode() -> None:
    with DQN("CartPole-v1", total_timesteps=150, **TINY) as agent:  # a tenth is less than an episode
        result = agent.learn(evaluate=True).result
        assert result is not None
        assert result.evaluation is not None
        assert len(result.evaluation.returns) == 1


def test_a_resumed_run_evaluates_the_same(tmp_path: Path) -> None:
    settings = {"eval": {"interval": 100, "episodes": 3, "budget": 0.4, "final_episodes": 2}, "checkpoint": {"interval": 130}}
    for name, total in (("whole", 500), ("parts", 260)):
        write_config(tmp_path / f"{name}.yaml", total_timesteps=total, **settings)
        assert main(["train", f"--config={tmp_path}/{name}.yaml", f"--output-dir={tmp_path}/{name}", "--quiet"]) == 0
    assert main(["resume", f"{tmp_path}/parts", "--total-timesteps=5e2", "--quiet"]) == 0
    assert 0 < len(read_metrics(tmp_path / "whole", "eval")) < 5
    assert final_fingerprint(tmp_path / "parts") == final_fingerprint(tmp_path / "whole")


# ------------------------------------------------------------------------------------------------- eval and evaluate


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("evaluation")
    write_config(folder / "c.yaml", env_id="CartPole-v1", total_timesteps=300, eval={"final_episodes": 2})
    assert main(["train", f"--config={folder}/c.yaml", f"--output-dir={folder}/run", "--quiet"]) == 0
    return folder / "run"


def test_eval_takes_a_seed_and_explores(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def returns(*options: str) -> list[float]:
        assert main(["eval", str(run), "--episodes=3", "--json", *options]) == 0
        found: list[float] = json.loads(capsys.readouterr().out)["returns"]
        return found

    assert returns("--seed=0") == returns()
    assert returns("--seed=3") == returns("--seed=3") != returns()
    assert returns("--stochastic") == returns("--stochastic") != returns()
    agent = load_agent(run)
    assert agent.evaluate(3, seed=3).returns == returns("--seed=3")
    assert agent.evaluate(3, deterministic=False).returns == returns("--stochastic")


def test_eval_renders_on_the_screen(run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    assert main(["eval", str(run), "--episodes=1", "--render"]) == 0
    assert re.match(r"return [\d.]+", capsys.readouterr().out)
    agent = load_agent(run, env="rl_training_test_envs:RandomWalk-v0")
    with pytest.raises(Exception, match="cannot show itself on the screen"):
        agent.evaluate(1, render=True)


def test_an_evaluation_shows_how_far_it_is(
    run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rl_training.runtime.progress.LineProgress.seconds", 0.0)
    assert main(["eval", str(run), "--episodes=12"]) == 0
    assert "evaluation: 11/12 episodes" in capsys.readouterr().err


def test_learn_evaluates_at_its_end_only_if_asked() -> None:
    values: dict[str, Any] = {"total_timesteps": 150, **TINY}
    for asked, configured, expected in ((None, {}, False), (True, {}, True), (None, {"final_episodes": 2}, True)):
        if configured:
            values["eval"] = configured
        with DQN("CartPole-v1", **values) as agent:
            result = agent.learn(evaluate=asked).result
            assert result is not None
            assert (result.evaluation is not None) is expected
