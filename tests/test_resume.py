"""A run that is stopped and resumed ends bit for bit where it would have ended undisturbed."""

from __future__ import annotations

import json
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import (
    ALGORITHMS,
    EVERY_OPTION,
    FEW,
    OFF_POLICY,
    config_fields,
    env_of_tests,
    final_fingerprint,
    metrics_without_time,
    settings_of,
    tiny_config,
)

from rl_training.envs.pool import NonDeterministicEnvironment
from rl_training.errors import CheckpointError, ConfigError, EnvironmentFault
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.registry import get_algorithm
from rl_training.experiment.run import step_directories
from rl_training.runtime.sessions import resume_training, start_training
from rl_training.runtime.trainer import Trainer


def no_warning(message: str) -> None:
    raise AssertionError(f"unexpected: {message}")


def train_to(config: TrainConfig, stop_at: int | None = None) -> None:
    trainer = start_training(config, command="test")
    trainer.train(stop_at)
    trainer.close()


def resume_to(run: Path, stop_at: int | None = None, **options: Any) -> Trainer:
    trainer = resume_training(run, **{"warn": no_warning, **options})
    trainer.train(stop_at)
    trainer.close()
    return trainer


WholeRun = Callable[..., Path]


@pytest.fixture(scope="module")
def whole_run(tmp_path_factory: pytest.TempPathFactory) -> WholeRun:
    """Trains a config to its end without a stop, once for all tests of this module, which must not change the result."""
    runs: dict[str, Path] = {}

    def train(algo: str, **values: Any) -> Path:
        key = json.dumps([algo, values], sort_keys=True)
        if key not in runs:
            runs[key] = tmp_path_factory.mktemp(f"whole-{algo}") / "run"
            train_to(tiny_config(algo, **values, output_dir=str(runs[key])))
        return runs[key]

    return train


DISCRETE = [name for name in ALGORITHMS if "discrete" in get_algorithm(name).actions]
#: None is the environment of a tiny run; a name without version is one of the tests' own, in the algorithm's form
CASES: dict[str, tuple[str | None, int, str]] = {
    "one": (None, 1, "inline"),
    "two in processes": (None, 2, "subprocess"),
    "masked actions x2": ("rl_training_test_envs:Masked-v0", 2, "inline"),
    "random walk x4": ("RandomWalk", 4, "inline"),
}


#: The algorithms for which a case is fast. Worker processes know nothing of algorithms: one is enough, and ``make test-kill``
#: takes all.
FAST = {
    "one": FEW,
    "two in processes": ("r2d2",),
    "masked actions x2": ("dqn", "recurrent_ppo"),
    "random walk x4": ALGORITHMS,
}


def resumed(algo: str, case: str) -> Any:
    return pytest.param(algo, case, marks=[] if algo in FAST[case] else [pytest.mark.slow])


@pytest.mark.parametrize(("algo", "case"), [resumed(algo, case) for case in CASES for algo in ALGORITHMS])
def test_resume_is_bit_exact(algo: str, case: str, whole_run: WholeRun, tmp_path: Path) -> None:
    name, num_envs, workers = CASES[case]
    values: dict[str, Any] = {"num_envs": num_envs, "env_workers": workers, "total_timesteps": 160}
    if name is not None and ":" in name:
        if algo not in DISCRETE:
            pytest.skip("it has discrete actions")
        values["env_id"] = name
    elif name is not None:
        values |= env_of_tests(algo, name)
    parted = tmp_path / "parted"
    train_to(tiny_config(algo, **values, output_dir=str(parted)), stop_at=33)  # shortly after the warm-up
    resume_to(parted, stop_at=117)  # in the middle of episodes, away from every interval
    resume_to(parted)
    assert final_fingerprint(parted) == final_fingerprint(whole_run(algo, **values))


def test_resume_is_bit_exact_with_every_option(algo: str, tmp_path: Path) -> None:
    values: dict[str, Any] = {
        "num_envs": 3,
        "seed": 11,
        "total_timesteps": 160,
        "algo_kwargs": settings_of(algo, EVERY_OPTION),
    }
    whole, parted = tmp_path / "whole", tmp_path / "parted"
    train_to(tiny_config(algo, **values, output_dir=str(whole)))
    train_to(tiny_config(algo, **values, output_dir=str(parted)), stop_at=100)
    resume_to(parted)
    assert final_fingerprint(parted) == final_fingerprint(whole)


