"""Bad words get one sentence: values, environments, observations and sizes that cannot be used, each named with its fix."""

from __future__ import annotations

import contextlib
import os
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import tiny_config
from misbehaving_envs import FailsElsewhere, MisbehavingEnv
from test_bad_input import assert_refused

from rl_training.cli import main
from rl_training.envs.checks import ObservationOutsideSpace
from rl_training.envs.pool import SeededEnvPool
from rl_training.errors import ConfigError, EnvironmentFault, RLTrainingError, SpaceError, one_line, shown
from rl_training.experiment.config import load_config_data
from rl_training.runtime.setup import make_pool

pytestmark = pytest.mark.usefixtures("place")
TRAIN = ("train", "--config", "tiny.yaml", "--quiet")
MISBEHAVING = "--env=misbehaving_envs:Misbehaving-v0"


# ------------------------------------------------------------------------------------------------------------- YAML

BAD_YAML = [
    ("!!int q", ("'q' is not a whole number",)),
    ("!!float x", ("'x' is not a number",)),
    ("!!bool maybe", ("'maybe' is not true or false",)),
    ("!!timestamp nope", ("'nope' is not a date",)),
    ("!!timestamp 2020-01-01", ("it holds a date", "give text")),
    ("!!set {a}", ("it holds a set",)),
    ("{[a]: 1}", ("the key ['a'] is not text", "in quotes")),
    ("{1: 2}", ("the key 1 is not text", "in quotes")),
    ("&a [*a]", ("more than 50 levels deep, or contains itself",)),
    ("[" * 400 + "]" * 400, ("more than 50 levels deep",)),
    ("9" * 5000, ("is too large", "whole numbers go up to 9223372036854775807")),
    ("0x" + "f" * 5000, ("has 20000 bits", "numbers go up to")),
    ('"a\\0b"', ("contains a NUL character",)),
    ('"\\ud800"', ("not Unicode text",)),
]


