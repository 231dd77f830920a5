"""What may change in a run that goes on, what may not, and a config that was edited by hand."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from conftest import ALGORITHMS, final_fingerprint, tiny_config

from rl_training import DQN, QRDQN, managed
from rl_training.algorithms.strict_model import may_change
from rl_training.cli import main
from rl_training.errors import ConfigError
from rl_training.experiment.changes import changeable, with_overrides
from rl_training.experiment.metrics import read_metrics
from rl_training.experiment.registry import get_algorithm
from rl_training.experiment.run import step_directories
from rl_training.runtime.sessions import resume_training, start_training
from rl_training.runtime.trainer import Trainer


@pytest.fixture(scope="module")
def half(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of DQN that was stopped after half of its steps."""
    path = tmp_path_factory.mktemp("changes") / "half"
    train_to(path, 120)
    return path


@pytest.fixture
def run(half: Path, tmp_path: Path) -> Path:
    return shutil.copytree(half, tmp_path / "run", symlinks=True)


def train_to(path: Path, stop_at: int | None, algo: str = "dqn", **values: Any) -> None:
    trainer = start_training(tiny_config(algo, output_dir=str(path), **values), command="test")
    trainer.train(stop_at)
    trainer.close()


def resume(run: Path, *overrides: str, stop_at: int | None = None) -> Trainer:
    trainer = resume_training(run, change=lambda config: with_overrides(config, overrides), command="test", warn=pytest.fail)
    trainer.train(stop_at)
    trainer.close()
    return trainer


def changes_of(run: Path) -> list[dict[str, Any]]:
    notes: list[dict[str, Any]] = json.loads((run / "metadata.json").read_text())["changes"]
    return notes


# ------------------------------------------------------------------------------------------------------- what may change


