"""Benches that really train: they record, draw, stop, continue, and race a peer."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
import yaml
from conftest import env_of_tests, final_fingerprint, tiny_values
from moments import PATIENCE, start, wait_for_checkpoint, waiting_at
from test_bad_input import assert_refused
from test_bench import PEER
from test_bench import _few_resamples as _few_resamples
from test_bench import place as place

from rl_training.bench.jobs import Job
from rl_training.bench.machine import commit, machine, session
from rl_training.bench.references import Peer
from rl_training.bench.runner import locked
from rl_training.bench.store import load_results
from rl_training.cli import main
from rl_training.errors import ConfigError
from rl_training.experiment.run import step_directories
from rl_training.rng import FINAL_EPISODES, SELECTION_EPISODES
from rl_training.runtime.evaluation import EvaluationResult, Extent

BENCH = ("bench", "--references", "references.yaml", "--peers-file", "peers.yaml", "--runs", "runs")


def test_a_bench_trains_records_draws_and_runs_nothing_twice(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*BENCH]) == 0
    first = capsys.readouterr()
    assert "[2/2] " in first.err
    assert "pass: 2 of 2" in first.out
    runs = Path("runs")
    page = (runs / "benchmarks.md").read_text()
    assert "pass: 2 of 2" in page
    assert "charts/learning.svg" in page
    overview = page.split("<!-- overview: begin -->")[1].split("<!-- overview: end -->")[0]
    assert "charts/overview.svg" in overview
    assert re.search(r"\| tiny.yaml \| 240 .* pass: 2 of 2", overview)
    picture = (runs / "charts" / "learning.svg").read_bytes()
    assert b"tiny.yaml (2)" in picture
    results = load_results(runs / "learning.json")["tiny.yaml"]
    for seed in ("0", "1"):
        evaluation = json.loads((runs / "tiny" / f"seed{seed}" / "evaluation.json").read_text())
        assert results[seed]["return"] == evaluation["return_mean"]
        assert [step for step, _ in results[seed]["curve"]] == [90, 180]
        assert {"torch", "python"} <= set(results[seed]["versions"])
        assert results[seed]["commit"] == commit()
        assert results[seed]["machine"] == json.loads((runs / "tiny" / f"seed{seed}" / "machine.json").read_text())
    written = [path.stat().st_mtime_ns for path in sorted(runs.glob("tiny/seed*/*.json"))]
    assert main([*BENCH]) == 0
    assert main([*BENCH, "--report"]) == 0
    assert [path.stat().st_mtime_ns for path in sorted(runs.glob("tiny/seed*/*.json"))] == written
    assert (runs / "charts" / "learning.svg").read_bytes() == picture, "the same figures give the same picture"
    assert load_results(runs / "learning.json")["tiny.yaml"] == results
    shutil.rmtree(runs / "tiny")
    assert main([*BENCH, "--missing"]) == 0
    assert not (runs / "tiny").exists(), "the results are recorded already"
    assert "nothing is missing" in capsys.readouterr().err
    recorded = json.loads((runs / "learning.json").read_text())
    del recorded["tiny.yaml"]["0"]
    (runs / "learning.json").write_text(json.dumps(recorded))
    assert main([*BENCH, "--missing"]) == 0
    assert [path.parent.name for path in (runs / "tiny").glob("*/evaluation.json")] == ["seed0"], "the other is recorded"
    assert load_results(runs / "learning.json")["tiny.yaml"]["0"]["return"] == results["0"]["return"]
    assert_refused_after_a_change(capsys)


def assert_refused_after_a_change(capsys: pytest.CaptureFixture[str]) -> None:
    Path("tiny.yaml").write_text(yaml.safe_dump(tiny_values("dqn", algo_kwargs={"gamma": 0.9})))
    assert_refused(capsys, BENCH, "seed0", "another version of tiny.yaml")
    assert main([*BENCH, "--report"]) == 0
    assert "OUTDATED, the config has changed: pass: 2 of 2" in capsys.readouterr().out


@pytest.mark.slow  # several processes that import torch
def test_a_failing_run_is_named_and_the_others_continue(capsys: pytest.CaptureFixture[str]) -> None:
    Path("broken.yaml").write_text(yaml.safe_dump(tiny_values("dqn", env_id="NoSuchEnv-v0")))
    assert main([*BENCH, "broken.yaml", "tiny.yaml", "--seeds", "1"]) == 1
    shown = capsys.readouterr()
    assert "failed: broken.yaml seed 0" in shown.err
    assert "NoSuchEnv-v0" in shown.err
    assert list(load_results(Path("runs/learning.json"))) == ["tiny.yaml"]


@pytest.mark.slow  # six processes that import torch
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_a_stopped_bench_continues(number: signal.Signals) -> None:
    """Its runs notice, save and exit; the next bench finishes them bit for bit as if they had not been stopped."""
    evaluation = {"interval": 0, "final_episodes": 1, "num_envs": 1}
    values = tiny_values("dqn", **env_of_tests("dqn", "Waiting"), checkpoint={"interval": 40}, eval=evaluation)
    Path("tiny.yaml").write_text(yaml.safe_dump(values))
    main(["train", "--config", "tiny.yaml", "--output-dir", "whole", "--quiet"])
    command = (*BENCH, "--seeds", "1", "--jobs", "1")
    bench = start(*command, env=waiting_at(200))
    run = Path("runs/tiny/seed0")
    wait_for_checkpoint(run, bench)
    os.kill(bench.pid, number)
    _, errors = bench.communicate(timeout=PATIENCE)
    assert ("the same command continues them" in errors) == (number == signal.SIGINT)
    assert bench.returncode == (130 if number == signal.SIGINT else -number)
    with locked(Job("tiny.yaml", 0, Path("runs"))):  # once its process has ended
        assert not (run / "evaluation.json").exists(), "the run did not notice that its bench had gone"
    again = start(*command)
    _, errors = again.communicate(timeout=PATIENCE)
    assert again.returncode == 0, errors
    assert step_directories(run)
    assert final_fingerprint(run) == final_fingerprint(Path("whole"))


def test_a_peer_trains_on_our_task_and_races_us(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("stable_baselines3")
    from rl_training.bench.peers import train_peer
    from rl_training.bench.race import run_race

    peer = Peer.model_validate({**PEER, "normalize": True, "num_envs": 2, "steps": 1000})
    job = Job("tiny.yaml", 0, Path("runs"), peer)
    assert not job.is_finished()
    monkeypatch.setattr("rl_training.bench.jobs.commit", lambda: "abc")
    train_peer(job)
    monkeypatch.setattr("rl_training.bench.jobs.machine", lambda: "the machine that records it")
    result = job.outcome()
    assert result["machine"] == machine()
    assert result["same_episodes"] is True
    assert result["commit"] == "abc"
    assert result["session"] == session()
    assert result["steps"] == 240
    assert [step for step, _ in result["curve"]] == [90, 180]
    assert result["versions"]["stable-baselines3"]
    assert job.is_finished()
    other = Job("tiny.yaml", 1, Path("runs"), peer)
    shutil.copytree(job.path, other.path)
    assert other.is_finished()
    older = json.loads(job.result_file.read_text())
    del older["same_episodes"]
    other.result_file.write_text(json.dumps(older))
    with pytest.raises(ConfigError, match="not scored on the episodes of our runs"):
        other.is_finished()  # and --missing does not take it for what is missing
    (other.path / "machine.json").unlink()
    older = {key: value for key, value in older.items() if key not in ("machine", "versions")}
    other.result_file.write_text(json.dumps(older))
    assert other.outcome()["machine"] is None, "not that of this machine"
    assert "versions" not in other.outcome()
    changed = Job("tiny.yaml", 0, Path("runs"), peer.model_copy(update={"steps": 1}))
    with pytest.raises(ConfigError, match="another version"):
        changed.is_finished()
    affinity = os.sched_getaffinity(0)
    Path("race.yaml").write_text(yaml.safe_dump({**tiny_values("dqn"), "total_timesteps": 1000}))
    try:
        for goal, solved in ((1.0, True), (1e6, False)):
            for racer in (None, peer):
                race = Job("race.yaml", int(solved), Path("runs"), racer, goal)
                run_race(race)
                outcome = race.outcome()
                assert outcome["solved"] is solved
                assert outcome["cpu_seconds"] > 0
                assert outcome["commit"] == "abc"
                assert outcome["session"] == session()
    finally:
        os.sched_setaffinity(0, affinity)


def test_a_peer_is_scored_on_the_episodes_that_ours_is_scored_on() -> None:
    """Our policy in the place of the peer's model has our returns, in every evaluation, also if the environments play
    different numbers of episodes."""
    pytest.importorskip("stable_baselines3")
    from rl_training.bench.peers import PeerAgent
    from rl_training.runtime.trainer import Trainer

    task = {**env_of_tests("dqn", "RandomWalk"), "eval": {"num_envs": 3}}
    config = Job("tiny.yaml", 3, Path("runs")).load_config().with_values(**task)
    trainer = Trainer(config)
    agent = PeerAgent(Peer.model_validate(PEER), config, 3)

    class Ours:
        def predict(self, obs: Any, *_: Any, **__: Any) -> tuple[Any, None]:
            return trainer.policy.act(obs, ()).action, None

    agent.model = Ours()
    for episodes, stream in ((7, SELECTION_EPISODES), (8, FINAL_EPISODES), (7, SELECTION_EPISODES)):
        expected = trainer.evaluate(Extent(episodes), stream=stream)
        assert expected is not None
        first = agent.evaluate(episodes, stream)
        assert sorted(first) == pytest.approx(sorted(expected.returns))
        assert sorted(agent.evaluate(episodes, stream, further=True)) != pytest.approx(sorted(first))
    trainer.close()


def test_the_episodes_that_end_a_race_do_not_confirm_it(monkeypatch: pytest.MonkeyPatch) -> None:
    from rl_training.bench.race import EPISODES, EVERY, HELD, race_ours
    from rl_training.runtime.trainer import Trainer

    def evaluate(self: Trainer, extent: Extent, stop: Any = None, **options: Any) -> EvaluationResult:
        """The first episodes go well, the others 90 % as well."""
        returns = [500.0] * EPISODES + [450.0] * HELD
        return EvaluationResult(returns[: extent.episodes], [1] * extent.episodes)

    monkeypatch.setattr(Trainer, "evaluate", evaluate)
    config = Job("tiny.yaml", 0, Path("runs")).load_config().with_values(total_timesteps=EVERY)
    assert not race_ours(config, 455.0)["solved"]
    assert race_ours(config, 450.0)["solved"]


def test_a_race_has_one_evaluation_at_its_last_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the peer's, which has no final evaluation on other episodes."""
    from rl_training.bench.race import EVERY, race_ours
    from rl_training.runtime.trainer import Trainer

    streams = []

    def evaluate(self: Trainer, extent: Extent, stop: Any = None, *, stream: str = FINAL_EPISODES) -> EvaluationResult:
        streams.append((self.env_steps, stream))
        return EvaluationResult([1.0] * extent.episodes, [1] * extent.episodes)

    monkeypatch.setattr(Trainer, "evaluate", evaluate)
    config = Job("tiny.yaml", 0, Path("runs")).load_config().with_values(total_timesteps=2 * EVERY)
    assert not race_ours(config, 2.0)["solved"]
    assert streams == [(EVERY, SELECTION_EPISODES), (2 * EVERY, SELECTION_EPISODES)]


