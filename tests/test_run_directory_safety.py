"""A run directory is data, whoever made it: it is read and written without leaving it, and refused in one sentence."""

from __future__ import annotations

import json
import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import tiny_config
from forgery import KINDS, Body, assert_refused, forge, forge_all, promptly, put_in_place, safetensors_of

from rl_training.cli import main
from rl_training.errors import CheckpointError, EnvironmentFault, PrunedError
from rl_training.experiment.checkpoint import (
    MANIFEST,
    fingerprint_of,
    load_checkpoint,
    read_checkpoint,
    read_manifest,
    seal,
    verify_checkpoint,
)
from rl_training.experiment.folder import CheckpointFolder
from rl_training.experiment.run import ACTING_PARTS, find_checkpoint, open_run, step_directories
from rl_training.runtime.faults import write_fault_report
from rl_training.runtime.inference import load_policy
from rl_training.runtime.sessions import resume_training, start_training

OBS = "[0.0, 0.1, 0.0, -0.1]"


@pytest.fixture(scope="module")
def finished_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("runs") / "run"
    config = tiny_config("dqn", output_dir=str(path), log={"interval": 25, "tensorboard": True})
    trainer = start_training(config, command="test")
    trainer.train()
    trainer.close()
    return path


@pytest.fixture
def run(finished_run: Path, tmp_path: Path) -> Path:
    """A copy of a finished run to spoil."""
    return Path(shutil.copytree(finished_run, tmp_path / "run", symlinks=True))


def commands(run: Path, tmp_path: Path) -> dict[str, list[str]]:
    output = ["--output", str(tmp_path / "p.safetensors")]
    return {
        "eval": ["eval", str(run), "--episodes", "1"],
        "predict": ["predict", str(run), "--obs", OBS],
        "export": ["export", str(run), "--format", "safetensors", *output],
        "resume": ["resume", str(run), "--quiet"],
        "plot": ["plot", str(run), "--output", str(tmp_path / "p.png")],
    }


def silent(message: str) -> None:
    """For those who must be given somebody to warn."""


# ----------------------------------------------------------------------------------------- writing stays inside


@pytest.mark.parametrize(
    ("name", "code"),
    [
        (".lock", 2),
        ("metrics.jsonl", 2),
        ("config.yaml", 2),
        (".config.yaml", 0),
        ("evaluation.json", 0),
        (".evaluation.json", 0),
        ("checkpoints/.latest", 0),
    ],
)
def test_no_file_outside_is_written_through_a_link(run: Path, tmp_path: Path, name: str, code: int) -> None:
    outside, link = tmp_path / "precious", run / name
    content = (run / "config.yaml").read_bytes() if name == "config.yaml" else b"mine\n"
    outside.write_bytes(content)
    link.unlink(missing_ok=True)
    link.symlink_to(outside)
    assert main(["resume", str(run), "--total-timesteps", "250", "--quiet"]) == code
    assert outside.read_bytes() == content
    assert link.is_symlink() == (code == 2)  # refused, or replaced by what belongs there


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("tensorboard", 2),
        ("checkpoints", 2),
        ("checkpoints/set-aside", 2),
        ("checkpoints/.writing-step-0000000250", 0),
        ("checkpoints/.replaced-step-0000000250", 0),
        ("checkpoints/.pruned-step-0000000140", 0),
        ("checkpoints/step-0000000250", 0),
    ],
)
def test_no_directory_outside_is_written_through_a_link(run: Path, tmp_path: Path, name: str, code: int) -> None:
    outside, link = tmp_path / "elsewhere", run / name
    if link.exists():
        link.rename(outside)
    else:
        outside.mkdir()
        (outside / "thesis").write_text("mine")
    link.symlink_to(outside)
    if "step-0000000250" in name or name.endswith("set-aside"):  # what is set aside would be moved through the link
        (step_directories(run)[-3 if name.endswith("aside") else 0] / MANIFEST).touch()
    if name.endswith("set-aside"):
        (step_directories(run)[0] / "policy.json").write_text("damaged")
    before = {path: path.read_bytes() for path in outside.rglob("*") if path.is_file()}
    assert main(["resume", str(run), "--total-timesteps", "250", "--quiet"]) == code
    assert {path: path.read_bytes() for path in outside.rglob("*") if path.is_file()} == before
    assert link.is_symlink() == (code == 2)


