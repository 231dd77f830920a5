"""episodes.jsonl: every episode once, also after a kill, with what its environment reports; successes in the metrics."""

from __future__ import annotations

import functools
import json
import warnings
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import yaml
from conftest import metrics_without_time, tiny_config, tiny_values
from moments import kill, logged_step, start, wait_until, waiting_at
from rl_training_test_envs import GoalEnv

from rl_training import DQN
from rl_training.cli import main
from rl_training.envs.final_info import MOST_NUMBERS, chosen
from rl_training.envs.vector_pool import VectorEnvPool
from rl_training.experiment.metrics import EPISODES_FILE, read_log
from rl_training.runtime.sessions import resume_training, start_training

GOAL = "rl_training_test_envs:Goal-v0"
KEYS = ["distance", "place", "nan", "absent"]


def train(path: Path, **values: Any) -> None:
    trainer = start_training(tiny_config("dqn", output_dir=str(path), **values), command="test")
    try:
        trainer.train()
    finally:
        trainer.close()


def episodes_of(run: Path) -> list[dict[str, Any]]:
    """The records without the times, which differ."""
    return [
        {key: value for key, value in record.items() if not key.startswith("time/")}
        for record in read_log(run, EPISODES_FILE)
    ]


def test_the_success_rate_is_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config, run = tmp_path / "config.yaml", tmp_path / "run"
    config.write_text(yaml.safe_dump(tiny_values("dqn", env_id=GOAL, eval={"interval": 0, "final_episodes": 4})))
    assert main(["train", f"--config={config}", f"--output-dir={run}", "--quiet"]) == 0
    rate = json.loads((run / "evaluation.json").read_text())["success_rate"]
    assert f"over 4 episodes, success rate {rate:.0%}\n" in capsys.readouterr().out
    assert main(["eval", str(run), "--episodes=4"]) == 0
    assert f"mean length 4.0, success rate {rate:.0%})" in capsys.readouterr().out


def test_a_chosen_entry_that_no_episode_had_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(yaml.safe_dump(tiny_values("dqn", env_id=GOAL, log={"info_keys": ["distance", "distanse"]})))
    assert main(["train", f"--config={config}", f"--output-dir={tmp_path / 'run'}"]) == 0
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "log.info_keys" in line]
    assert line == "log.info_keys: the info of the last step of no episode had distanse"