def test_a_changed_run_continues_with_the_new_settings_and_says_so_everywhere(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--set", "algo_kwargs.learning_rate=0.0001", "--set", "log.interval=10", "--set", "total_timesteps=200"]
    assert main(["resume", str(run), *options]) == 0
    assert "changed: log.interval 25 -> 10, algo_kwargs.learning_rate 0.001 -> 0.0001" in capsys.readouterr().err
    (note,) = changes_of(run)
    assert (note["step"], note["command"][:20]) == (120, "rl-training resume /")
    assert note["settings"] == {
        "total_timesteps": {"from": 240, "to": 200},
        "log.interval": {"from": 25, "to": 10},
        "algo_kwargs.learning_rate": {"from": 0.001, "to": 0.0001},
    }
    (line,) = read_metrics(run, "change")
    assert (line["step"], line["algo_kwargs.learning_rate"], line["log.interval"]) == (120, 0.0001, 10)
    rates = {record["step"]: record["learning_rate"] for record in read_metrics(run, "train")}
    assert {rates[step] for step in rates if step < 120} == {0.001}
    assert {rates[step] for step in rates if step >= 120} == {0.0001}
    assert {130, 140, 200} <= rates.keys()
    config = yaml.safe_load((run / "config.yaml").read_text())
    assert (config["algo_kwargs"]["learning_rate"], config["log"]["interval"], config["total_timesteps"]) == (0.0001, 10, 200)


def test_a_run_resumed_without_changes_is_bit_exact_and_records_nothing(half: Path, run: Path, tmp_path: Path) -> None:
    before = (run / "metadata.json").read_bytes(), (run / "config.yaml").read_bytes()
    resume(run)
    train_to(tmp_path / "whole", None)
    assert final_fingerprint(run) == final_fingerprint(tmp_path / "whole")
    assert ((run / "metadata.json").read_bytes(), (run / "config.yaml").read_bytes()) == before


def test_a_value_that_is_the_same_is_no_change(run: Path) -> None:
    resume(run, "algo_kwargs.learning_rate=1e-3", "algo_kwargs.batch_size=8", "seed=0", stop_at=130)
    assert changes_of(run) == []
    assert read_metrics(run, "change") == []


def test_a_change_survives_a_kill_before_the_next_checkpoint(run: Path, tmp_path: Path) -> None:
    """The run that was killed right after the change ends as the one that was not."""
    other = shutil.copytree(run, tmp_path / "other", symlinks=True)
    override = "algo_kwargs.learning_rate={kind: linear, from: 1e-3, to: 1e-5, steps: 200}"
    killed = resume_training(run, change=lambda config: with_overrides(config, [override]), warn=pytest.fail)
    killed.close()  # nothing is saved
    resume(run)
    resume(other, override)
    assert final_fingerprint(run) == final_fingerprint(other)
    assert len(read_metrics(run, "change")) == len(changes_of(run)) == 1


def test_a_kill_between_the_two_files_of_a_change_loses_neither(run: Path) -> None:
    config = (run / "config.yaml").read_text()
    resume(run, "algo_kwargs.learning_rate=1e-4", stop_at=120)
    (run / "config.yaml").write_text(config)  # metadata.json is written first
    warned: list[str] = []
    trainer = resume_training(run, warn=warned.append)
    trainer.close()
    assert trainer.config.algo_kwargs.learning_rate == 1e-4
    assert warned == [
        f"algo_kwargs.learning_rate is 0.001 in {run}/config.yaml, but the run was left with 0.0001, as metadata.json "
        "records, and continues with that; change it with --set"
    ]
    assert "learning_rate: 0.0001" in (run / "config.yaml").read_text()


def test_a_longer_run_with_changes_keeps_them_all(run: Path) -> None:
    resume(run, "eval.interval=50", stop_at=130)
    resume(run, "checkpoint.keep=1", "total_timesteps=300", stop_at=150)
    resume(run)
    assert [[*note["settings"]] for note in changes_of(run)] == [
        ["eval.interval"],
        ["total_timesteps", "checkpoint.keep"],
    ]
    assert len(step_directories(run)) <= 2
    assert [record["step"] for record in read_metrics(run, "eval")] == [90, 140, 190, 240, 290]


def test_evaluations_that_are_asked_for_are_not_cut_by_the_budget(tmp_path: Path) -> None:
    train_to(tmp_path / "run", 100, eval={"num_envs": 2})
    with_budget = resume(tmp_path / "run", "eval.num_envs=1", stop_at=110).config.eval
    assert with_budget.budget == 0.1
    asked = resume(tmp_path / "run", "eval.final_episodes=3", stop_at=120).config.eval
    assert (asked.final_episodes, asked.budget) == (3, None)
    both = resume(tmp_path / "run", "eval.final_episodes=4", "eval.budget=0.2").config.eval
    assert (both.final_episodes, both.budget) == (4, 0.2)


def test_a_group_can_be_given_in_part(run: Path) -> None:
    before = yaml.safe_load((run / "config.yaml").read_text())["eval"]
    config = resume(run, "eval={interval: 50}", stop_at=130).config
    assert config.describe()["eval"] == {**before, "interval": 50}


def test_a_total_is_given_once(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["resume", str(run), "--set=total_timesteps=300", "--total-timesteps=400"]) == 2
    assert "total_timesteps is given twice, with --set and as --total-timesteps" in capsys.readouterr().err


def test_a_change_that_comes_too_late_is_a_warning(run: Path) -> None:
    warned: list[str] = []
    overrides = ["total_timesteps=120", "algo_kwargs.learning_rate=1e-4"]
    resume_training(run, change=lambda config: with_overrides(config, overrides), warn=warned.append).close()
    (line,) = warned
    assert line.startswith("the run is over at step 120, so it never uses the new algo_kwargs.learning_rate; give it")


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_every_declared_setting_can_be_changed(algo: str, tmp_path: Path) -> None:
    """A run with all of its schedules and some of its other settings changed at once."""
    run = tmp_path / "run"
    train_to(run, 120, algo)
    settings = get_algorithm(algo).config_class
    new: dict[str, str] = {
        "learning_rate": "5e-4",
        "max_grad_norm": "1.0",
        "exploration_steps": "50",
        "entropy_coef": "{kind: linear, from: 0.1, to: 0.0, steps: 200}",
        "clip_range": "0.1",
        "priority_beta": "0.9",
        "priority_beta_steps": "77",
        "noise_steps": "60",
        "exploration_noise": "0.3",
    }
    own = [f"algo_kwargs.{name}={value}" for name, value in new.items() if name in settings.model_fields]
    assert all(may_change(settings, override.partition("=")[0].removeprefix("algo_kwargs.")) for override in own)
    common = ["eval.episodes=1", "checkpoint.interval=30", "log.interval=7", "threads=2", "env_timeout=60"]
    trainer = resume(run, *own, *common)
    assert trainer.env_steps >= 240
    assert trainer.algorithm.schedule_values(240)["learning_rate"] == 5e-4
    given = {override.partition("=")[0] for override in (*own, *common)}
    assert changes_of(run)[0]["settings"].keys() == given


def test_epsilon_and_its_decay_replace_one_another(tmp_path: Path) -> None:
    train_to(tmp_path / "run", 100, algo_kwargs={"exploration_steps": 50, "exploration_final_eps": 0.2})
    changes = (("epsilon=0.02", 0.02, 10_000), ("exploration_steps=70", None, 70), ("epsilon=null", None, 70))
    for k, (override, epsilon, steps) in enumerate(changes):
        settings: Any = resume(tmp_path / "run", f"algo_kwargs.{override}", stop_at=110 + 10 * k).config.algo_kwargs
        assert (settings.epsilon, settings.exploration_steps) == (epsilon, steps)


def test_a_learning_rate_that_would_have_no_effect_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run"
    train_to(run, 120, algo_kwargs={"learning_rate": 1e-3, "final_learning_rate": 1e-4, "learning_rate_decay_steps": 100})
    assert main(["resume", str(run), "--set=algo_kwargs.learning_rate=5e-4"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert (
        "algo_kwargs.learning_rate=0.0005 has no effect at step 120, because final_learning_rate=0.0001 is in force" in line
    )
    assert changes_of(run) == []
    advised = line.partition("; add ")[2].replace("--set ", "").split()
    trainer = resume(run, "algo_kwargs.learning_rate=5e-4", *advised, stop_at=130)
    assert trainer.algorithm.schedule_values(130)["learning_rate"] == 5e-4


def test_a_change_is_recorded_again_if_the_run_is_stepped_back_before_it(run: Path) -> None:
    resume(run, "algo_kwargs.learning_rate=1e-4", "checkpoint.keep=9", stop_at=150)  # at step 120
    resume(run, "algo_kwargs.learning_rate=1e-5", stop_at=180)  # at step 150
    first = next(path for path in step_directories(run) if path.name.endswith("120"))
    resume(first, stop_at=130)
    resume(run, stop_at=140)
    expected = [(120, 1e-3, 1e-4), (150, 1e-4, 1e-5), (120, 1e-3, 1e-5)]
    notes = [(note["step"], note["settings"]["algo_kwargs.learning_rate"]) for note in changes_of(run)]
    assert [(step, change["from"], change["to"]) for step, change in notes] == expected


# --------------------------------------------------------------------------------------------------- what may not change


@pytest.mark.parametrize(
    ("override", "key"),
    [
        ("algo_kwargs.hidden_sizes=[8]", "algo_kwargs.hidden_sizes"),
        ("algo_kwargs.buffer_size=999", "algo_kwargs.buffer_size"),
        ("algo_kwargs.batch_size=9", "algo_kwargs.batch_size"),
        ("algo_kwargs.gamma=0.5", "algo_kwargs.gamma"),
        ("algo_kwargs.network=my_nets:make", "algo_kwargs.network"),
        ("env_id=Acrobot-v1", "env_id"),
        ("env_kwargs={render_mode: rgb_array}", "env_kwargs"),
        ("num_envs=2", "num_envs"),
        ("seed=5", "seed"),
        ("algo=ppo", "algo"),
    ],
)
def test_what_may_not_change_is_refused_by_name(
    override: str, key: str, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = {path: path.read_bytes() for path in run.rglob("*") if path.is_file() and not path.is_symlink()}
    assert main(["resume", str(run), f"--set={override}"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: {key} cannot change in a run that has begun; what can: env_workers, env_timeout, ")
    assert "eval.*" in line
    assert "algo_kwargs.learning_rate" in line
    assert "--init-from" in line
    assert {path: path.read_bytes() for path in files} == files


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("algo_kwargs.learning_rat=1", "did you mean 'learning_rate'"),
        ("learning_rate=1", "did you mean 'algo_kwargs.learning_rate'"),
        ("algo_kwargs.learning_rate=-1", "algo_kwargs.learning_rate: input should be greater than 0"),
        ("total_timesteps=100", "is already at step 120; its total_timesteps must be at least that, not 100"),
        ("algo_kwargs.learning_rate", "--set takes key=value"),
    ],
)
def test_a_mistake_in_a_change_is_one_sentence(
    override: str, words: str, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["resume", str(run), f"--set={override}"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert words in line
    assert changes_of(run) == []


def test_every_algorithm_declares_its_schedules(capsys: pytest.CaptureFixture[str]) -> None:
    for algo in ALGORITHMS:
        keys = changeable(get_algorithm(algo).config_class)
        assert {"total_timesteps", "eval.*", "log.*", "checkpoint.*", "algo_kwargs.learning_rate"} <= set(keys)
        for fixed in ("seed", "algo", "env_id", "num_envs", "wrappers"):
            assert fixed not in keys
        for name, field in get_algorithm(algo).config_class.model_fields.items():
            if "schedule" in str(field.description):
                assert f"algo_kwargs.{name}" in keys, (algo, name)
    assert main(["show", "dqn"]) == 0
    assert "what resume --set can change: env_workers, " in capsys.readouterr().out


# ----------------------------------------------------------------------------------------------------------- from Python


def test_resume_and_load_take_settings(run: Path, tmp_path: Path) -> None:
    agent = DQN.resume(run, learning_rate=1e-4, eval={"interval": 0})
    assert (agent.config.algo_kwargs.learning_rate, agent.config.eval.interval, agent.config.eval.num_envs) == (1e-4, 0, 2)
    agent.learn(150)
    agent.save(tmp_path / "saved", full=True)
    agent.close()
    assert changes_of(run)[0]["command"] == "DQN.resume"
    loaded = DQN.load(tmp_path / "saved", learning_rate=2e-4)
    loaded.learn(160)
    assert loaded.config.algo_kwargs.learning_rate == 2e-4
    loaded.close()
    for make in (DQN.load, DQN.resume):
        with pytest.raises(ConfigError, match=r"^algo_kwargs.hidden_sizes cannot change in a run that has begun; what can: "):
            make(run, hidden_sizes=[3])
        with pytest.raises(ConfigError, match="DQN has no setting 'learning_rat'"):
            make(run, learning_rat=3)


def test_a_run_of_another_class_is_refused_before_anything_changes(run: Path) -> None:
    files = {path: path.read_bytes() for path in run.rglob("*") if path.is_file() and not path.is_symlink()}
    with pytest.raises(ConfigError, match=r"is a run of dqn; resume it with DQN.resume$"):
        QRDQN.resume(run, learning_rate=5e-4)
    with pytest.raises(ConfigError, match=r"holds a dqn agent; load it with DQN.load$"):
        QRDQN.load(run, learning_rate=5e-4)
    assert {path: path.read_bytes() for path in files} == files


def test_the_output_directory_cannot_change(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for make in (DQN.load, DQN.resume):
        with pytest.raises(ConfigError, match=r"^output_dir cannot change in a run that has begun"):
            make(run, output_dir=str(tmp_path / "other"))
    assert main(["resume", str(run), f"--set=output_dir={tmp_path}/other"]) == 2
    assert "output_dir cannot change" in capsys.readouterr().err


def test_a_loaded_agent_evaluates_if_it_is_given_evaluations(run: Path) -> None:
    given: tuple[dict[str, Any], ...] = ({"eval": {"final_episodes": 1}}, {})
    for settings in given:
        with DQN.load(run, **settings) as agent:
            result = agent.learn(130).result
            assert result is not None
            assert (result.evaluation is not None) == bool(settings)


def test_a_new_total_from_python_is_recorded(run: Path) -> None:
    with DQN.resume(run) as agent:
        agent.learn(300)
    assert [note["settings"] for note in changes_of(run)] == [{"total_timesteps": {"from": 240, "to": 300}}]
    with managed("dqn").resume(run) as agent:  # unedited
        assert agent.config.total_timesteps == 300