@pytest.mark.parametrize(
    ("algo", "prioritized"),
    [
        (name, prioritized)
        for name in DISCRETE
        if "frame_stack" in config_fields(name)
        for prioritized in ((False, True) if "prioritized" in config_fields(name) else (False,))
    ],
)
def test_resume_is_bit_exact_with_images(algo: str, prioritized: bool, tmp_path: Path) -> None:
    values: dict[str, Any] = {
        "env_id": "rl_training_test_envs:ImageWalk-v0",
        "num_envs": 2,
        "total_timesteps": 100,
        "algo_kwargs": {
            "frame_stack": 3,
            "buffer_size": 90,
            "train_freq": 4,
            **settings_of(
                algo,
                {"prioritized": prioritized, "cnn_layers": [[4, 8, 4]], "n_step": 2, "burn_in": 2, "previous_inputs": True},
            ),
        },
    }
    whole, parted = tmp_path / "whole", tmp_path / "parted"
    train_to(tiny_config(algo, **values, output_dir=str(whole)))
    train_to(tiny_config(algo, **values, output_dir=str(parted)), stop_at=63)
    resume_to(parted)
    assert final_fingerprint(parted) == final_fingerprint(whole)


def test_continuing_to_a_larger_total_equals_one_long_run(algo: str, whole_run: WholeRun, tmp_path: Path) -> None:
    long = whole_run(algo, num_envs=1, env_workers="inline", total_timesteps=160)  # shared with the case "one"
    extended = tmp_path / "extended"
    train_to(tiny_config(algo, num_envs=1, env_workers="inline", total_timesteps=110, output_dir=str(extended)))
    resume_to(extended, total_timesteps=160)
    assert final_fingerprint(extended) == final_fingerprint(long)


def test_a_run_stopped_before_its_first_checkpoint_starts_over(whole_run: WholeRun, tmp_path: Path) -> None:
    early = tmp_path / "early"
    start_training(tiny_config("dqn", output_dir=str(early)), command="test").close()
    (early / "metrics.jsonl").write_text('{"kind": "train", "step": 25}\n')  # what it had logged by then
    resume_to(early)
    assert final_fingerprint(early) == final_fingerprint(whole_run("dqn"))


@pytest.fixture
def finished(whole_run: WholeRun, tmp_path: Path) -> Path:
    """A finished run that a test may change."""
    return Path(shutil.copytree(whole_run("dqn"), tmp_path / "finished", symlinks=True))


def test_resume_from_an_older_checkpoint_of_the_run(finished: Path, whole_run: WholeRun) -> None:
    oldest = step_directories(finished)[-1]
    assert oldest.name < step_directories(finished)[0].name
    resume_to(oldest)
    assert final_fingerprint(finished) == final_fingerprint(whole_run("dqn"))


def test_a_rewound_run_continues_from_where_it_was_rewound_to(finished: Path, whole_run: WholeRun) -> None:
    resume_to(step_directories(finished)[-1], stop_at=150)
    assert step_directories(finished)[0].name == "step-0000000150"
    assert (finished / "checkpoints" / "latest").resolve().name == "step-0000000150"
    resume_to(finished)
    assert final_fingerprint(finished) == final_fingerprint(whole_run("dqn"))


def test_a_log_that_lost_lines_causes_a_warning_and_is_not_padded(tmp_path: Path) -> None:
    run = tmp_path / "run"
    train_to(tiny_config("dqn", output_dir=str(run)), stop_at=150)
    (run / "metrics.jsonl").write_text("")
    with pytest.warns(UserWarning, match="lines are missing"):
        resume_to(run)
    assert b"\0" not in (run / "metrics.jsonl").read_bytes()


def test_the_best_checkpoint_cannot_be_resumed_and_the_run_stays_as_it_is(finished: Path) -> None:
    config = (finished / "config.yaml").read_text()
    with pytest.raises(CheckpointError, match="only the policy"):
        resume_training(finished / "checkpoints" / "best", total_timesteps=999, warn=no_warning)
    assert (finished / "config.yaml").read_text() == config


def test_two_runs_of_one_seed_are_equal_and_of_two_seeds_are_not(algo: str, tmp_path: Path) -> None:
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        train_to(tiny_config(algo, seed=seed, total_timesteps=60, output_dir=str(tmp_path / name)))
    first, second, other = (final_fingerprint(tmp_path / name) for name in "abc")
    assert first == second
    assert first["files"]["policy.safetensors"] != other["files"]["policy.safetensors"]


def test_evaluation_and_logging_do_not_disturb_training(algo: str, tmp_path: Path) -> None:
    busy, calm = tmp_path / "busy", tmp_path / "calm"
    for run, log, evaluations in ((busy, 1, 20), (calm, 1000, 0)):
        values = {
            "log": {"interval": log},
            "eval": {"interval": evaluations, "episodes": 1, "final_episodes": 1, "num_envs": 1},
        }
        train_to(tiny_config(algo, total_timesteps=80, output_dir=str(run), **values))
    first, second = final_fingerprint(busy)["files"], final_fingerprint(calm)["files"]
    for name in ("policy.safetensors", "training.safetensors", "replay.safetensors"):
        assert first.get(name) == second.get(name)