@pytest.mark.parametrize(("text", "words"), BAD_YAML, ids=lambda value: ascii(value)[:24])
def test_bad_yaml(text: str, words: tuple[str, ...], finished_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert_refused(capsys, (*TRAIN, f"--set=env_kwargs.x={text}"), "--set env_kwargs.x=", *words)
    Path("bad.yaml").write_text(f"algo: dqn\nenv_id: CartPole-v1\nenv_kwargs:\n  x: {text}\n")
    assert_refused(capsys, ("train", "--config", "bad.yaml"), "bad.yaml", *words)
    Path("run").mkdir()
    Path("run/config.yaml").write_text(f"algo: dqn\nenv_id: CartPole-v1\nenv_kwargs:\n  x: {text}\n")
    assert_refused(capsys, ("resume", "run"), "run/config.yaml", *words)


@pytest.mark.parametrize("date", ["2020-99-99", "2020-01-01", "2020-01-01 12:00:00"])
def test_a_date_is_text_and_no_number(date: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert_refused(capsys, (*TRAIN, f"--set=seed={date}"), "seed", "integer", f"'{date}'")
    Path("dates.yaml").write_text(f"algo: dqn\nenv_kwargs: {{day: {date}}}\n")
    assert load_config_data("dates.yaml")["env_kwargs"] == {"day": date}


def test_a_nul_byte_in_a_file(capsys: pytest.CaptureFixture[str]) -> None:
    Path("bad.yaml").write_bytes(b"algo: dqn\0\n")
    assert_refused(capsys, ("train", "--config", "bad.yaml"), "bad.yaml is not valid YAML", "#x0000")


def test_a_text_that_would_unfold_to_gigabytes(capsys: pytest.CaptureFixture[str]) -> None:
    lines = ["l0: &l0 [x]", *(f"l{i}: &l{i} [{', '.join([f'*l{i - 1}'] * 10)}]" for i in range(1, 12))]
    Path("bomb.yaml").write_text("\n".join(lines))
    assert_refused(capsys, ("train", "--config", "bomb.yaml"), "bomb.yaml cannot be used", "more than 100000 values")


def test_several_lines_become_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert str(RLTrainingError("a\n  b\r\n\x1b[31mc\0")) == "a b \\x1b[31mc\\x00"
    assert one_line("plain text stays, even with  two spaces") == "plain text stays, even with  two spaces"
    assert_refused(capsys, (*TRAIN, "--env", "no\nsuch\nplace"), "no such place")
    assert shown(10**5000).startswith("a int that cannot be shown")
    assert len(shown("x" * 10_000)) < 210


@pytest.mark.parametrize("algo", [".foo:bar", "..:x", "a\nb"])
def test_an_algorithm_that_cannot_be_imported(algo: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert_refused(capsys, (*TRAIN, "--algo", algo), "algo")


# ----------------------------------------------------------------------------------- environments that cannot be made


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            ("--env=FrozenLake-v1", "--set=env_kwargs.map_name=nope"),
            ("FrozenLake-v1 cannot be created", "'nope'"),
        ),
        (("--set=env_kwargs.max_episode_steps=0",), ("CartPole-v1 cannot be created", "max_episode_steps")),
        (
            ("--set=env_kwargs.max_episode_steps=many",),
            ("CartPole-v1 does not take env_kwargs", "max_episode_steps", "'many'"),
        ),
        (
            (MISBEHAVING, "--set=env_kwargs.space=foreign text", "--set=wrappers=[{name: flatten_observation}]"),
            ("Misbehaving-v0", "in reset", "KeyError"),
        ),
        (("--set=env_kwargs.render_mode=3",), ("CartPole-v1", "3")),
        (("--env=.foo:bar",), ("env_id '.foo:bar': cannot import the module '.foo'",)),
        (("--env=test_bad_words_missing.x:bar",), ("cannot import the module 'test_bad_words_missing.x'",)),
        ((MISBEHAVING, "--set=env_kwargs.about=init"), ("cannot be created", "LookupError: no such robot at all")),
        ((MISBEHAVING, "--set=env_kwargs.about=init-exit"), ("cannot be created", "SystemExit: I would rather not")),
        ((MISBEHAVING, "--set=env_kwargs.about=no-space"), ("has no observation_space", "set it to a gymnasium space")),
        ((MISBEHAVING, "--set=env_kwargs.space=empty"), ("empty observation_space", "(0,)")),
        ((MISBEHAVING, "--set=env_kwargs.space=text"), ("Text observations", "flatten_observation")),
        (
            (MISBEHAVING, "--set=env_kwargs.space=text", "--set=wrappers=[{name: scale_observation, factors: [1]}]"),
            ("scale_observation works on vectors",),
        ),
    ],
    ids=lambda value: " ".join(value)[:60],
)
def test_environments_that_cannot_be_made(
    arguments: tuple[str, ...], words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert_refused(capsys, (*TRAIN, *arguments), *words)


@pytest.mark.parametrize(
    ("package", "env", "argument", "words"),
    [
        ("mujoco", "Hopper-v5", "xml_file=/nope.xml", ("Hopper-v5 cannot be created", "/nope.xml")),
        ("ale_py", "ALE/Pong-v5", "mode=99", ("ALE/Pong-v5 cannot be created", "Invalid game mode")),
        ("ale_py", "ALE/Pong-v5", "difficulty=77", ("ALE/Pong-v5 cannot be created", "Invalid difficulty")),
    ],
)
def test_environments_of_other_packages_that_cannot_be_made(
    package: str, env: str, argument: str, words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip(package)
    algo = "sac" if package == "mujoco" else "dqn"
    assert_refused(capsys, (*TRAIN, f"--algo={algo}", f"--env={env}", f"--set=env_kwargs.{argument}"), *words)


def test_a_text_space_is_flattened_to_numbers() -> None:
    config = tiny_config(
        "dqn",
        env_id="misbehaving_envs:Misbehaving-v0",
        env_kwargs={"space": "text"},
        wrappers=[{"name": "flatten_observation"}],
    )
    pool = make_pool(config, None, "env", 1)
    pool.reset()
    np.testing.assert_array_equal(pool.obs, [[36, 37, 38, 62, 62]])
    pool.close()


def test_a_module_that_fails_when_imported(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(place))
    monkeypatch.setattr("sys.dont_write_bytecode", True)
    Path("failing_module.py").write_text("import sys\nsys.exit('bye')\n")
    assert_refused(
        capsys, (*TRAIN, "--env=failing_module:X-v0"), "cannot import the module 'failing_module'", "SystemExit: bye"
    )


@pytest.mark.parametrize("workers", ["inline", "subprocess"])
@pytest.mark.parametrize("about", ["close", "close-exit"])
def test_a_close_that_raises_costs_nothing(about: str, workers: str, capsys: pytest.CaptureFixture[str]) -> None:
    settings = (f"--set=env_kwargs.about={about}", f"--set=env_workers={workers}", "--total-timesteps=40", "--output-dir=out")
    assert main((*TRAIN, MISBEHAVING, *settings)) == 0
    shown_text = capsys.readouterr().err
    assert "closing the environment Misbehaving-v0 failed" in shown_text
    assert "Traceback" not in shown_text
    assert Path("out/evaluation.json").exists()


@pytest.mark.parametrize(
    ("about", "workers", "step", "problem"),
    [
        ("step-exit", "inline", 1, "SystemExit: 0"),
        ("step-exit", "subprocess", 1, "SystemExit: 0"),
        ("step-generator-exit", "inline", 1, "GeneratorExit"),
        ("step-generator-exit", "subprocess", 1, "GeneratorExit"),
        ("reset-exit", "inline", 9, "SystemExit: enough"),
    ],
)
def test_an_environment_that_leaves_is_a_fault(
    about: str, workers: str, step: int, problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Not the end of the process: the run is saved, and the report reproduces it."""
    settings = (f"--set=env_kwargs.about={about}", f"--set=env_workers={workers}", "--total-timesteps=40", "--output-dir=out")
    assert main((*TRAIN, MISBEHAVING, *settings)) == 2
    shown_text = capsys.readouterr().err
    assert f" {problem}" in shown_text
    assert "WorkerError" not in shown_text
    assert f"The run is saved at step {step}; out/fault-step-{step}.json" in shown_text
    assert Path(f"out/checkpoints/step-{step:010d}/manifest.json").exists()


def test_a_fault_in_the_first_reset_leaves_a_run_that_can_be_started_again(capsys: pytest.CaptureFixture[str]) -> None:
    Path("fault").touch()
    settings = ("--set=env_kwargs.about=second-reset", "--set=env_kwargs.lie=fault", "--set=env_workers=inline")
    assert main((*TRAIN, MISBEHAVING, *settings, "--total-timesteps=40", "--output-dir=out")) == 2
    assert "not ready. The run had not begun; out/fault-step-0.json has" in capsys.readouterr().err
    Path("fault").unlink()
    assert main(("resume", "out", "--trust-env-module")) == 0
    assert Path("out/evaluation.json").exists()


def test_a_constructor_that_fails_in_a_worker_process_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    """The first environment, which is made in this process, can be created; those of the workers cannot."""
    pool = SeededEnvPool(FailsElsewhere(os.getpid()), workers="subprocess", env_id="Elsewhere")
    with contextlib.closing(pool), pytest.raises(EnvironmentFault, match=r"in reset: .*LookupError: only at home$"):
        pool.reset()


def test_a_factory_must_return_an_environment() -> None:
    with pytest.raises(ConfigError, match=r"returned 3, which is not a gymnasium\.Env"):
        SeededEnvPool(lambda: 3)  # type: ignore[arg-type,return-value]
    with pytest.raises(ConfigError, match="its function raised ZeroDivisionError"):
        SeededEnvPool(lambda: 1 / 0)  # type: ignore[arg-type,return-value]


def test_the_first_environment_is_closed_if_the_pool_cannot_be_made() -> None:
    closed = []

    class Closing(MisbehavingEnv):
        def close(self) -> None:
            closed.append(1)

    with pytest.raises(SpaceError):
        SeededEnvPool(lambda: Closing(space="empty"))
    assert closed == [1]


# -------------------------------------------------------------------------------------- values that were taken silently


def lying_pool(about: str, lie: Any, **kwargs: Any) -> SeededEnvPool:
    return SeededEnvPool(lambda: MisbehavingEnv(about, lie, **kwargs), env_id="Misbehaving-v0")


@pytest.mark.parametrize(
    ("about", "lie", "kwargs", "problem"),
    [
        ("obs", 300.7, {"space": "image"}, r"contains 300\.7, but an image is made of whole numbers from 0 to 255"),
        ("obs", -5, {"space": "image"}, r"contains -5\.0, but an image"),
        ("obs", 7.5, {"space": "image"}, r"contains 7\.5, but an image"),
        ("obs", float("nan"), {"space": "image"}, "contains nan, but an image"),
        ("obs", 2.7, {"space": "discrete"}, r"contains 2\.7, but the space has whole numbers"),
        ("obs", "1", {"space": "discrete"}, "'1' is not made of numbers"),
        ("obs", None, {"space": "discrete"}, "None is not made of numbers"),
        ("obs", 5, {"space": "discrete"}, "does not fit its space"),
        ("obs", -1, {"space": "discrete"}, "does not fit its space"),
        ("obs", [[1], [2, 3]], {}, "does not fit its space"),
        ("obs", ["0.5", "1e5"], {}, "is not made of numbers"),
        ("terminated", "False", {}, "terminated is 'False', which is neither true nor false"),
        ("terminated", float("nan"), {}, "terminated is nan, which is neither"),
        ("truncated", None, {}, "truncated is None"),
        ("truncated", 0.5, {}, r"truncated is 0\.5"),
        ("reward", "1", {}, "the reward is '1', not a number"),
        ("action_mask", float("nan"), {"masked": True}, r"is \[1\.0, 1\.0, nan\]; each entry must be true or false"),
        ("action_mask", "yes", {"masked": True}, r"the action_mask has shape \(\)"),
        ("action_mask", 2, {"masked": True}, "each entry must be true or false"),
        ("step-exit", None, {}, "SystemExit: 0"),
    ],
)  # fmt: skip
def test_what_an_environment_must_not_return(about: str, lie: Any, kwargs: dict[str, Any], problem: str) -> None:
    pool = lying_pool(about, lie, **kwargs)
    pool.reset()
    pool.step(np.array([0]))
    with pytest.raises(EnvironmentFault, match=problem) as caught:
        pool.step(np.array([1]))
    assert caught.value.actions == [0, 1]


@pytest.mark.parametrize(
    ("about", "lie", "kwargs"),
    [
        ("obs", 255, {"space": "image"}),  # whole numbers of another type
        ("obs", np.float64(4.0), {"space": "discrete"}),
        ("obs", np.array([1]).astype(object)[0], {"space": "discrete"}),
        ("terminated", np.True_, {}),
        ("terminated", 1, {}),
        ("truncated", np.array(True), {}),
        ("truncated", np.array([1.0]), {}),
        ("action_mask", 0, {"masked": True}),
    ],
)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_what_an_environment_may_return(about: str, lie: Any, kwargs: dict[str, Any]) -> None:
    pool = lying_pool(about, lie, **kwargs)
    pool.reset()
    for _ in range(3):
        step, _ = pool.step(np.array([0]))
    if about == "obs" and kwargs["space"] == "image":
        assert step.next_obs[0].flat[-1] == 255


def outside_warnings(pool: SeededEnvPool) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        pool.reset()
        for _ in range(12):
            pool.step(np.zeros(pool.num_envs, np.int64))
    return [str(entry.message) for entry in caught if entry.category is ObservationOutsideSpace]


def test_observations_outside_their_space_are_said_once() -> None:
    said = outside_warnings(lying_pool("obs", 1.5))
    assert len(said) == 1
    assert "Misbehaving-v0" in said[0]
    assert "entry [1] is 1.5, but its bounds are -1.0 and 1.0" in said[0]
    assert outside_warnings(lying_pool("obs", 1.0)) == []


def test_after_the_warning_nan_is_still_a_fault() -> None:
    pool = lying_pool("obs", 1.5)
    assert outside_warnings(pool)
    pool.step(np.array([0]))
    pool._workers.first.env._lie = float("nan")  # type: ignore[attr-defined]
    with pytest.raises(EnvironmentFault, match="not finite"):
        for _ in range(3):
            pool.step(np.array([0]))


def test_a_run_says_once_that_observations_are_outside_their_space(capsys: pytest.CaptureFixture[str]) -> None:
    lies = ("--set=env_kwargs.about=obs", "--set=env_kwargs.lie=1.5", "--total-timesteps=120")
    assert main((*TRAIN, MISBEHAVING, *lies)) == 0
    said = [line for line in capsys.readouterr().err.splitlines() if "outside its observation_space" in line]
    assert len(said) == 1
