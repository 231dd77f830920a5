"""Old files and new code: what is brought up to date, what takes a default, what is refused and in which words."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from rl_training.api import load_agent
from rl_training.errors import CheckpointError, IncompatibleError
from rl_training.experiment import compat
from rl_training.experiment.checkpoint import (
    MANIFEST,
    fingerprint_of,
    read_checkpoint,
    read_manifest,
    seal,
    verify_checkpoint,
    write_checkpoint,
)
from rl_training.experiment.compat import PART_VERSIONS, PartContext
from rl_training.experiment.finding import load_acting
from rl_training.experiment.run import step_directories
from rl_training.runtime.export import ExportedPolicy, load_exported
from rl_training.runtime.inference import load_policy
from rl_training.runtime.sessions import resume_training
from rl_training.types import State
from rl_training.version import __version__

GOLDEN = Path(__file__).parent / "golden"
PARTS: dict[str, State] = {
    "agent": {"config": {"algo": "dqn"}},
    "policy": {"weight": torch.arange(3.0)},
    "training": {"steps": 7, "names": []},
    "replay": {"records": np.arange(4)},
}


def silent(message: str) -> None:
    """For those who must be given somebody to warn."""


def edit(checkpoint: Path, change: Callable[[dict[str, Any]], object] = lambda body: None) -> None:
    """Changes a checkpoint's manifest and makes everything consistent again, as the module itself does it."""
    body = json.loads((checkpoint / MANIFEST).read_text())
    del body["digest"]
    body["files"] = {name: fingerprint_of(checkpoint / name) for name in body["files"]}
    change(body)
    (checkpoint / MANIFEST).write_text(seal(body))


def forget_versions(body: dict[str, Any]) -> None:
    """As manifests were before they had versions of parts."""
    del body["part_versions"], body["written_by"]


def of_version(part: str, version: Any, writer: Any = "0.4.0") -> Callable[[dict[str, Any]], None]:
    def change(body: dict[str, Any]) -> None:
        body["part_versions"][part] = version
        body["written_by"] = writer

    return change


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    path = tmp_path / "checkpoint"
    write_checkpoint(path, PARTS, {"step": 3})
    return path


# ------------------------------------------------------------------------------------------------- versions of parts


def test_a_manifest_holds_the_version_of_each_part_and_of_its_writer(checkpoint: Path) -> None:
    manifest = read_manifest(checkpoint)
    assert manifest["part_versions"] == PART_VERSIONS == {"agent": 1, "policy": 1, "training": 1, "replay": 2}
    assert manifest["written_by"] == __version__
    assert manifest["schema_version"] == 1


@pytest.mark.parametrize(("field", "value"), [("part_versions", {"policy": 2}), ("written_by", "9.9.9")])
def test_the_digest_covers_the_versions(checkpoint: Path, field: str, value: Any) -> None:
    body = json.loads((checkpoint / MANIFEST).read_text())
    (checkpoint / MANIFEST).write_text(json.dumps({**body, field: value}))
    with pytest.raises(CheckpointError, match="digest"):
        read_manifest(checkpoint)


