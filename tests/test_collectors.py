"""Collecting in stretches: where collectors run, and whether they die, changes no bit of a run."""

from __future__ import annotations

import itertools
import json
import multiprocessing
import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
import yaml
from conftest import OFF_POLICY, ON_POLICY, env_of_tests, final_fingerprint, settings_of, tiny_config
from moments import finish_python, kill, start, wait_for_checkpoint

from rl_training.envs.factory import GivenEnv
from rl_training.envs.pool import Episode
from rl_training.errors import CollectorError, ConfigError, EnvironmentFault
from rl_training.experiment.changes import with_overrides
from rl_training.experiment.config import TrainConfig
from rl_training.rng import derive_seed
from rl_training.runtime import ray_collectors
from rl_training.runtime.episodes import EpisodeStatistics
from rl_training.runtime.learner import OffPolicyLearner
from rl_training.runtime.sessions import resume_training, start_training
from rl_training.runtime.stretch_collector import Call, Place, Reply, Setup
from rl_training.runtime.trainer import Trainer
from rl_training.version import __version__


def stretch_config(algo: str, output: Path, deaths: str = "", **collectors: Any) -> TrainConfig:
    """Two collectors of two environments each, in stretches of eight steps or of a rollout."""
    stretch = 16 if algo in ON_POLICY else 8
    return tiny_config(
        algo,
        **env_of_tests(algo, "Mortal"),
        env_kwargs={"deaths": deaths},
        num_envs=4,
        total_timesteps=256,
        collectors={"count": 2, "stretch": stretch, **collectors},
        eval={"interval": 90, "episodes": 1, "final_episodes": 1, "num_envs": 1},
        algo_kwargs=settings_of(algo, {"epsilon": 0.1}),  # the weights must matter
        output_dir=str(output),
    )


def trained(config: TrainConfig, total: int | None = None, callbacks: Sequence[object] = ()) -> tuple[dict[str, Any], int]:
    """The fingerprint of a run, and how often its collectors were started again."""
    trainer = start_training(config, command="test")
    try:
        trainer.train(total, callbacks=callbacks)
    finally:
        trainer.close()
    assert config.output_dir is not None
    return fingerprint(Path(config.output_dir)), getattr(trainer.collector, "restarts", 0)


def fingerprint(run: Path) -> dict[str, Any]:
    """Of all but the config, which names the kind of the collectors."""
    found = final_fingerprint(run)
    files = {name: digest for name, digest in found["files"].items() if not name.startswith("agent")}
    return {"files": files, "metrics": found["metrics"]}


def test_a_process_that_is_killed_leaves_no_trace(algo: str, tmp_path: Path) -> None:
    inline, _ = trained(stretch_config(algo, tmp_path / "inline"))
    deaths = tmp_path / "deaths"
    deaths.write_text("37")
    process, restarts = trained(stretch_config(algo, tmp_path / "process", str(deaths), kind="process"))
    assert restarts == 1
    assert process == inline


OTHERS = [pytest.param(name, 1, marks=pytest.mark.slow) for name in OFF_POLICY if name not in ("dqn", "r2d2")]


@pytest.mark.parametrize(
    ("name", "interval"), [pytest.param("dqn", 1, marks=pytest.mark.slow), ("dqn", 2), ("r2d2", 2), *OTHERS]
)
def test_pipelined_collectors_are_exact_too(name: str, interval: int, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"mode": "pipelined", "broadcast_interval": interval}
    lockstep, _ = trained(stretch_config(name, tmp_path / "lockstep"))
    inline, _ = trained(stretch_config(name, tmp_path / "inline", **settings))
    deaths = tmp_path / "deaths"
    deaths.write_text("21\n45")
    process, restarts = trained(stretch_config(name, tmp_path / "process", str(deaths), kind="process", **settings))
    assert restarts == 2
    assert process == inline
    assert inline["files"]["policy.safetensors"] != lockstep["files"]["policy.safetensors"]