@pytest.mark.parametrize("workers", ["inline", "subprocess"])
def test_every_episode_is_written_with_what_is_asked_for(workers: str, tmp_path: Path) -> None:
    run = tmp_path / "run"
    log = {"interval": 25, "tensorboard": False, "info_keys": KEYS}
    train(run, env_id=GOAL, num_envs=2, env_workers=workers, log=log)
    episodes = read_log(run, EPISODES_FILE)
    assert len(episodes) == 240 // 4
    assert [episode["step"] for episode in episodes] == [8 * (i // 2 + 1) for i in range(60)]
    assert [(episode["env"], episode["episode"]) for episode in episodes] == [(i % 2, i // 2) for i in range(60)]
    seconds = [episode.pop("time/seconds") for episode in episodes]
    assert min(seconds) > 0
    assert sum(seconds) < 60 * 2
    successes = [episode.pop("is_success") for episode in episodes]
    assert set(successes) == {False, True}
    expected = {"kind": "episode", "return": 10.0, "length": 4, "info/distance": 2.0, "info/place": [0, 1], "info/nan": None}
    assert all({**episode, **expected} == episode for episode in episodes)
    assert all(episode.keys() == {*expected, "step", "env", "episode"} for episode in episodes)
    last = [record for record in metrics_without_time(run) if record["kind"] == "train"][-1]
    assert last["step"] == 226
    assert last["success_rate"] == np.mean(successes[: last["episodes"]])
    evaluations = [record for record in metrics_without_time(run) if record["kind"] == "eval"]
    assert all(record["success_rate"] in (0.0, 1 / 3, 2 / 3, 1.0) for record in evaluations)
    final = json.loads((run / "evaluation.json").read_text())
    assert final["success_rate"] == np.mean(final["successes"])
    assert len(final["successes"]) == 2


def test_an_environment_that_reports_nothing(tmp_path: Path) -> None:
    run = tmp_path / "run"
    train(run, env_id=GOAL, env_kwargs={"silent": True})
    assert all("is_success" not in episode for episode in episodes_of(run))
    assert "success" not in (run / "metrics.jsonl").read_text() + (run / "evaluation.json").read_text()


def test_no_episode_is_written_twice_or_missing_after_a_kill(tmp_path: Path) -> None:
    values = tiny_values("dqn", total_timesteps=400, log={"interval": 10, "tensorboard": False})
    values |= {"env_id": "rl_training_test_envs:Waiting-v0", "checkpoint": {"interval": 45}, "eval": {"interval": 0}}
    config, run = tmp_path / "config.yaml", tmp_path / "run"
    config.write_text(json.dumps(values))
    arguments = ("train", "--config", str(config), "--quiet", "--output-dir")
    assert main([*arguments, str(tmp_path / "whole")]) == 0
    process = start(*arguments, str(run), env=waiting_at(265))
    wait_until(lambda: logged_step(run) >= 260, process)
    kill(process)
    assert episodes_of(run)[-1]["step"] > 225  # the last checkpoint, from which the run continues
    assert main(["resume", str(run), "--quiet"]) == 0
    assert episodes_of(run) == episodes_of(tmp_path / "whole")
    assert len(episodes_of(run)) > 10


def test_the_success_rate_is_exact_across_a_resume(tmp_path: Path) -> None:
    train(tmp_path / "whole", env_id=GOAL)
    trainer = start_training(tiny_config("dqn", output_dir=str(tmp_path / "parted"), env_id=GOAL), command="test")
    trainer.train(130)
    trainer.close()
    trainer = resume_training(tmp_path / "parted", warn=warnings.warn)
    trainer.train()
    trainer.close()
    assert metrics_without_time(tmp_path / "parted") == metrics_without_time(tmp_path / "whole")
    assert episodes_of(tmp_path / "parted") == episodes_of(tmp_path / "whole")


def test_an_episode_across_a_resume_has_the_time_of_both_parts(tmp_path: Path) -> None:
    values: dict[str, Any] = {"env_id": GOAL, "env_kwargs": {"length": 200}, "output_dir": str(tmp_path / "run")}
    trainer = start_training(tiny_config("dqn", **values), command="test")
    trainer.train(190, evaluate=False)
    trainer.close()
    trainer = resume_training(tmp_path / "run", warn=warnings.warn)
    first = trainer.log.time_metrics(1)["time/seconds"]  # of the first part, as saved
    trainer.train(evaluate=False)
    second = trainer.timer.total
    trainer.close()
    (episode,) = read_log(tmp_path / "run", EPISODES_FILE)
    assert first > 0.0
    assert first - 0.002 < episode["time/seconds"] < first + second + 0.002


@pytest.mark.parametrize("mode", list(gym.vector.AutoresetMode), ids=lambda mode: mode.name)
def test_a_vector_environment_reports_them_too(mode: gym.vector.AutoresetMode) -> None:
    env = gym.vector.SyncVectorEnv([functools.partial(GoalEnv, 3), functools.partial(GoalEnv, 4, True)], autoreset_mode=mode)
    pool = VectorEnvPool(env, info_keys=("is_success", "distance"))
    pool.reset()
    finished = []
    for _ in range(30):
        finished += pool.step(np.zeros(2, np.int64))[1]
    pool.close()
    loud, silent = ([episode for episode in finished if episode.env_index == i] for i in range(2))
    assert len(loud) > 4
    assert {episode.success for episode in loud} == {0.0, 1.0}
    assert {episode.info["distance"] for episode in loud} == {1.5}
    assert {episode.success for episode in silent} == {None}
    assert all(episode.info == {"distance": 2.0} for episode in silent)


def test_what_is_not_plain_is_written_as_text() -> None:
    info = {
        "a": np.zeros(MOST_NUMBERS + 1),
        "b": {1, 2},
        "c": "text",
        "d": None,
        "e": np.array([[3]]),
        "f": [1, float("inf")],
    }
    kept = chosen(info, [*info])
    assert json.loads(json.dumps(kept)) == kept
    assert (kept["b"], kept["c"], kept["d"], kept["e"], kept["f"]) == ("{1, 2}", "text", None, 3, [1, None])
    assert kept["a"].startswith("array([0., 0.")


def test_an_agent_without_a_run_directory_writes_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with DQN(GOAL, learning_starts=20, batch_size=8, total_timesteps=100) as agent:
        result = agent.learn().result
    assert result is not None
    assert 0.0 <= result.metrics["success_rate"] <= 1.0
    assert not list(tmp_path.iterdir())
