"""Episodes of evaluations: their own seeds, and an end even if the environment has none."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import pytest
from conftest import tiny_config

from rl_training.api import load_agent
from rl_training.cli import main
from rl_training.envs.limit import LongEpisode
from rl_training.runtime.evaluation import Extent
from rl_training.runtime.sessions import start_training
from rl_training.runtime.trainer import Trainer


def test_the_final_evaluation_has_episodes_of_its_own(tmp_path: Path) -> None:
    """The reward is the episode's seed: the best checkpoint must not be judged by the episodes that it was chosen by."""
    config = tiny_config(
        "dqn",
        env_id="exactness_envs:Seed-v0",
        eval={"interval": 20, "episodes": 1, "final_episodes": 4, "num_envs": 2},
        total_timesteps=60,
        output_dir=str(tmp_path / "run"),
    )
    trainer = start_training(config, command="test")
    result = trainer.train()
    trainer.close()
    log = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    chosen_by = {record["return_mean"] for record in log if record["kind"] == "eval"}
    assert len(chosen_by) == 1  # every evaluation during training begins with the same episodes
    assert result.evaluation is not None
    final = result.evaluation.returns
    assert len(set(final)) == 4
    assert not chosen_by & set(final)
    with load_agent(tmp_path / "run") as agent:
        assert agent.evaluate(4).returns == final


ENDLESS = {"env_id": "exactness_envs:Drifting-v0", "env_kwargs": {"length": 10**9}}


def test_an_evaluated_episode_that_never_ends_is_stopped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    evaluation = {"interval": 20, "episodes": 3, "final_episodes": 3, "num_envs": 2, "max_episode_steps": 25}
    config = tiny_config("dqn", **ENDLESS, eval=evaluation, total_timesteps=40, output_dir=str(tmp_path / "run"))
    trainer = start_training(config, command="test")
    with pytest.warns(LongEpisode, match=r"Drifting-v0 was stopped after 25 steps, so its return is that of these"):
        result = trainer.train()
    trainer.close()
    assert result.evaluation is not None
    assert (result.evaluation.lengths, result.evaluation.returns) == ([25] * 3, [25.0] * 3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert main(["eval", str(tmp_path / "run"), "--episodes", "2", "--max-episode-steps", "7", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["lengths"] == [7, 7]


def test_a_very_long_evaluated_episode_causes_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rl_training.envs.limit.LONG_EPISODE", 30)
    values: dict[str, Any] = {**ENDLESS, "env_kwargs": {"length": 40}}
    trainer = Trainer(tiny_config("dqn", **values))
    with pytest.warns(LongEpisode, match=r"has lasted 30 steps and goes on.*eval.max_episode_steps") as caught:
        result = trainer.evaluate(Extent(2))
    trainer.close()
    assert len(caught) == 1
    assert result is not None
    assert result.lengths == [40, 40]


def test_training_episodes_are_not_stopped() -> None:
    values: dict[str, Any] = {**ENDLESS, "eval": {"interval": 0, "final_episodes": 1, "num_envs": 1, "max_episode_steps": 5}}
    trainer = Trainer(tiny_config("dqn", **values, total_timesteps=60))
    with pytest.warns(LongEpisode):
        trainer.train()
    assert trainer.pool.state_dict()["lengths"] == [60]
    trainer.close()