@pytest.mark.parametrize(
    ("mode", "interval"),
    [
        ("lockstep", 3),
        ("pipelined", 1),
        *(pytest.param(*case, marks=pytest.mark.slow) for case in (("lockstep", 1), ("pipelined", 3))),
    ],
)
def test_a_run_is_resumed_exactly_and_elsewhere(mode: str, interval: int, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"mode": mode, "broadcast_interval": interval}
    whole, _ = trained(stretch_config("dqn", tmp_path / "whole", **settings))
    trained(stretch_config("dqn", tmp_path / "parts", **settings), 130)
    for total, kind in ((200, "process"), (None, "inline")):
        trainer = resume_training(
            tmp_path / "parts",
            change=lambda config, kind=kind: with_overrides(config, [f"collectors.kind={kind}"]),  # type: ignore[misc]
            warn=pytest.fail,
        )
        trainer.train(total)
        trainer.close()
    parts = fingerprint(tmp_path / "parts")
    assert parts["files"] == whole["files"]
    assert [record for record in parts["metrics"] if record["kind"] != "change"] == whole["metrics"]


def test_training_in_parts_goes_on_with_the_same_processes(tmp_path: Path) -> None:
    config = stretch_config("dqn", tmp_path / "parts", kind="process", mode="pipelined")
    whole, _ = trained(config.with_values(output_dir=str(tmp_path / "whole")))
    trainer = start_training(config, command="test")
    processes = set()
    for total in (100, 130, None):
        trainer.train(total, evaluate=total is None)
        processes |= set(multiprocessing.active_children())
    trainer.close()
    assert len(processes) == 2
    assert fingerprint(tmp_path / "parts") == whole


@pytest.mark.parametrize("name", ON_POLICY)
def test_rollouts_in_one_stretch_are_those_of_the_usual_loop(name: str, tmp_path: Path) -> None:
    """The policy is the same during a rollout, so nothing else can differ than when evaluations are due."""
    evaluation = {"interval": 0, "final_episodes": 1, "num_envs": 1}
    shared: dict[str, Any] = {"num_envs": 2, "eval": evaluation, "checkpoint": {"interval": 0}, "log": {"interval": 10_000}}
    weights = []
    for collectors in ({}, {"stretch": 16}):
        trainer = Trainer(tiny_config(name, collectors=collectors, **shared))
        trainer.train(160)
        trainer.close()
        weights.append(trainer.policy.state_dict())
    assert weights[0].keys() == weights[1].keys()
    assert all(torch.equal(weights[0][key], weights[1][key]) for key in weights[0])


def test_a_collector_that_dies_for_ever_ends_the_run_saved(tmp_path: Path) -> None:
    deaths = tmp_path / "deaths"
    deaths.write_text("\n".join(["40", "1", "1", "1", "1", "1", "1", "1"]))
    with pytest.raises(
        CollectorError, match=r"collector [01] \(environments .* has died 4 times in one stretch.*saved at step"
    ):
        trained(stretch_config("dqn", tmp_path / "run", str(deaths), kind="process"))
    deaths.unlink()
    trainer = resume_training(tmp_path / "run", warn=pytest.fail)
    trainer.train()
    trainer.close()
    whole, _ = trained(stretch_config("dqn", tmp_path / "whole"))
    assert fingerprint(tmp_path / "run") == whole


@pytest.mark.parametrize("kind", ["inline", "process"])
def test_a_fault_in_a_collector_is_reported_as_any_fault(kind: str, tmp_path: Path) -> None:
    mended = tmp_path / "mended"
    config = tiny_config(
        "dqn",
        **env_of_tests("dqn", "Faulty"),
        env_kwargs={"fault": "raise", "mended": str(mended)},
        num_envs=4,
        collectors={"kind": kind, "count": 2, "stretch": 5},
        output_dir=str(tmp_path / "run"),
    )
    with pytest.raises(EnvironmentFault, match=r"index [0-3].*The run is saved at step") as raised:
        trained(config)
    assert raised.value.__cause__ is not None
    (report,) = (tmp_path / "run").glob("fault-step-*.json")
    content = json.loads(report.read_text())
    assert content["actions"]
    assert any("rl_training_test_envs.py" in frame for frame in content["traceback"])
    mended.touch()
    trainer = resume_training(tmp_path / "run", warn=pytest.fail)
    trainer.train()
    trainer.close()
    assert trainer.env_steps >= 240


