"""Forged checkpoints with right hashes: one sentence each, before anything that they name is opened."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import settings_of, tiny_config
from forgery import Body, assert_refused, commands, forge, forge_all, replace_in_all, safetensors_of
from safetensors.numpy import load_file, save_file

from rl_training.experiment.checkpoint import MANIFEST, fingerprint_of
from rl_training.experiment.folder import CheckpointFolder
from rl_training.experiment.layout import ACTING_PARTS
from rl_training.experiment.run import step_directories
from rl_training.runtime.sessions import resume_training, start_training

OBS = "collector/pool/obs"


def without(key: str) -> Callable[[Body], object]:
    return lambda body: body.pop(key)


def setting(key: str, value: Any) -> Callable[[Body], object]:
    return lambda body: body.update({key: value})


def add_part(name: Any) -> Callable[[Body], object]:
    return lambda body: body["parts"].append(name)


def entry(**changes: Any) -> Callable[[Body], object]:
    return lambda body: body["files"]["policy.json"].update(changes)


def add_file(name: str) -> Callable[[Body], object]:
    return lambda body: body["files"].update({name: body["files"]["policy.json"]})


MANIFESTS: dict[str, Callable[[Body], object]] = {
    **{f"no {key}": without(key) for key in ("files", "parts", "info")},
    **{
        f"{key} is {value!r}": setting(key, value)
        for key in ("files", "parts", "info")
        for value in (None, 3, "x", [3], {"x": 3})
        if (key, value) != ("info", {"x": 3})
    },
    **{f"file {name}": add_file(name) for name in ("../x.json", "/etc/passwd", "a/b.json", "..", "", "policy.pkl", MANIFEST)},
    **{
        f"part {name!r}": add_part(name) for name in ("../policy", "/etc/passwd", "policy", "manifest", "", 3, None, "x" * 99)
    },
    "size is text": entry(bytes="316"),
    "size is negative": entry(bytes=-1),
    "size is true": entry(bytes=True),
    "size is huge": entry(bytes=2**80),
    "hash is no text": entry(sha256=5),
    "hash is short": entry(sha256="abc"),
    "step is text": lambda body: body["info"].update(step="240"),
    "step is negative": lambda body: body["info"].update(step=-1),
    "no step": lambda body: body["info"].pop("step"),
    "length of the log is null": lambda body: body["info"].update(metrics_bytes=None),
    "time is text": lambda body: body["info"].update({"time/seconds": "x"}),
    "versions are a list": lambda body: body.update(part_versions=[]),
    "deep": lambda body: body["info"].update(x=json.loads("[" * 100 + "]" * 100)),
}


#: both commands read manifests in the same way: each manifest is fast for one of them
FORGED = [
    pytest.param(name, command, marks=[pytest.mark.slow] if (number + place) % 2 else [])
    for number, name in enumerate(MANIFESTS)
    for place, command in enumerate(("eval", "resume"))
]


@pytest.mark.parametrize(("name", "command"), FORGED)
def test_a_forged_manifest_is_refused_before_anything_else_is_opened(
    run: Path,
    tmp_path: Path,
    name: str,
    command: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    forge_all(run, MANIFESTS[name])
    opened: list[str] = []
    original = CheckpointFolder._pieces

    def noting(self: CheckpointFolder, file: str, most: int, piece: int) -> Any:
        opened.append(file)
        return original(self, file, most, piece)

    monkeypatch.setattr(CheckpointFolder, "_pieces", noting)
    assert_refused(
        capsys, commands(run, tmp_path)[command], "step" if "step" in name else "version" if "version" in name else MANIFEST
    )
    assert opened == []


def test_a_part_that_this_version_does_not_know_is_not_resumed(run: Path) -> None:
    newest, before = step_directories(run)[:2]
    (newest / "evil.json").write_text("{}")

    def add(body: Body) -> None:
        body["parts"].append("evil")
        body["files"]["evil.json"] = fingerprint_of(newest / "evil.json")

    forge(newest, add)
    said: list[str] = []
    trainer = resume_training(run, warn=said.append)
    trainer.close()
    assert f"step-{trainer.env_steps:010d}" == before.name
    assert "holds the part 'evil', which rl_training" in said[0]


SKELETONS = {
    "a list": "[]",
    "a number": "3",
    "nothing": "",
    "deep": '{"a":' * 100 + "1" + "}" * 100,
    "very deep": "[" * 100_000 + "]" * 100_000,
    "long number": '{"a": ' + "9" * 5000 + "}",
    "reference to a number": '{"a": {"$tensor": 3}}',
    "reference to a list": '{"a": {"$array": ["a"]}}',
    "two references": '{"a": {"$array": "a", "$tensor": "a"}}',
    "reference to nothing": '{"a": {"$tensor": "nothing"}}',
    "other names": '{"config": [], "spaces": 3, "env_steps": "x"}',
    "numbers for all": '{"config": 3, "spaces": 3, "env_steps": 3, "learner": 3, "streams": 3}',
    "a config without an algorithm": '{"config": {"env_id": "CartPole-v1"}, "spaces": {}, "env_steps": []}',
    "an algorithm that is a number": '{"config": {"algo": 3, "env_id": "CartPole-v1"}, "env_steps": null, "owed": []}',
    "spaces of nothing": '{"config": {"algo": "dqn", "env_id": "CartPole-v1"}, "spaces": {"observation": [3]}, "x": 1}',
}


@pytest.mark.parametrize("part", ["agent", "policy", "training", "replay"])
@pytest.mark.parametrize("content", SKELETONS.values(), ids=SKELETONS.keys())
def test_a_forged_skeleton_is_refused_in_a_sentence(
    run: Path, tmp_path: Path, part: str, content: str, capsys: pytest.CaptureFixture[str]
) -> None:
    replace_in_all(run, f"{part}.json", content)
    arguments = commands(run, tmp_path)
    assert_refused(capsys, arguments["predict" if part in ACTING_PARTS else "resume"])


@pytest.mark.parametrize("dtype", ["BF16", "F8_E4M3", "F8_E5M2", "F8_E8M0", "NONSENSE"])
@pytest.mark.parametrize("part", ["policy", "replay"])
def test_numbers_that_numpy_does_not_know(
    run: Path, tmp_path: Path, part: str, dtype: str, capsys: pytest.CaptureFixture[str]
) -> None:
    content = safetensors_of(dtype, [2], 4 if dtype == "BF16" else 2)
    replace_in_all(run, f"{part}.safetensors", content)
    command = "predict" if part == "policy" else "resume"
    assert_refused(capsys, commands(run, tmp_path)[command], f"{part}.safetensors")


def test_observations_of_another_type_are_refused(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for checkpoint in step_directories(run):
        arrays = load_file(checkpoint / "training.safetensors")
        save_file({**arrays, OBS: arrays[OBS].astype(np.float64)}, checkpoint / "training.safetensors")
        forge(checkpoint)
    assert_refused(capsys, commands(run, tmp_path)["resume"], "the saved observations are float64 of shape (1, 4)")


#: A run of each kind of buffer, and where it saves the actions of the steps that it learns from.
LEARNERS: dict[str, tuple[dict[str, Any], str, str]] = {
    "records": ({"algo": "dqn"}, "training", "learner/recorder/windows/0/action"),
    "frames": (
        {"algo": "dqn", "env_id": "misbehaving_envs:Misbehaving-v0", "env_kwargs": {"space": "image"}},
        "replay",
        "rings/env0/tail/action",
    ),
    "sequences": ({"algo": "r2d2"}, "replay", "rings/env0/tail/action"),
    "rollouts": ({"algo": "ppo"}, "training", "learner/rollout/steps/2"),
}


@pytest.fixture(scope="module", params=LEARNERS)
def learner(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, str]:
    values, part, name = LEARNERS[request.param]
    path = tmp_path_factory.mktemp("learner") / "run"
    n_step = settings_of(values["algo"], {"n_step": 3})
    config = tiny_config(**values, total_timesteps=60, checkpoint={"interval": 60}, algo_kwargs=n_step, output_dir=str(path))
    trainer = start_training(config, command="test")
    trainer.train()
    trainer.close()
    return path, part, name


@pytest.mark.parametrize("value", [-2, 7])
def test_actions_that_there_are_not_are_refused(
    learner: tuple[Path, str, str], value: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """They used to end the next update with a traceback of torch, or to be learned from."""
    finished, part, name = learner
    run = Path(shutil.copytree(finished, tmp_path / "run", symlinks=True))
    for checkpoint in step_directories(run):
        arrays = load_file(checkpoint / f"{part}.safetensors")
        arrays[name][-1] = value
        save_file(arrays, checkpoint / f"{part}.safetensors")
        forge(checkpoint)
    arguments = [*commands(run, tmp_path)["resume"], "--total-timesteps", "100"]
    assert_refused(capsys, arguments, f"the saved experience cannot be used: an action of {value} is not between 0 and")