def test_neighbouring_seeds_of_a_peer_train_on_different_episodes() -> None:
    pytest.importorskip("stable_baselines3")
    from rl_training.bench.peers import PeerAgent

    config = Job("tiny.yaml", 0, Path("runs")).load_config()
    peer = Peer.model_validate({**PEER, "num_envs": 3})
    begun = [PeerAgent(peer, config, seed).model.get_env().reset() for seed in (3, 4, 3)]
    assert begun[0].tolist() == begun[2].tolist()
    assert not {tuple(obs) for obs in begun[0].tolist()} & {tuple(obs) for obs in begun[1].tolist()}


def test_a_race_begins_its_checks_of_both_sides_with_the_same_episodes(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("stable_baselines3")
    from rl_training.bench.peers import PeerAgent
    from rl_training.bench.race import EPISODES, EVERY, HELD, race_ours, race_peer
    from rl_training.runtime.trainer import Trainer

    checks: dict[str, list[tuple[int, str, bool]]] = {"ours": [], "peer": []}

    def ours(self: Trainer, extent: Extent, stop: Any = None, *, stream: str = FINAL_EPISODES) -> EvaluationResult:
        checks["ours"].append((extent.episodes, stream, False))
        return EvaluationResult([1.0] * extent.episodes, [1] * extent.episodes)

    def peer(self: PeerAgent, episodes: int, stream: str = FINAL_EPISODES, *, further: bool = False) -> list[float]:
        checks["peer"].append((episodes, stream, further))
        return [1.0] * episodes

    monkeypatch.setattr(Trainer, "evaluate", ours)
    monkeypatch.setattr(PeerAgent, "evaluate", peer)
    job = Job("tiny.yaml", 0, Path("runs"), Peer.model_validate({**PEER, "steps": 2 * EVERY}), 1.0)
    assert race_ours(job.load_config().with_values(total_timesteps=2 * EVERY), 1.0)["solved"]
    assert race_peer(job, 1.0)["solved"]
    assert checks["peer"][0] == checks["ours"][0] == (EPISODES, SELECTION_EPISODES, False)
    episodes, _, further = checks["peer"][1]
    assert (episodes, further) == (HELD, True)
    assert checks["ours"][1] == (EPISODES + HELD, SELECTION_EPISODES, False)  # the first of which do not count


def test_jobs_survive_serialisation() -> None:
    for job in (Job("a/b", 3, Path("runs")), Job("x.yaml", 1, Path("r"), Peer.model_validate(PEER), 475.0)):
        copy = Job.from_json(job.to_json())
        assert vars(copy) == vars(job)
        assert copy.path == job.path


def test_a_job_can_be_done_on_a_machine_that_shares_nothing(tmp_path: Path) -> None:
    """It takes its config along, and what the tables need comes back."""
    job = Job("tiny.yaml", 0, Path("runs"))
    away = Job.from_json(job.elsewhere().to_json())
    assert away.path == tmp_path / "runs" / "tiny" / "seed0"
    expected = job.load_config()
    Path("tiny.yaml").unlink()
    assert away.load_config() == expected.with_values(output_dir=str(away.path))
    away.path.mkdir(parents=True)
    written = {"config.yaml": expected.to_yaml(), "metadata.json": '{"python": "3", "versions": {}}', "machine.json": '"m"'}
    written |= {"metrics.jsonl": "", "evaluation.json": '{"return_mean": 7, "step": 9}'}
    for name, text in written.items():
        (away.path / name).write_text(text)
    (away.path / "checkpoint").write_text("large")
    files = away.result_files()
    assert files == written
    here = Job("tiny.yaml", 0, Path("here"), content=away.content)
    assert not here.is_finished()
    here.take_results(files)
    assert here.is_finished()
    assert here.outcome() == away.outcome()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("bench", "dqn/cartpol", "--runs", "runs"), ("unknown config 'dqn/cartpol'", "did you mean 'dqn/cartpole'?")),
        (("bench",), ("nothing to run", "--references")),
        (("bench", "tiny.yaml", "--seeds", "0"), ("--seeds", "must be at least 1, not 0")),
        (("bench", "--references", "missing.yaml"), ("cannot read missing.yaml",)),
        (("bench", "--references", "tiny.yaml"), ("tiny.yaml: algo",)),
        ((*BENCH, "dqn/cartpole", "--peers"), ("no peer", "'dqn/cartpole'", "tiny.yaml")),
        ((*BENCH, "dqn/cartpole", "--time-to-solve"), ("no time-to-solve race is defined for 'dqn/cartpole'",)),
        (("bench", "tiny.yaml", "--peers"), ("--peers-file",)),
        ((*BENCH, "--ray", "tiny.yaml"), ("--ray takes auto or the host:port", "'tiny.yaml'", "put --ray after the configs")),
        ((*BENCH, "--ray", "somewhere:0"), ("--ray takes auto or the host:port", "'somewhere:0'")),
        ((*BENCH, "--ray", "127.0.0.1:1"), ("nothing answers at the Ray address 127.0.0.1:1", "ray start --head")),
        ((*BENCH, "--time-to-solve", "--ray"), ("--time-to-solve", "cannot be combined with --ray")),
        ((*BENCH, "--time-to-solve", "--missing"), ("--time-to-solve", "cannot be combined with --missing")),
        ((*BENCH, "--report", "--missing"), ("--missing", "not allowed with", "--report")),
    ],
)
def test_mistakes_are_reported_before_anything_runs(
    arguments: tuple[str, ...], words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    if {"--peers", "--time-to-solve"} & set(arguments):
        pytest.importorskip("sb3_contrib")
    if "--ray" in arguments:
        pytest.importorskip("ray")
    assert_refused(capsys, arguments, *words)


@pytest.mark.parametrize(
    ("module", "option", "package", "extra"),
    [("rliable", "--seeds=1", "rliable", "bench"), ("stable_baselines3", "--peers", "stable-baselines3", "peers"),
     ("sb3_contrib", "--time-to-solve", "sb3-contrib", "peers"), ("ray", "--ray", "ray", "ray")],
)  # fmt: skip
def test_a_missing_extra_is_named(
    module: str, option: str, package: str, extra: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == module else find(name) or object())
    assert_refused(capsys, (*BENCH, "tiny.yaml", option), f"'{package}'", f"pip install 'rl-training[{extra}]'")
