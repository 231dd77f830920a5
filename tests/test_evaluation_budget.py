"""Evaluating costs about a tenth of training by default, is the same in every repetition, and shows how far it is."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from conftest import final_fingerprint, settings_of

from rl_training import DQN
from rl_training.api import load_agent
from rl_training.cli import main
from rl_training.experiment.config import resolve_config
from rl_training.experiment.metrics import read_metrics
from rl_training.runtime.episodes import EpisodeStatistics
from rl_training.runtime.evaluation import EvaluationResult
from rl_training.runtime.evaluation_budget import EvaluationBudget

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
    assert budget.episodes_during(1_000, 1, seen) == 0  # one episode has at least 1000 steps
    seen.load_state_dict({"count": 1, "returns": [0.0], "lengths": [100], "successes": [], "least_returns": []})
    assert budget.episodes_during(1_000, 1, seen) == 0  # 50 steps
    assert budget.episodes_during(8_000, 1, seen) == 4  # 400 steps
    budget.on_evaluation(EvaluationResult([0.0] * 4, [50] * 4))
    assert budget.episodes_during(8_000, 1, seen) == 0  # 200 steps are left, and training episodes have 100
    assert budget.episodes_at_end(8_000, 1, seen) == 6
    budget.on_evaluation(EvaluationResult([0.0] * 4, [500] * 4))  # the policy has become better than training shows
    assert budget.episodes_at_end(100_000, 1, seen) == (10_000 - 2_200) // 500
    assert budget.episodes_at_end(100, 1, seen) == 1
    again = EvaluationBudget(resolve_config({"algo": "dqn", "env_id": "x"}).eval)
    again.load_state_dict(budget.state_dict())
    assert again.episodes_at_end(100_000, 1, seen) == (10_000 - 2_200) // 500


@pytest.mark.parametrize(
    ("settings", "steps", "longest"),
    [
        ({}, 300, 1_000),
        ({}, 5_000, 5_000),
        ({"max_episode_steps": 70}, 5_000, 70),
        ({"final_episodes": 2}, 300, None),
    ],
)
def test_an_evaluated_episode_is_not_longer_than_training(settings: dict[str, int], steps: int, longest: int | None) -> None:
    config = resolve_config({"algo": "dqn", "env_id": "x", "eval": settings}).eval
    assert EvaluationBudget(config).longest_episode(steps) == longest


def test_an_episode_that_does_not_end_is_stopped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    endless = {"env_id": "rl_training_test_envs:Counting-v0", "env_kwargs": {"length": 10**9}}
    write_config(tmp_path / "c.yaml", **endless, total_timesteps=300)
    assert main(["train", f"--config={tmp_path}/c.yaml", f"--output-dir={tmp_path}/run"]) == 0
    assert evaluated_steps(tmp_path / "run") == (0, 1_000)
    assert "was stopped after 1000 steps, so its return is that of these steps" in capsys.readouterr().err


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
    settings: dict[str, Any] = {"total_timesteps": 150, **TINY}
    for asked, configured, expected in ((None, {}, False), (True, {}, True), (None, {"final_episodes": 2}, True)):
        if configured:
            settings["eval"] = configured
        with DQN("CartPole-v1", **settings) as agent:
            result = agent.learn(evaluate=asked).result
            assert result is not None
            assert (result.evaluation is not None) is expected
