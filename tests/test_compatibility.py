"""Old files and new code: what is brought up to date, what takes a default, what is refused and in which words."""

from __future__ import annotations

import copy
import json
import re
import shutil
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pytest
import torch
import yaml
from conftest import tiny_config, tiny_values
from pydantic import Field, ValidationError
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from rl_training.algorithms.config import Count, Fraction, Positive
from rl_training.algorithms.dqn import DQNConfig
from rl_training.algorithms.strict_model import StrictModel, old_names, renamed_from
from rl_training.api import DQN, load_agent
from rl_training.cli import main
from rl_training.errors import CheckpointError, ConfigError, IncompatibleError
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
from rl_training.experiment.compat import PART_VERSIONS, PartContext, with_defaults
from rl_training.experiment.config import (
    TrainConfig,
    apply_overrides,
    load_config_data,
    resolve_config,
)
from rl_training.experiment.finding import load_acting
from rl_training.experiment.registry import get_algorithm
from rl_training.experiment.run import open_run, step_directories
from rl_training.experiment.sections import CheckpointConfig, EvalConfig, LogConfig
from rl_training.runtime.export import ExportedPolicy, load_exported
from rl_training.runtime.inference import load_policy
from rl_training.runtime.sessions import resume_training
from rl_training.runtime.trainer import Trainer
from rl_training.runtime.training_state import training_state
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


# -------------------------------------------------------------------------------------------------------- defaults


def test_an_absent_key_takes_the_initial_value_at_any_depth() -> None:
    saved = {"steps": 5, "owed": {"log": 2}, "pool": {"deep": {"a": 1}}}
    initial = {"steps": 0, "owed": {"log": 0, "film": 9}, "pool": {"deep": {"a": 0, "b": {"c": 3}}}, "extra": [1]}
    assert with_defaults(saved, initial) == {
        "steps": 5,
        "owed": {"log": 2, "film": 9},
        "pool": {"deep": {"a": 1, "b": {"c": 3}}},
        "extra": [1],
    }
    assert saved == {"steps": 5, "owed": {"log": 2}, "pool": {"deep": {"a": 1}}}
    assert initial["owed"] == {"log": 0, "film": 9}


def test_lists_arrays_and_what_is_no_mapping_on_both_sides_are_taken_as_saved() -> None:
    saved: State = {"list": [{"a": 1}], "array": np.ones(2), "tensor": torch.ones(2), "none": None, "some": {"x": 1}}
    initial: State = {
        "list": [{"a": 0, "b": 0}],
        "array": np.zeros(3),
        "tensor": torch.zeros(1),
        "none": {"k": 1},
        "some": None,
    }
    merged = with_defaults(saved, initial)
    assert merged == saved
    assert all(merged[key] is saved[key] for key in ("list", "array", "tensor"))


@pytest.mark.parametrize("name", ["streams", "metrics", "held", "columns"])
def test_mappings_that_are_data_are_taken_as_saved(name: str) -> None:
    saved = {"learner": {name: {"mine": {"state": 1}}}}
    initial = {"learner": {name: {"fresh": 0, "mine": {"state": 0, "inc": 5}}}}
    assert with_defaults(saved, initial) == saved
    assert with_defaults({"learner": {}}, initial) == initial


@pytest.mark.parametrize("place", ["env_steps", "streams", "learner.algorithm.targets"])
def test_what_no_fresh_object_can_stand_in_for_must_be_there(place: str) -> None:
    *outer, last = place.split(".")
    initial: dict[str, Any] = {"env_steps": 0, "streams": {}, "learner": {"algorithm": {"targets": {}, "held": {}}}}
    saved = copy.deepcopy(initial)
    inner = saved
    for key in outer:
        inner = inner[key]
    del inner[last]
    with pytest.raises(CheckpointError, match=rf"lacks '{re.escape(place)}', without which the run cannot be continued"):
        with_defaults(saved, initial)


