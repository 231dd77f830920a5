"""Renamed settings keep their old names, with a warning; runs of other versions name the version that wrote them."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Annotated, Any

import pytest
import yaml
from conftest import tiny_values
from pydantic import Field, ValidationError
from safetensors import safe_open
from safetensors.numpy import load_file, save_file
from test_compatibility import edit, silent

from rl_training.algorithms.config import Count, Fraction, Positive
from rl_training.algorithms.dqn import DQNConfig
from rl_training.algorithms.strict_model import StrictModel, old_names, renamed_from
from rl_training.api import DQN, load_agent
from rl_training.cli import main
from rl_training.errors import ConfigError
from rl_training.experiment import compat
from rl_training.experiment.config import (
    TrainConfig,
    apply_overrides,
    load_config_data,
    resolve_config,
)
from rl_training.experiment.registry import get_algorithm
from rl_training.experiment.run import open_run, step_directories
from rl_training.experiment.sections import CheckpointConfig, EvalConfig, LogConfig
from rl_training.runtime.export import load_exported
from rl_training.runtime.inference import load_policy
from rl_training.runtime.sessions import resume_training
from rl_training.version import __version__


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