def test_a_killed_learner_and_its_collectors_resume_exactly(tmp_path: Path) -> None:
    config = stretch_config("dqn", tmp_path / "whole", mode="pipelined").with_values(total_timesteps=1280)
    whole, _ = trained(config)
    data = {**config.model_dump(mode="json", exclude_unset=True), "output_dir": str(tmp_path / "run")}
    data["collectors"] |= {"kind": "process"}
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(data))
    process = start("train", "--config", tmp_path / "run.yaml", "--quiet")
    wait_for_checkpoint(tmp_path / "run", process)
    kill(process)
    trainer = resume_training(tmp_path / "run", warn=pytest.fail)
    trainer.train()
    trainer.close()
    assert fingerprint(tmp_path / "run") == whole


def free_config(output: Path, deaths: Path, total: int, **collectors: Any) -> TrainConfig:
    return tiny_config(
        "dqn",
        env_id="rl_training_test_envs:MortalCounting-v0",
        env_kwargs={"deaths": str(deaths)},
        num_envs=8,
        total_timesteps=total,
        collectors={"count": 4, "stretch": 4, "mode": "free", "kind": "process", **collectors},
        eval={"interval": 0, "final_episodes": 1, "num_envs": 1},
        algo_kwargs={"buffer_size": 2 * total},
        output_dir=str(output),
    )


def stored_steps(trainer: Trainer) -> list[tuple[int, int]]:
    """The episode seed and the number of every step in the replay, in the order in which they were stored."""
    assert isinstance(trainer.learner, OffPolicyLearner)
    buffer = trainer.learner.replay.buffer
    obs = buffer.gather(np.arange(len(buffer))).obs.numpy()  # type: ignore[attr-defined]
    return [(int(seed), int(number)) for seed, number, _ in obs]


def assert_each_once_and_in_order(trainer: Trainer) -> None:
    stored = stored_steps(trainer)
    assert len(stored) == len(set(stored)) == trainer.env_steps, "steps are lost or doubled"
    played, known = 0, {seed for seed, _ in stored}
    for env in range(8):
        seeds = (derive_seed(trainer.config.seed, "env", env, number) % (1 << 24) for number in itertools.count())
        episodes = dict.fromkeys(itertools.takewhile(known.__contains__, seeds))
        own = [step for step in stored if step[0] in episodes]
        assert own == [(seed, number) for seed in episodes for number in range(7)][: len(own)]
        played += len(own)
    assert played == len(stored)