def test_an_unknown_key_is_refused_for_what_it_says_would_be_lost() -> None:
    saved, initial = {"learner": {"momentum": 1, "steps": 2}}, {"learner": {"steps": 0}}
    with pytest.raises(IncompatibleError) as caught:
        with_defaults(saved, initial, "the part 'training' of X", "99.0.0")
    assert str(caught.value) == (
        f"the part 'training' of X holds 'learner.momentum', which rl_training {__version__} does not know; it was written "
        "by rl_training 99.0.0; install that version or newer"
    )
    with pytest.raises(IncompatibleError, match=r"it was written by rl_training 0\.0\.1; install that version to use it$"):
        with_defaults(saved, initial, "X", "0.0.1")
    with pytest.raises(IncompatibleError, match=r"use the version of rl_training that wrote it$"):
        with_defaults(saved, initial)


def test_the_states_of_every_algorithm_lack_nothing_and_hold_nothing_unknown(algo: str, tmp_path: Path) -> None:
    """A trained state against a fresh one: only what is listed as data may differ in its keys."""
    trained, fresh = Trainer(tiny_config(algo)), Trainer(tiny_config(algo))
    trained.train(130)
    trained.checkpoints.save_to(tmp_path / "c")
    parts = read_checkpoint(tmp_path / "c", ["training", "replay"])
    defaults = fresh.learner.replay_defaults(parts["replay"])
    for part, initial in (("training", training_state(fresh)), ("replay", defaults)):
        assert keys_of(with_defaults(parts[part], initial)) == keys_of(parts[part])
    trained.close()
    fresh.close()


def keys_of(state: Any) -> Any:
    return {key: keys_of(value) for key, value in state.items()} if isinstance(state, Mapping) else None


# ---------------------------------------------------------------------------------------------------- renamed settings


class Group(StrictModel):
    """A group whose setting had two names before."""

    span: Positive = Field(5, json_schema_extra=renamed_from("length", "size"))
    other: Count = 1


class Special(Group):
    """Another default, the same setting."""

    span: Positive = Field(7, description="redefined")


class Whole(StrictModel):
    """A group in a model."""

    group: Group = Field(default_factory=Group, json_schema_extra=renamed_from("part"))
    rate: Annotated[Fraction, Field(description="inner")] = Field(0.5, json_schema_extra=renamed_from("speed"))


class RenamedDQNConfig(DQNConfig):
    """As if ``gamma`` had been called ``discount``."""

    gamma: Fraction = Field(0.99, description="discount factor", json_schema_extra=renamed_from("discount"))