def test_a_fault_report_does_not_follow_a_link(run: Path, tmp_path: Path) -> None:
    outside = tmp_path / "precious"
    outside.write_text("mine")
    for name in ("fault-step-7.json", ".fault-step-7.json"):
        (run / name).symlink_to(outside)
    opened = open_run(run)
    fault = EnvironmentFault("broke", env_id="X", env_index=0, episode_seed=3, actions=[1], during="step")
    write_fault_report(opened, fault, opened.config, 7)
    opened.close()
    assert outside.read_text() == "mine"
    assert json.loads((run / "fault-step-7.json").read_text())["episode_seed"] == 3


def test_what_is_written_beside_a_run_does_not_follow_a_link_either(run: Path, tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("mine")
    for name in ("p.png", ".writing-p.png", "p.safetensors", ".writing-p.safetensors"):
        (tmp_path / name).symlink_to("precious")
    assert main(commands(run, tmp_path)["plot"]) == 0
    assert main(commands(run, tmp_path)["export"]) == 0
    assert (tmp_path / "precious").read_text() == "mine"


# ------------------------------------------------------------------------------------- only regular files are read


@pytest.mark.parametrize("command", ["eval", "predict", "export", "resume"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", [MANIFEST, "agent.json", "policy.safetensors"])
def test_what_is_no_file_is_refused_at_once(
    run: Path, tmp_path: Path, name: str, kind: str, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for checkpoint in step_directories(run):
        put_in_place(checkpoint / name, kind)
    shown = assert_refused(capsys, commands(run, tmp_path)[command])
    expected = {"pipe": "a named pipe", "socket": "a socket", "directory": "a directory"}.get(kind, "a symbolic link")
    assert f"{name} is {expected}" in shown


@pytest.mark.parametrize("command", ["plot", "resume"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["config.yaml", "metrics.jsonl", ".lock"])
def test_what_is_no_file_of_a_run_is_refused_at_once(
    run: Path, tmp_path: Path, name: str, kind: str, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if (command, name) == ("plot", ".lock"):
        pytest.skip("plot does not lock")
    put_in_place(run / name, kind)
    assert_refused(capsys, commands(run, tmp_path)[command], name)


@pytest.mark.parametrize("kind", KINDS)
def test_metadata_that_is_no_file_is_no_hindrance(run: Path, kind: str) -> None:
    put_in_place(run / "metadata.json", kind)
    with promptly():
        open_run(run).close()


def test_a_part_is_not_read_beyond_its_size(run: Path) -> None:
    newest = step_directories(run)[0]
    with (newest / "policy.safetensors").open("ab") as file:
        file.truncate(2**42)  # a hole: nothing could read it all
    for read in (lambda: verify_checkpoint(newest), lambda: read_checkpoint(newest, ["policy"])):
        with promptly(), pytest.raises(CheckpointError, match=r"policy\.safetensors is damaged: .*4398046511104 bytes"):
            read()
    body = json.loads((newest / MANIFEST).read_text())
    del body["digest"]
    body["files"]["policy.safetensors"]["bytes"] = 2**42
    (newest / MANIFEST).write_text(seal(body))
    with promptly(), pytest.raises(CheckpointError, match="GB of memory are free"):
        read_checkpoint(newest, ["policy"])


@pytest.mark.parametrize("name", ["config.yaml", "checkpoints/latest/manifest.json"])
def test_a_small_file_has_a_largest_size(run: Path, name: str) -> None:
    with (run / name).open("ab") as file:
        file.truncate(2**42)
    with promptly(), pytest.raises(CheckpointError, match="is larger than 4 MiB"):
        _ = open_run(run) if name == "config.yaml" else read_manifest((run / name).parent)


@pytest.mark.parametrize("target", ["../../outside", "/etc", "..", "step-0000000240/../../x", "set-aside"])
@pytest.mark.parametrize("link", ["latest", "best"])
def test_our_links_stay_among_the_checkpoints(run: Path, tmp_path: Path, link: str, target: str) -> None:
    shutil.copytree(step_directories(run)[0], tmp_path / "outside")
    path = run / "checkpoints" / link
    path.unlink()
    path.symlink_to(target)
    with pytest.raises(CheckpointError, match=f"{link} points to .* and not to a checkpoint beside it"):
        load_policy(path, silent)


def test_a_checkpoint_that_is_a_link_is_passed_over(run: Path, tmp_path: Path) -> None:
    newest, before = step_directories(run)[:2]
    newest.rename(tmp_path / newest.name)
    newest.symlink_to(tmp_path / newest.name)
    said: list[str] = []
    assert find_checkpoint(run, said.append) == before
    assert "is a symbolic link" in said[0]


# ---------------------------------------------------------------------------------------------- forged manifests


def entry(**changes: Any) -> Callable[[Body], object]:
    return lambda body: body["files"]["policy.json"].update(changes)


def add_file(name: str) -> Callable[[Body], object]:
    return lambda body: body["files"].update({name: body["files"]["policy.json"]})


MANIFESTS: dict[str, Callable[[Body], object]] = {
    **{f"no {key}": lambda body, key=key: body.pop(key) for key in ("files", "parts", "info")},
    **{
        f"{key} is {value!r}": lambda body, key=key, value=value: body.update({key: value})
        for key in ("files", "parts", "info")
        for value in (None, 3, "x", [3], {"x": 3})
        if (key, value) != ("info", {"x": 3})
    },
    **{f"file {name}": add_file(name) for name in ("../x.json", "/etc/passwd", "a/b.json", "..", "", "policy.pkl", MANIFEST)},
    **{
        f"part {name!r}": lambda body, name=name: body["parts"].append(name)
        for name in ("../policy", "/etc/passwd", "policy", "manifest", "", 3, None, "x" * 99)
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


@pytest.mark.parametrize("command", ["eval", "resume"])
@pytest.mark.parametrize("name", MANIFESTS)
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
    forge_all(run, **{f"{part}__json": content})
    arguments = commands(run, tmp_path)
    assert_refused(capsys, arguments["predict" if part in ACTING_PARTS else "resume"])


@pytest.mark.parametrize("dtype", ["BF16", "F8_E4M3", "F8_E5M2", "F8_E8M0", "NONSENSE"])
@pytest.mark.parametrize("part", ["policy", "replay"])
def test_numbers_that_numpy_does_not_know(
    run: Path, tmp_path: Path, part: str, dtype: str, capsys: pytest.CaptureFixture[str]
) -> None:
    content = safetensors_of(dtype, [2], 4 if dtype == "BF16" else 2)
    forge_all(run, **{f"{part}__safetensors": content})
    command = "predict" if part == "policy" else "resume"
    assert_refused(capsys, commands(run, tmp_path)[command], f"{part}.safetensors")


# -------------------------------------------------------------------------------------------------- names and steps


def test_a_checkpoint_under_another_name_is_refused_by_name(run: Path) -> None:
    newest = step_directories(run)[0]
    copy = newest.with_name("step-9999999999")
    shutil.copytree(step_directories(run)[-1], copy)
    for read in (read_manifest, verify_checkpoint, lambda path: read_checkpoint(path, ["policy"])):
        with pytest.raises(CheckpointError, match=r"named after step 9999999999, but its manifest has step \d+"):
            read(copy)
    said: list[str] = []
    assert find_checkpoint(run, said.append) == newest
    trainer = resume_training(run, warn=said.append)
    trainer.close()
    assert f"step-{trainer.env_steps:010d}" == newest.name
    assert ["step-9999999999" in message for message in said] == [True, True]
    best = (run / "checkpoints" / "best").resolve()
    shutil.copytree(best, best.with_name("step-0000000999-best"))
    with pytest.raises(CheckpointError, match="named after step 999"):
        read_manifest(best.with_name("step-0000000999-best"))
    shutil.copytree(newest, run.parent / "mine")
    read_manifest(run.parent / "mine")  # a copy outside a run may have any name


def test_the_best_policy_under_the_name_of_a_checkpoint_is_not_resumed(run: Path) -> None:
    newest = step_directories(run)[0]
    best = (run / "checkpoints" / "best").resolve()
    shutil.copytree(best, target := best.with_name(best.name.removesuffix("-best")), dirs_exist_ok=True)
    for path in step_directories(run):
        if path != target:
            shutil.rmtree(path)
    with pytest.raises(CheckpointError, match="none of the checkpoints"):
        resume_training(run, warn=silent)
    assert newest


# ---------------------------------------------------------------------------------------------------------- pruning


def test_a_checkpoint_that_is_pruned_while_it_is_read_is_retried(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    newest, before = step_directories(run)[:2]
    original, pruned = CheckpointFolder.read, list[str]()

    def prune_first(self: CheckpointFolder, name: str, manifest: Any) -> bytes:
        if self.path.name == newest.name and not pruned:
            (run / "checkpoints" / "latest").unlink()
            (run / "checkpoints" / "latest").symlink_to(before.name)
            newest.rename(newest.with_name(f".pruned-{newest.name}"))
            shutil.rmtree(newest.with_name(f".pruned-{newest.name}"))
            pruned.append(self.path.name)
        return original(self, name, manifest)

    monkeypatch.setattr(CheckpointFolder, "read", prune_first)
    saved = shutil.copytree(newest, run.parent / "saved")
    for path in (run, run / "checkpoints" / "latest"):
        said: list[str] = []
        assert load_policy(path, said.append)[2].name == before.name
        assert (said, pruned) == ([], [newest.name])
        pruned.clear()
        shutil.copytree(saved, newest)
        (run / "checkpoints" / "latest").unlink()
        (run / "checkpoints" / "latest").symlink_to(newest.name)
    with pytest.raises(CheckpointError, match="no run or checkpoint|no checkpoint at"):
        load_policy(newest, silent)
    with pytest.raises(PrunedError):
        load_checkpoint(newest, ACTING_PARTS)


def test_policies_are_loaded_while_a_run_writes_and_prunes(run: Path) -> None:
    loaded = load_checkpoint(step_directories(run)[0], ("agent", "policy", "training"))
    opened, done, failures = open_run(run), threading.Event(), list[BaseException]()
    opened.config = opened.config.with_values(checkpoint={"keep": 1})

    def train() -> None:
        step = 240
        try:
            while not done.is_set():
                step += 1
                opened.save(step, loaded.parts, {**loaded.manifest["info"], "step": step})
                opened.save(step, loaded.parts, {**loaded.manifest["info"], "step": step})  # replaces it
            opened.wait()
        except BaseException as error:
            failures.append(error)

    trainer = threading.Thread(target=train)
    trainer.start()
    said: list[str] = []
    found = set()
    try:
        for k in range(120):
            found.add(load_policy(run if k % 2 else run / "checkpoints" / "latest", said.append)[2].name)
    finally:
        done.set()
        trainer.join()
        opened.close()
    assert (said, failures) == ([], [])
    assert len(found) > 10
    assert not [path for path in os.listdir(run / "checkpoints") if path.startswith(".")]
