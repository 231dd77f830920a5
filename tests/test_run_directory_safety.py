"""A run directory is data, whoever made it: it is read and written without leaving it, and refused in one sentence."""

from __future__ import annotations

import json
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest
from conftest import train_tiny
from forgery import KINDS, assert_refused, commands, promptly, put_in_place, silent

from rl_training.cli import main
from rl_training.errors import CheckpointError, EnvironmentFault, PrunedError
from rl_training.experiment.checkpoint import (
    MANIFEST,
    load_checkpoint,
    read_checkpoint,
    read_manifest,
    seal,
    verify_checkpoint,
)
from rl_training.experiment.finding import load_acting
from rl_training.experiment.folder import CheckpointFolder
from rl_training.experiment.layout import ACTING_PARTS
from rl_training.experiment.overview import step_of
from rl_training.experiment.run import open_run, step_directories
from rl_training.runtime.faults import write_fault_report
from rl_training.runtime.inference import load_policy
from rl_training.runtime.sessions import resume_training


@pytest.fixture(scope="module")
def finished_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train_tiny(tmp_path_factory.mktemp("runs") / "run", log={"interval": 25, "tensorboard": True})


# ----------------------------------------------------------------------------------------- writing stays inside


@pytest.mark.parametrize(
    ("name", "code"),
    [
        (".lock", 2),
        ("metrics.jsonl", 2),
        ("episodes.jsonl", 2),
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
        ("tensorboard", 0),  # no events are written, and training goes on
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
    assert link.is_symlink() == (code == 2 or name == "tensorboard")


def test_a_fault_report_does_not_follow_a_link(run: Path, tmp_path: Path) -> None:
    outside = tmp_path / "precious"
    outside.write_text("mine")
    for name in ("fault-step-7.json", ".fault-step-7.json"):
        (run / name).symlink_to(outside)
    opened = open_run(run)
    fault = EnvironmentFault("broke", env_id="X", env_index=0, episode_seed=3, actions=[1], step=1)
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
@pytest.mark.parametrize("name", ["config.yaml", "metrics.jsonl", "episodes.jsonl", ".lock"])
def test_what_is_no_file_of_a_run_is_refused_at_once(
    run: Path, tmp_path: Path, name: str, kind: str, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if command == "plot" and name in (".lock", "episodes.jsonl"):
        pytest.skip("plot neither locks nor needs the episodes")
    put_in_place(run / name, kind)
    assert_refused(capsys, commands(run, tmp_path)[command], name)


@pytest.mark.parametrize("kind", KINDS)
def test_metadata_that_is_no_file_is_no_hindrance(run: Path, kind: str) -> None:
    put_in_place(run / "metadata.json", kind)
    with promptly():
        open_run(run).close()


@pytest.mark.parametrize("name", ["metadata.json", "evaluation.json"])
def test_a_directory_where_a_file_is_written_is_named(
    run: Path, tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    put_in_place(run / name, "directory")
    arguments = [*commands(run, tmp_path)["resume"], "--total-timesteps", "250"]
    assert_refused(capsys, arguments, f"cannot write {run / name}", "remove the directory")


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


@pytest.mark.parametrize("command", ["eval", "predict", "export", "resume"])
def test_checkpoints_are_in_the_run_itself(
    run: Path, tmp_path: Path, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (run / "checkpoints").rename(tmp_path / "elsewhere")
    (run / "checkpoints").symlink_to(tmp_path / "elsewhere")
    assert_refused(capsys, commands(run, tmp_path)[command], "checkpoints is a symbolic link")


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
    assert load_acting(run, said.append).path == before
    assert "is a symbolic link" in said[0]


# -------------------------------------------------------------------------------------------------- names and steps


def test_a_checkpoint_under_another_name_is_refused_by_name(run: Path) -> None:
    newest = step_directories(run)[0]
    copy = newest.with_name("step-9999999999")
    shutil.copytree(step_directories(run)[-1], copy)
    for read in (read_manifest, verify_checkpoint, lambda path: read_checkpoint(path, ["policy"])):
        with pytest.raises(CheckpointError, match=r"named after step 9999999999, but its manifest has step \d+"):
            read(copy)
    assert f"step-{step_of(run, []):010d}" == newest.name
    said: list[str] = []
    assert load_acting(run, said.append).path == newest
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
    with pytest.raises(CheckpointError, match=r"no run or checkpoint|no checkpoint at"):
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
    found, loads = set[str](), 0
    try:
        with promptly():
            while loads < 120 or len(found) <= 10:  # both threads get on, however the machine shares its time
                loads += 1
                found.add(load_policy(run if loads % 2 else run / "checkpoints" / "latest", said.append)[2].name)
    finally:
        done.set()
        trainer.join()
        opened.close()
    assert (said, failures) == ([], [])
    assert not list((run / "checkpoints").glob(".*"))


def test_a_checkpoint_that_is_replaced_while_it_is_read_is_no_damaged_one(run: Path) -> None:
    newest = step_directories(run)[0]
    shutil.copytree(newest, run.parent / "successor")
    with CheckpointFolder(newest) as folder:
        manifest = folder.read_manifest()
        newest.rename(old := newest.with_name(f".replaced-{newest.name}"))
        (run.parent / "successor").rename(newest)
        shutil.rmtree(old)
        with pytest.raises(PrunedError):
            folder.read("policy.json", manifest)
