"""Observations, rewards and masks that policies and pools must not take."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pytest
from conftest import tiny_config
from moments import finish
from rl_training_test_envs import MaskedEnv
from test_bad_input import assert_one_error, assert_refused

from rl_training.api import load_agent
from rl_training.cli import main
from rl_training.envs.pool import SeededEnvPool
from rl_training.errors import ObservationError
from rl_training.runtime.inference import build_policy, predict
from rl_training.types import ActionSpec, ObservationSpec, SpaceSpec

pytestmark = pytest.mark.usefixtures("place")


@pytest.mark.parametrize(
    ("obs", "words"),
    [
        ('["1e5", "0", "0", "0"]', ("not an array of numbers", "text")),
        ('[0, 0, 0, "1e5"]', ("not an array of numbers", "text")),
        ('"1e5"', ("neither JSON nor a readable file",)),
        ('{"obs": "1e5"}', ("not an array of numbers",)),
        ('{"obs": [0, 0, 0, 0], "episode_start": NaN}', ("episode_start", "nan")),
        ('{"obs": [0, 0, 0, 0], "action_mask": ' + "[" * 500 + "]" * 500 + "}", ("action_mask",)),
        ("[" * 100_000 + "]" * 100_000, ("line 1", "nested too deeply")),
        ("[" * 500 + "]" * 500, ("line 1", "not an array of numbers")),
        ("9" * 5000, ("line 1",)),
    ],
    ids=lambda value: str(value)[:40],
)
def test_bad_observations(obs: str, words: tuple[str, ...], finished_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if len(obs) < 100_000:
        assert_refused(capsys, ("predict", str(finished_run), "--obs", obs), *words)
    if not obs.startswith('"'):
        Path("lines").write_text(obs)
        assert_refused(capsys, ("predict", str(finished_run), "--obs", "lines"), *words)


def test_input_that_is_not_text(finished_run: Path) -> None:
    done = finish("predict", finished_run, stdin="[0,0,0,0]\n\xff\xfe\n", encoding="latin-1")
    assert done.returncode == 2, done.stderr
    assert_one_error(done.stderr, "line 2")


def test_text_is_no_number_in_python_either(finished_run: Path) -> None:
    with load_agent(finished_run) as agent:
        for obs in (["1", "2", "3", "4"], np.array([1, 2, 3, "4"], object), np.array(["2020-01-01"] * 4, "datetime64[D]")):
            with pytest.raises(ObservationError, match="not an array of numbers"):
                agent.predict(obs)
        assert agent.predict(np.array([1, 2, 3, 4], object))[0] == agent.predict([1.0, 2.0, 3.0, 4.0])[0]


def test_a_reward_as_text_is_refused() -> None:
    config = tiny_config("r2d2", algo_kwargs={"previous_inputs": True})
    policy = build_policy(config, SpaceSpec(ObservationSpec.vector(4), ActionSpec("discrete", count=2)))
    _, state = predict(policy, np.zeros(4))
    predict(policy, np.zeros(4), state, reward=1.0)
    with pytest.raises(ObservationError, match=r"takes rewards as inputs.*'1e5'"):
        predict(policy, np.zeros(4), state, reward="1e5")


def test_predicting_without_a_mask_is_said_if_the_environment_has_one() -> None:
    config = tiny_config("dqn")
    pool = SeededEnvPool(MaskedEnv)
    policy = build_policy(config, pool.spec)
    with pytest.warns(UserWarning, match="masks actions, but predict got no action_mask"):
        predict(policy, np.zeros(1))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        predict(policy, np.zeros(1), action_mask=[True, True, False, True])
        predict(build_policy(config, SpaceSpec(ObservationSpec.vector(1), ActionSpec("discrete", count=4))), np.zeros(1))


@pytest.mark.parametrize(
    ("obs", "words"),
    [
        ("[0, 0, 0]", ("shape (3,)", "takes (4,)")),
        ("[[[0, 0, 0, 0]]]", ("shape (1, 1, 4)", "takes (4,)")),
        ("5", ("shape ()", "takes (4,)")),
        ("[0, 0, 0, NaN]", ("NaN",)),
        ("[0, 0, 0, Infinity]", ("infinity",)),
        ("[0, 0, 0, 1e300]", ("beyond float32",)),
        ('[0, 0, 0, "left"]', ("not an array of numbers",)),
        ("[[0, 0, 0, 0], [0]]", ("not an array of numbers",)),
        ('{"obs": 1}', ("shape ()",)),
        ('{"observation": [1, 2, 3, 4]}', ("needs the key 'obs'",)),
        ('{"obs": [0, 0, 0, 0], "action_mask": [true]}', ("action_mask", "2 booleans")),
        ('{"obs": [0, 0, 0, 0], "action_mask": [[true], [true, false]]}', ("action_mask", "2 booleans")),
        ('{"obs": [0, 0, 0, 0], "episode_start": [true, false]}', ("episode_start", "[True, False]")),
        ('{"obs": [0, 0, 0, 0], "episode_start": "no"}', ("episode_start", "'no'")),
        ("[0, 0, 0, 0", ("line 1: not valid JSON",)),
        ("observations.jsonl", ("'observations.jsonl'", "neither JSON nor a readable file")),
    ],
)
def test_lines_for_predict_that_are_refused(
    obs: str, words: tuple[str, ...], finished_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert_refused(capsys, ("predict", str(finished_run), "--obs", obs), *words)


def test_a_bad_line_is_numbered_and_those_before_it_are_answered(
    finished_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("lines").write_text("[0, 0, 0, 0]\n\n[0, 0, 0, NaN]\n[0, 0, 0, 0]\n")
    assert main(["predict", str(finished_run), "--obs", "lines"]) == 2
    shown = capsys.readouterr()
    assert len(shown.out.splitlines()) == 1
    assert_one_error(shown.err, "line 3", "NaN")