@pytest.mark.parametrize("kills", [3, pytest.param(200, marks=pytest.mark.slow)])
def test_free_collectors_lose_and_double_no_step(kills: int, tmp_path: Path) -> None:
    deaths = tmp_path / "deaths"
    deaths.write_text("\n".join(["31"] * kills))  # more than the replay of two episodes and a stretch
    total = 60 * kills + 200
    trainer = start_training(free_config(tmp_path / "run", deaths, total), command="test")
    trainer.train(total // 2)
    assert_each_once_and_in_order(trainer)
    trainer.close()
    restarts = trainer.collector.restarts  # type: ignore[union-attr]
    trainer = resume_training(tmp_path / "run", warn=pytest.fail)
    trainer.train()
    trainer.close()
    assert_each_once_and_in_order(trainer)
    assert restarts + trainer.collector.restarts == kills  # type: ignore[union-attr]
    assert trainer.learner.updates > 0


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"algo": "dqn", "num_envs": 4, "collectors": {"count": 3}}, r"count \(3\) does not divide .* set it to 2"),
        ({"algo": "ppo", "collectors": {"mode": "free", "stretch": 16}}, "collectors.mode free .* set it to lockstep"),
        ({"algo": "ppo", "collectors": {"mode": "pipelined"}}, "collectors.mode pipelined .* set it to lockstep"),
        ({"algo": "ppo", "collectors": {"kind": "process"}}, r"stretch is 1, .* set it to algo_kwargs.n_steps \(16\)"),
        (
            {"algo": "dqn", "collectors": {"kind": "ray", "address": "here"}},
            "collectors.address: must be auto, or the host:port",
        ),
        ({"algo": "dqn", "collectors": {"kind": "process"}, "env_workers": "subprocess"}, "set env_workers: inline"),
        ({"algo": "dqn", "collectors": {"kind": "threads"}}, "collectors.kind"),
        ({"algo": "dqn", "collectors": {"cont": 3}}, "unknown key 'collectors.cont'; did you mean 'count'"),
        ({"algo": "dqn", "collectors": 3}, "collectors is a group of settings"),
    ],
)
def test_settings_that_do_not_fit(values: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        tiny_config(values.pop("algo"), **values)


def test_environments_that_cannot_be_elsewhere() -> None:
    away = tiny_config("dqn", env_from_python=True, collectors={"kind": "process"})
    with pytest.raises(ConfigError, match="pass a function that creates one instead of an environment"):
        Trainer(away, factory=GivenEnv(gym.make("CartPole-v1")))
    shared = tiny_config("dqn", env_from_python=True, num_envs=2, collectors={"count": 2})
    with pytest.raises(ConfigError, match="steps its members itself, so it cannot be shared out among collectors"):
        Trainer(shared, factory=lambda: gym.make_vec("CartPole-v1", num_envs=2))  # type: ignore[arg-type,return-value]


def test_the_usual_loop_cannot_become_another_one(tmp_path: Path) -> None:
    trained(tiny_config("dqn", output_dir=str(tmp_path / "run")), 30)
    with pytest.raises(ConfigError, match="kind cannot change in this run, which learns after every single step"):
        resume_training(
            tmp_path / "run", change=lambda config: with_overrides(config, ["collectors.kind=process"]), warn=pytest.fail
        )


def test_the_returns_of_those_that_explore_least_are_logged(tmp_path: Path) -> None:
    config = stretch_config("dqn", tmp_path / "run")
    data = config.model_dump(mode="json")
    config = config.with_values(num_envs=8, algo_kwargs={**data["algo_kwargs"], "epsilon_spread": 7.0})
    trainer = start_training(config, command="test")
    returns: list[float] = []

    class Watching:
        def on_episode(self, episode: Episode) -> None:
            if episode.env_index >= 6:
                returns.append(episode.episode_return)

    trainer.train(callbacks=[Watching()])
    trainer.close()
    assert len(returns) > 3
    assert trainer.train_metrics()["return_mean_lowest_epsilon"] == pytest.approx(np.mean(returns[-100:]))
    assert "return_mean_lowest_epsilon" not in EpisodeStatistics.of(stretch_config("dqn", tmp_path)).metrics()


@pytest.mark.parametrize(("within", "form"), [(ray_collectors.WITHIN_MESSAGE, bytes), (10, Reply)])
def test_an_actor_of_ray_packs_a_reply_unless_it_is_large(
    within: int, form: type, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_collectors, "WITHIN_MESSAGE", within)
    config = stretch_config("dqn", tmp_path)
    server = ray_collectors.Actor(Setup(config, None, None, Place(0, 2, 2)).to_bytes(), None)
    packed = server.play(pickle.dumps(Call(0, 8, 0, None)), None, __version__)
    assert isinstance(packed, form)
    reply = pickle.loads(packed) if isinstance(packed, bytes) else packed
    assert isinstance(reply, Reply)
    assert reply.error is None
    assert reply.answer is not None
    assert reply.answer.env_steps == 16
    assert ray_collectors.Actor(b"", None).play(b"", None, "9.9.9") == __version__


@pytest.mark.parametrize("processes", ["collectors={'kind': 'process', 'count': 2}", "env_workers='subprocess'"])
def test_a_script_that_would_train_again_in_each_process_is_told_so(processes: str, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(
        "import rl_training\n"
        f"agent = rl_training.DQN('CartPole-v1', num_envs=2, {processes}, learning_starts=50)\n"
        "agent.learn(200)\n"
    )
    done = finish_python(tmp_path / "program.py", cwd=tmp_path)
    assert done.returncode != 0
    assert "must train below if __name__ == '__main__':" in done.stderr
    assert "bootstrapping" not in done.stderr  # multiprocessing's own words, from each of them