def test_a_manifest_without_versions_counts_as_the_first_of_everything(tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(GOLDEN / "0.2.0" / "dqn", run, symlinks=True)
    for path in step_directories(run):
        edit(path, forget_versions)
    newest = step_directories(run)[0]
    manifest = verify_checkpoint(newest)
    assert manifest["part_versions"] == dict.fromkeys(manifest["parts"], 1)
    assert manifest["written_by"] is None
    messages: list[str] = []
    trainer = resume_training(run, warn=messages.append)
    trainer.close()
    assert (trainer.env_steps, messages) == (70, [])


def test_migrations_are_applied_one_after_the_other_with_what_they_need_to_know(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def note(name: str) -> compat.Migration:
        def migration(state: State, context: PartContext) -> State:
            return {**state, "names": [*state["names"], f"{name} of {context.part} of {context.algo}"]}

        return migration

    monkeypatch.setitem(PART_VERSIONS, "training", 3)
    monkeypatch.setitem(compat.MIGRATIONS, ("training", 1), note("first"))
    monkeypatch.setitem(compat.MIGRATIONS, ("training", 2), note("second"))
    verify_checkpoint(checkpoint)
    state = read_checkpoint(checkpoint, ["training"])["training"]
    assert state == {"steps": 7, "names": ["first of training of dqn", "second of training of dqn"]}
    edit(checkpoint, of_version("training", 2))
    assert read_checkpoint(checkpoint, ["training"])["training"]["names"] == ["second of training of dqn"]
    write_checkpoint(checkpoint, PARTS, {})
    assert read_manifest(checkpoint)["part_versions"]["training"] == 3
    assert read_checkpoint(checkpoint, ["training"])["training"]["names"] == []


def test_a_migration_of_a_checkpoint_without_an_agent_knows_no_algorithm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_checkpoint(tmp_path / "c", {"replay": {"x": 1}}, {})
    monkeypatch.setitem(PART_VERSIONS, "replay", 3)
    monkeypatch.setitem(compat.MIGRATIONS, ("replay", 2), lambda state, context: {"algo": context.algo})
    assert read_checkpoint(tmp_path / "c", ["replay"]) == {"replay": {"algo": None}}


def test_a_migration_that_fails_is_a_checkpoint_that_cannot_be_used(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(PART_VERSIONS, "training", 2)
    monkeypatch.setitem(compat.MIGRATIONS, ("training", 1), lambda state, context: {"x": state["missing"]})
    with pytest.raises(CheckpointError, match=r"part 'training' of the checkpoint .* version 1 to 2: .*missing"):
        read_checkpoint(checkpoint, ["training"])


def test_a_migrated_policy_is_a_policy(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One layer had another name in version 1, in checkpoints and in exports."""
    _, policy, _ = load_policy(run, silent)
    old_key = next(iter(policy.state_dict()))
    agent = load_agent(run)
    agent.export(tmp_path / "p.safetensors")
    newest = step_directories(run)[0]
    rename_in(newest / "policy.json", old_key, "ancient")
    with safe_open(tmp_path / "p.safetensors", framework="numpy") as file:
        description = file.metadata()
    arrays = load_file(tmp_path / "p.safetensors")
    arrays["ancient"] = arrays.pop(old_key)
    save_file(arrays, tmp_path / "p.safetensors", metadata=description)
    with pytest.raises(CheckpointError, match="does not fit"):
        load_policy(newest, silent)

    def migration(state: State, context: PartContext) -> State:
        assert context == PartContext("policy", "dqn")
        return {old_key if key == "ancient" else key: value for key, value in state.items()}

    monkeypatch.setitem(PART_VERSIONS, "policy", 2)
    monkeypatch.setitem(compat.MIGRATIONS, ("policy", 1), migration)
    exported = load_exported(tmp_path / "p.safetensors")
    assert isinstance(exported, ExportedPolicy)
    for loaded in (load_policy(newest, silent)[1], exported.policy):
        for key, value in policy.state_dict().items():
            assert torch.equal(loaded.state_dict()[key], value)


def rename_in(file: Path, old: str, new: str) -> None:
    """Renames a key at the top of a part, and makes the checkpoint consistent again."""
    state = json.loads(file.read_text())
    file.write_text(json.dumps({new if key == old else key: value for key, value in state.items()}))
    edit(file.parent)


def test_every_migration_leads_to_the_current_version() -> None:
    for part, version in compat.MIGRATIONS:
        current = compat.current_version(part)
        assert all((part, later) in compat.MIGRATIONS for later in range(version, current)), (part, version)
    assert not set(compat.MIGRATIONS) & set(compat.LAST_READERS)


# -------------------------------------------------------------------------------------------------------- refusals


def test_a_newer_part_is_refused_with_the_version_that_wrote_it(checkpoint: Path) -> None:
    edit(checkpoint, of_version("training", 2))
    expected = (
        f"the part 'training' of the checkpoint {checkpoint} has version 2, but rl_training {__version__} reads at most "
        "version 1; it was written by rl_training 0.4.0; install that version or newer"
    )
    for read in (lambda: read_checkpoint(checkpoint, ["training"]), lambda: verify_checkpoint(checkpoint)):
        with pytest.raises(IncompatibleError) as caught:
            read()
        assert str(caught.value) == expected
    read_checkpoint(checkpoint, ["agent", "policy"])  # what can be read may be used


def test_a_newer_container_is_refused_with_the_version_that_wrote_it(checkpoint: Path) -> None:
    edit(checkpoint, lambda body: body.update(schema_version=2, written_by="0.5.1"))
    with pytest.raises(IncompatibleError) as caught:
        read_manifest(checkpoint)
    assert str(caught.value) == (
        f"the checkpoint {checkpoint} has format version 2, but rl_training {__version__} reads at most version 1; "
        "it was written by rl_training 0.5.1; install that version or newer"
    )


@pytest.mark.parametrize("writer", [None, 7, "", "; rm -rf"])
def test_a_newer_part_of_an_unknown_writer_asks_for_the_newest(checkpoint: Path, writer: Any) -> None:
    edit(checkpoint, of_version("training", 2, writer))
    with pytest.raises(IncompatibleError, match=r"reads at most version 1; install the newest version of rl_training$"):
        verify_checkpoint(checkpoint)


def test_a_part_that_is_too_old_is_refused_with_the_last_version_that_could(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(PART_VERSIONS, "training", 4)
    monkeypatch.setitem(compat.MIGRATIONS, ("training", 1), lambda state, context: state)
    monkeypatch.setitem(compat.MIGRATIONS, ("training", 3), lambda state, context: state)
    monkeypatch.setitem(compat.LAST_READERS, ("training", 2), "0.7.3")
    with pytest.raises(IncompatibleError) as caught:
        read_checkpoint(checkpoint, ["training"])
    assert str(caught.value) == (
        f"the part 'training' of the checkpoint {checkpoint} has version 1, which rl_training {__version__} no longer reads; "
        "rl_training 0.7.3 is the last version that does; install that version to use it"
    )
    with pytest.raises(IncompatibleError, match=r"0\.7\.3"):
        verify_checkpoint(checkpoint)
    edit(checkpoint, of_version("training", 3))
    assert read_checkpoint(checkpoint, ["training"])


def test_a_container_that_is_too_old_is_refused_and_a_migration_reads_it(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compat, "SCHEMA_VERSION", 2)
    edit(checkpoint, lambda body: body.update(written_by="0.2.0"))
    with pytest.raises(IncompatibleError, match=r"format version 1, which .* it was written by rl_training 0\.2\.0; install"):
        read_manifest(checkpoint)

    def migration(manifest: State, context: PartContext) -> State:
        return {**manifest, "info": {**manifest["info"], "seen": context.part}}

    monkeypatch.setitem(compat.MIGRATIONS, (compat.CONTAINER, 1), migration)
    assert read_manifest(checkpoint)["info"] == {"step": 3, "seen": "container"}
    write_checkpoint(checkpoint, PARTS, {"step": 4})
    manifest = read_manifest(checkpoint)
    assert (manifest["schema_version"], manifest["info"]) == (2, {"step": 4})


@pytest.mark.parametrize("version", ["1", None, True, 1.0, [1]])
def test_a_version_that_is_no_number_is_refused(checkpoint: Path, version: Any) -> None:
    edit(checkpoint, of_version("training", version))
    with pytest.raises(CheckpointError, match="is damaged: it has no valid version"):
        verify_checkpoint(checkpoint)
    edit(checkpoint, lambda body: body.update(part_versions=version))
    with pytest.raises(CheckpointError, match="is damaged: it has no valid version"):
        verify_checkpoint(checkpoint)
    edit(checkpoint, lambda body: body.update(schema_version=version))
    with pytest.raises(CheckpointError, match="is damaged: it has no valid version"):
        read_manifest(checkpoint)


def test_resume_passes_over_a_newer_part_with_a_warning(run: Path) -> None:
    newest, before = step_directories(run)[:2]
    edit(newest, of_version("replay", 3))
    messages: list[str] = []
    trainer = resume_training(run, warn=messages.append)
    trainer.close()
    assert f"step-{trainer.env_steps:010d}" == before.name
    assert len(messages) == 1
    assert "written by rl_training 0.4.0; install that version or newer" in messages[0]
    assert (run / "checkpoints" / "set-aside" / newest.name).exists()


def test_a_run_of_a_newer_version_is_refused_by_that_name_and_not_begun_again(run: Path) -> None:
    for path in step_directories(run):
        edit(path, of_version("policy", 2))
    with pytest.raises(IncompatibleError, match=r"rl_training 0\.4\.0"):
        resume_training(run, warn=silent)
    with pytest.raises(IncompatibleError, match=r"rl_training 0\.4\.0"):
        load_acting(run, silent)
    with pytest.raises(IncompatibleError, match=r"rl_training 0\.4\.0"):
        load_policy(step_directories(run)[0], silent)


def test_an_exported_policy_of_a_newer_version_is_refused(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "p.safetensors"
    monkeypatch.setitem(PART_VERSIONS, "policy", 2)
    monkeypatch.setitem(compat.MIGRATIONS, ("policy", 1), lambda state, context: state)
    load_agent(run).export(file)
    monkeypatch.setitem(PART_VERSIONS, "policy", 1)
    with pytest.raises(IncompatibleError, match=rf"exported policy .* version 2.* written by rl_training {__version__}"):
        load_exported(file)


def test_an_exported_policy_without_versions_is_of_the_first(run: Path, tmp_path: Path) -> None:
    file = tmp_path / "p.safetensors"
    load_agent(run).export(file)
    with safe_open(file, framework="numpy") as opened:
        description = json.loads(opened.metadata()["rl_training"])
    assert (description.pop("written_by"), description.pop("part_versions")) == (__version__, {"agent": 1, "policy": 1})
    save_file(load_file(file), file, metadata={"rl_training": json.dumps(description)})
    load_exported(file)