@pytest.mark.parametrize("algo", OFF_POLICY)
def test_resume_without_a_replay_warns_and_refills_it(algo: str, tmp_path: Path) -> None:
    run = tmp_path / "run"
    checkpoint = {"interval": 70, "replay_every": 0}
    values: dict[str, Any] = {**env_of_tests(algo, "Counting"), "total_timesteps": 160, "checkpoint": checkpoint}
    train_to(tiny_config(algo, **values, output_dir=str(run)), stop_at=70)
    warned: list[str] = []
    trainer = resume_training(run, warn=warned.append)
    before = trainer.learner.updates
    trainer.train(85)
    assert trainer.learner.updates == before  # the empty replay is filled first
    trainer.train(160)
    assert trainer.learner.updates > before
    trainer.close()
    assert any("holds no replay" in message for message in warned)


def test_the_replay_goes_into_every_kth_checkpoint(tmp_path: Path) -> None:
    whole, parted = tmp_path / "whole", tmp_path / "parted"
    checkpoint = {"interval": 30, "replay_every": 2, "keep": 4}
    train_to(tiny_config("dqn", output_dir=str(whole), checkpoint=checkpoint))
    train_to(tiny_config("dqn", output_dir=str(parted), checkpoint=checkpoint), stop_at=100)
    newest, *others = step_directories(parted)
    assert (newest / "replay.safetensors").exists()  # the one written when the run stopped
    assert not (parted / "checkpoints" / "step-0000000060" / "replay.safetensors").exists()
    assert others
    # as if killed after the second one was written: the run continues from the newest with a replay
    for path in step_directories(parted):
        if path.name > "step-0000000060":
            path.rename(tmp_path / path.name)
    trainer = resume_training(parted, warn=no_warning)
    assert trainer.env_steps == 30
    trainer.train()
    trainer.close()
    assert final_fingerprint(parted) == final_fingerprint(whole)


def test_a_non_deterministic_environment_causes_a_warning_and_training_continues(algo: str, tmp_path: Path) -> None:
    run = tmp_path / "run"
    train_to(tiny_config(algo, **env_of_tests(algo, "Forgetful"), total_timesteps=100, output_dir=str(run)), stop_at=50)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trainer = resume_to(run)
    assert trainer.env_steps == 100
    assert any(issubclass(item.category, NonDeterministicEnvironment) for item in caught)


@pytest.mark.parametrize("fault", ["raise", "nan", "reset"])
def test_a_run_with_a_fault_is_saved_and_continues_once_it_is_fixed(
    algo: str, fault: str, whole_run: WholeRun, tmp_path: Path
) -> None:
    if fault == "nan" and "vector" not in get_algorithm(algo).observations:
        pytest.skip("bytes are always finite")
    mended = tmp_path / "mended"
    values: dict[str, Any] = {**env_of_tests(algo, "Faulty"), "num_envs": 2, "total_timesteps": 100}
    sound_run = whole_run(algo, **values, env_kwargs={"mended": "/"})  # the file exists: never faulty
    env_kwargs = {"fault": fault, "mended": str(mended)}
    config = tiny_config(algo, **values, env_kwargs=env_kwargs, output_dir=str(tmp_path / "broken"))
    trainer = start_training(config, command="test")
    with pytest.raises(EnvironmentFault, match="rl-training resume") as caught:
        trainer.train()
    trainer.close()
    reports = list((tmp_path / "broken").glob("fault-step-*.json"))
    assert len(reports) == 1
    assert str(caught.value.episode_seed) in reports[0].read_text()
    mended.touch()
    resume_to(tmp_path / "broken")
    broken, sound = final_fingerprint(tmp_path / "broken"), final_fingerprint(sound_run)
    assert broken["metrics"] == sound["metrics"]
    for name in ("policy.safetensors", "training.safetensors", "replay.safetensors", "training.json"):
        assert broken["files"].get(name) == sound["files"].get(name)


def test_a_smaller_total_is_refused(finished: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="already at step 240"):
        resume_training(finished, total_timesteps=100, warn=no_warning)
    with pytest.raises(CheckpointError, match="no run"):
        resume_training(tmp_path / "nothing", warn=no_warning)


def test_resume_cuts_the_log_back_to_the_checkpoint(tmp_path: Path) -> None:
    run = tmp_path / "run"
    train_to(tiny_config("dqn", output_dir=str(run)), stop_at=150)
    before = metrics_without_time(run)
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"kind": "train", "step": 175, "half a li')
    resume_to(run, stop_at=151)
    assert metrics_without_time(run) == before