@pytest.fixture
def renamed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Renames a setting of the packaged DQN, each group, and some at the top."""
    monkeypatch.setattr(get_algorithm("dqn"), "config_class", RenamedDQNConfig)
    for model, name, old in (
        (EvalConfig, "episodes", "rounds"),
        (CheckpointConfig, "keep", "kept"),
        (LogConfig, "interval", "every"),
        (TrainConfig, "seed", "random_seed"),
        (TrainConfig, "env_id", "environment"),
        (TrainConfig, "eval", "judging"),
    ):
        monkeypatch.setattr(model.model_fields[name], "json_schema_extra", renamed_from(old))


@pytest.mark.parametrize("model", [Group, Special])
@pytest.mark.parametrize("old", ["length", "size"])
def test_an_old_name_is_taken_with_a_warning_that_names_both(model: type[Group], old: str) -> None:
    with pytest.warns(UserWarning, match=f"'{old}' is now called 'span'"):
        assert model.model_validate({old: 3}).span == 3
    with pytest.raises(ValidationError, match="greater than or equal to 1"), pytest.warns(UserWarning, match="span"):
        model.model_validate({old: 0})


def test_the_new_name_is_silent_and_the_old_one_is_no_attribute() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert Group(span=3).model_dump() == {"span": 3, "other": 1}
        assert Special().span == 7
    assert not hasattr(Group(), "length")


def test_old_names_in_a_nested_group_and_of_the_group_itself() -> None:
    with pytest.warns(UserWarning, match="is now called") as caught:
        whole = Whole.model_validate({"part": {"size": 4}, "speed": 0.25})
    assert (whole.group.span, whole.rate) == (4, 0.25)
    assert len(caught) == 3


@pytest.mark.parametrize("given", [{"span": 1, "size": 1}, {"length": 1, "size": 2}])
def test_two_names_of_one_setting_at_once_are_an_error(given: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match="'span' is given twice") as caught, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        Group.model_validate(given)
    assert all(f"'{name}'" in str(caught.value) for name in given)


def test_an_old_name_cannot_be_that_of_a_setting() -> None:
    with pytest.raises(TypeError, match="Confused: 'b' is both an old name of 'a' and a setting"):

        class Confused(StrictModel):
            a: int = Field(1, json_schema_extra=renamed_from("b"))
            b: int = 2

    with pytest.raises(TypeError, match="Doubtful: 'z' is the old name of both 'a' and 'b'"):

        class Doubtful(StrictModel):
            a: int = Field(1, json_schema_extra=renamed_from("z"))
            b: int = Field(2, json_schema_extra=renamed_from("z"))


def test_old_names_are_listed_with_the_new_ones() -> None:
    assert old_names(Special) == {"length": "span", "size": "span"}
    assert old_names(TrainConfig) == {}


OLD = {
    "algo": "dqn",
    "environment": "CartPole-v1",
    "random_seed": 3,
    "judging": {"rounds": 4},
    "checkpoint": {"kept": 5},
    "log": {"every": 6},
    "algo_kwargs": {"discount": 0.5},
}


def values_of(config: TrainConfig) -> tuple[Any, ...]:
    top = (config.env_id, config.seed, config.eval.episodes, config.checkpoint.keep, config.log.interval)
    return (*top, config.algo_kwargs.gamma)


def old_names_warned_of(caught: pytest.WarningsRecorder) -> list[str]:
    return sorted(str(item.message).split("'")[1] for item in caught if item.category is UserWarning)


ALL_OLD = sorted(["environment", "random_seed", "judging", "rounds", "kept", "every", "discount"])


@pytest.mark.usefixtures("renamed")
def test_old_names_everywhere_in_a_config_file(tmp_path: Path) -> None:
    file = tmp_path / "old.yaml"
    file.write_text(yaml.safe_dump(OLD))
    with pytest.warns(UserWarning, match="is now called") as caught:
        config = resolve_config(load_config_data(str(file)))
    assert values_of(config) == ("CartPole-v1", 3, 4, 5, 6, 0.5)
    assert old_names_warned_of(caught) == ALL_OLD  # each once
    assert not {"environment", "judging", "random_seed"} & set(yaml.safe_load(config.to_yaml()))


@pytest.mark.usefixtures("renamed")
def test_old_names_everywhere_in_a_mapping() -> None:
    with pytest.warns(UserWarning, match="is now called") as caught:
        assert values_of(resolve_config(OLD)) == ("CartPole-v1", 3, 4, 5, 6, 0.5)
    assert old_names_warned_of(caught) == ALL_OLD


OVERRIDES = ["random_seed=30", "judging.rounds=40", "checkpoint.kept=50", "log.every=60", "algo_kwargs.discount=0.25"]


@pytest.mark.usefixtures("renamed")
@pytest.mark.parametrize("base", [OLD, {"algo": "dqn", "env_id": "CartPole-v1", "seed": 1, "algo_kwargs": {"gamma": 0.9}}])
def test_an_override_by_the_old_name_replaces_the_value_under_either(base: dict[str, Any]) -> None:
    with pytest.warns(UserWarning, match="'discount' is now called 'gamma'"):
        config = resolve_config(apply_overrides(base, OVERRIDES))
    assert values_of(config) == ("CartPole-v1", 30, 40, 50, 60, 0.25)


@pytest.mark.usefixtures("renamed")
def test_an_override_by_the_new_name_replaces_the_value_under_the_old_one() -> None:
    with pytest.warns(UserWarning, match="is now called"):
        config = resolve_config(apply_overrides(OLD, ["algo_kwargs.gamma=0.75", "eval.episodes=8", "seed=9"]))
    assert (config.algo_kwargs.gamma, config.eval.episodes, config.seed) == (0.75, 8, 9)


@pytest.mark.usefixtures("renamed")
def test_the_command_line_takes_old_names(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "old.yaml"
    file.write_text(yaml.safe_dump({**tiny_values("dqn"), "random_seed": 3, "total_timesteps": 40}))
    output = tmp_path / "run"
    arguments = ["--config", str(file), "--seed", "5", "--set", "algo_kwargs.discount=0.5", "--output-dir", str(output)]
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        assert main(["train", "--quiet", *arguments]) == 0
    messages = capsys.readouterr().err
    assert "warning: the setting 'random_seed' is now called 'seed'" in messages
    assert "warning: the setting 'discount' is now called 'gamma'" in messages
    written = yaml.safe_load((output / "config.yaml").read_text())
    assert (written["seed"], written["algo_kwargs"]["gamma"]) == (5, 0.5)


@pytest.mark.usefixtures("renamed")
def test_keyword_arguments_take_old_names() -> None:
    with pytest.warns(UserWarning, match="is now called") as caught:
        agent = DQN("CartPole-v1", discount=0.5, random_seed=3, judging={"rounds": 2}, log={"every": 6})
    assert (agent.config.algo_kwargs.gamma, agent.config.seed) == (0.5, 3)
    assert (agent.config.eval.episodes, agent.config.log.interval) == (2, 6)
    assert old_names_warned_of(caught) == ["discount", "every", "judging", "random_seed", "rounds"]
    with pytest.warns(UserWarning, match="'discount' is now called 'gamma'"):
        agent = DQN.from_config("dqn/cartpole", discount=0.5, random_seed=3)
    assert (agent.config.algo_kwargs.gamma, agent.config.seed) == (0.5, 3)


@pytest.mark.parametrize("where", [TrainConfig, DQNConfig])
def test_a_keyword_that_is_a_setting_now_is_no_old_name_of_another(
    where: type[StrictModel], monkeypatch: pytest.MonkeyPatch
) -> None:
    name, taken = ("threads", "batch_size") if where is TrainConfig else ("gamma", "device")
    monkeypatch.setattr(where.model_fields[name], "json_schema_extra", renamed_from(taken))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        config = DQN("CartPole-v1", batch_size=7, device="meta").config
    assert config == resolve_config(
        {"algo": "dqn", "env_id": "CartPole-v1", "device": "meta", "algo_kwargs": {"batch_size": 7}}
    )


@pytest.mark.usefixtures("renamed")
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_both_names_at_once_are_one_sentence() -> None:
    base = {"algo": "dqn", "env_id": "CartPole-v1"}
    for given, expected in (
        (
            {"algo_kwargs": {"gamma": 0.5, "discount": 0.5}},
            "algo_kwargs: 'gamma' is given twice: as 'gamma' and as 'discount'",
        ),
        ({"eval": {"episodes": 1, "rounds": 2}}, "eval: 'episodes' is given twice: as 'episodes' and as 'rounds'"),
        ({"seed": 1, "random_seed": 1}, "'seed' is given twice: as 'seed' and as 'random_seed'"),
    ):
        with pytest.raises(ConfigError) as caught:
            resolve_config({**base, **given})
        assert str(caught.value).startswith(expected)
        assert "\n" not in str(caught.value)
    with pytest.raises(ConfigError, match="'gamma' is given twice"):
        DQN("CartPole-v1", gamma=0.5, discount=0.5)


@pytest.mark.usefixtures("renamed")
def test_old_names_are_never_suggested() -> None:
    for given, unknown in (
        ({"algo_kwargs": {"discoun": 1}}, "discoun"),
        ({"eval": {"round": 1}}, "round"),
        ({"random_sed": 1}, "random_sed"),
    ):
        with pytest.raises(ConfigError, match=unknown) as caught:
            resolve_config({"algo": "dqn", "env_id": "CartPole-v1", **given})
        assert not any(f"'{name}'" in str(caught.value) for name in ("discount", "rounds", "random_seed"))
    with pytest.raises(ConfigError) as caught:
        DQN("CartPole-v1", discoun=0.5)
    assert "'discount'" not in str(caught.value)


@pytest.mark.usefixtures("renamed")
def test_the_config_of_an_old_checkpoint_and_run_may_have_old_names(run: Path) -> None:
    newest = step_directories(run)[0]
    agent = json.loads((newest / "agent.json").read_text())
    settings = agent["config"]["algo_kwargs"]
    settings["discount"] = settings.pop("gamma") / 2
    agent["config"]["eval"]["rounds"] = agent["config"]["eval"].pop("episodes")
    (newest / "agent.json").write_text(json.dumps(agent))
    edit(newest)
    with pytest.warns(UserWarning, match="'discount' is now called 'gamma'"):
        config, _, _ = load_policy(newest, silent)
    assert (config.algo_kwargs.gamma, config.eval.episodes) == (0.495, 3)
    file = run / "config.yaml"
    file.write_text(file.read_text().replace("gamma: 0.99", "discount: 0.495").replace("\nseed:", "\nrandom_seed:"))
    with pytest.warns(UserWarning, match="is now called") as caught:
        trainer = resume_training(run, total_timesteps=250, warn=silent)
    assert trainer.config.algo_kwargs.gamma == 0.495
    trainer.close()
    assert old_names_warned_of(caught) == ["discount", "random_seed"]
    written = yaml.safe_load(file.read_text())
    assert (written["algo_kwargs"]["gamma"], written["seed"]) == (0.495, 0)


# ---------------------------------------------------------------------------------------- configs of other versions


def test_a_config_of_an_older_version_takes_the_defaults_of_new_settings(run: Path) -> None:
    file = run / "config.yaml"
    data = yaml.safe_load(file.read_text())
    expected = resolve_config(data)
    del data["threads"], data["wrappers"], data["checkpoint"]["replay_every"], data["algo_kwargs"]["adam_eps"]
    file.write_text(yaml.safe_dump(data))
    opened = open_run(run)
    opened.close()
    assert opened.config == expected
    newest = step_directories(run)[0]
    agent = json.loads((newest / "agent.json").read_text())
    (newest / "agent.json").write_text(json.dumps({**agent, "config": data}))
    edit(newest)
    assert load_policy(newest, silent)[0] == expected


@pytest.mark.parametrize("told_by", ["metadata", "checkpoint"])
def test_an_unknown_key_in_a_run_of_a_newer_version_names_that_version(run: Path, told_by: str) -> None:
    file = run / "config.yaml"
    file.write_text(file.read_text() + "hyperdrive: 1\n")
    with pytest.raises(ConfigError, match=r"^unknown key 'hyperdrive'") as caught:
        open_run(run)
    assert "written by" not in str(caught.value)  # this version itself did
    if told_by == "metadata":
        metadata = json.loads((run / "metadata.json").read_text())
        metadata["versions"]["rl-training"] = "99.1.0"
        (run / "metadata.json").write_text(json.dumps(metadata))
    else:
        edit(step_directories(run)[0], lambda body: body.update(written_by="99.1.0"))
    with pytest.raises(ConfigError, match="hyperdrive") as caught:
        open_run(run)
    assert str(caught.value).endswith(
        f"; {run} was written by rl_training 99.1.0, which is newer than this version ({__version__}): install that version "
        "or newer"
    )


@pytest.mark.parametrize("content", ["", "[]", '{"versions": 3}', '{"versions": {"rl-training": null}}'])
def test_metadata_without_content_does_no_harm(run: Path, content: str) -> None:
    (run / "metadata.json").write_text(content)
    open_run(run).close()


def test_an_unknown_key_in_a_checkpoint_or_export_of_a_newer_version_names_that_version(run: Path, tmp_path: Path) -> None:
    exported = tmp_path / "p.safetensors"
    load_agent(run).export(exported)
    newest = step_directories(run)[0]
    agent = json.loads((newest / "agent.json").read_text())
    agent["config"]["algo_kwargs"]["hyperdrive"] = 1
    (newest / "agent.json").write_text(json.dumps(agent))
    with safe_open(exported, framework="numpy") as file:
        description = json.loads(file.metadata()["rl_training"])
    for writer, newer in (("99.1.0", True), (__version__, False)):
        edit(newest, lambda body, writer=writer: body.update(written_by=writer))  # type: ignore[misc]
        metadata = {"rl_training": json.dumps({**description, **agent, "written_by": writer})}
        save_file(load_file(exported), exported, metadata=metadata)
        for load in (lambda: load_policy(newest, silent), lambda: load_exported(exported)):
            with pytest.raises(ConfigError, match=r"unknown key 'algo_kwargs\.hyperdrive'") as caught:
                load()
            assert ("was written by rl_training 99.1.0" in str(caught.value)) == newer


@pytest.mark.parametrize(
    ("one", "other", "newer"),
    [
        ("0.10.0", "0.9.9", True),
        ("0.9.9", "0.10.0", False),
        ("1.0.0", "1.0", False),
        ("1.0.0.dev3", "0.9", True),
        ("1.0.1", "1.0", True),
        ("nonsense", "1.0", False),
        (None, "1.0", False),
        (3, "1.0", False),
    ],
)
def test_releases_are_compared_by_number(one: Any, other: str, newer: bool) -> None:
    assert compat.is_newer(one, other) == newer
