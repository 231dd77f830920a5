"""Configs: read, overridden, checked, spelled out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from conftest import tiny_values

from rl_training.algorithms.value import ValueConfig
from rl_training.errors import ConfigError
from rl_training.experiment.config import apply_overrides, load_config_data, resolve_config
from rl_training.experiment.packaged import packaged_configs
from rl_training.experiment.registry import algorithms
from rl_training.experiment.sections import EvalConfig


def message_of(values: dict[str, Any]) -> str:
    with pytest.raises(ConfigError) as caught:
        resolve_config(values)
    return str(caught.value)


@pytest.mark.parametrize("name", sorted(packaged_configs()))
def test_packaged_config_resolves_and_survives_its_yaml(name: str, tmp_path: Path) -> None:
    config = resolve_config(load_config_data(name))
    assert config.algo == name.split("/")[0]
    file = tmp_path / "again.yaml"
    file.write_text(config.to_yaml())
    assert resolve_config(load_config_data(str(file))) == config


def test_a_config_on_a_base_changes_what_it_names_and_keeps_the_rest(tmp_path: Path) -> None:
    base = load_config_data("ppo/hopper")
    file = tmp_path / "mine.yaml"
    file.write_text(
        "base: ppo/hopper\nenv_id: Ant-v5\nalgo_kwargs: {n_epochs: 3, learning_rate: {kind: constant, from: 1.0e-4}}\n"
    )
    expected = {**base, "env_id": "Ant-v5"}
    expected["algo_kwargs"] = {
        **base["algo_kwargs"],
        "n_epochs": 3,
        "learning_rate": {"kind": "constant", "from": 1e-4},  # replaced whole, not mixed with the base's linear schedule
    }
    assert load_config_data(str(file)) == expected


def on_base(text: str, folder: Path) -> dict[str, Any]:
    file = folder / "mine.yaml"
    file.write_text(text)
    return load_config_data(str(file))


def test_a_config_on_a_base_merges_groups_and_replaces_the_rest(tmp_path: Path) -> None:
    base = load_config_data("ppo/minigrid_memory")  # itself on a base that is on a base
    assert base["wrappers"] == load_config_data("ppo/minigrid_empty")["wrappers"]
    own = on_base("base: ppo/minigrid_memory\neval: {episodes: 3}\nwrappers: [flatten_observation]\n", tmp_path)
    assert own["eval"] == {**base["eval"], "episodes": 3}
    assert own["wrappers"] == ["flatten_observation"]
    assert {**own, "eval": 0, "wrappers": 0} == {**base, "eval": 0, "wrappers": 0}


def test_null_for_a_group_takes_over_nothing_of_the_base(tmp_path: Path) -> None:
    base = load_config_data("dqn/recall")
    assert base["env_kwargs"]
    own = on_base("base: dqn/recall\nenv_kwargs: null\nenv_id: CartPole-v1\n", tmp_path)
    assert "env_kwargs" not in own
    assert resolve_config(own).env_kwargs == {}


def test_a_base_of_another_algorithm_is_taken_if_all_its_settings_exist_there(tmp_path: Path) -> None:
    own = on_base("base: ppo/minigrid_empty\nalgo: recurrent_ppo\n", tmp_path)
    assert own == {**load_config_data("ppo/minigrid_empty"), "algo": "recurrent_ppo"}
    with pytest.raises(ConfigError) as caught:
        on_base("base: ppo/hopper\nalgo: sac\n", tmp_path)
    assert "base ppo/hopper is a config of ppo and sets n_steps, n_epochs, n_minibatches, initial_log_std, which sac" in str(
        caught.value
    )
    with pytest.raises(ConfigError, match="unknown algorithm"):
        on_base("base: ppo/hopper\nalgo: saac\n", tmp_path)


@pytest.mark.parametrize(
    ("base", "problem"),
    [
        ("hopper", "not 'hopper'; did you mean ppo/hopper or sac/hopper?"),
        ("ppo/hoper", "not 'ppo/hoper'; did you mean 'ppo/hopper'?"),
        ("../mine.yaml", "not '../mine.yaml'"),  # no files: a config is complete without others beside it
        ("[ppo/hopper]", "not ['ppo/hopper']"),
        ("null", "not None"),
    ],
)
def test_a_base_that_is_no_packaged_config_is_refused(base: str, problem: str, tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(f"base: {base}\nenv_id: Ant-v5\n")
    with pytest.raises(ConfigError) as caught:
        load_config_data(str(file))
    assert "base must be the name of a packaged config" in str(caught.value)
    assert problem in str(caught.value)


def test_a_base_outside_a_file_is_refused_with_what_to_do_instead() -> None:
    expected = "base works only in a file given to --config or from_config; elsewhere, name the packaged config itself"
    assert message_of({"base": "ppo/cartpole"}) == expected
    assert message_of(apply_overrides(load_config_data("ppo/cartpole"), ["base=ppo/hopper"])) == expected


def test_every_algorithm_has_a_packaged_config() -> None:
    assert {name.split("/")[0] for name in packaged_configs()} == set(algorithms())


def test_a_resolved_config_spells_out_every_default(algo: str) -> None:
    config = resolve_config({"algo": algo, "env_id": "CartPole-v1"})
    written = yaml.safe_load(config.to_yaml())
    assert set(written) == set(type(config).model_fields) - {"output_dir"}
    assert set(written["algo_kwargs"]) == set(type(config.algo_kwargs).model_fields)
    assert set(written["eval"]) == set(EvalConfig.model_fields)


@pytest.mark.parametrize("text", ["1e-3", "0.001", "1.0e-3"])
def test_numbers_that_yaml_leaves_as_text_are_numbers(text: str) -> None:
    data = apply_overrides({"algo": "dqn", "env_id": "CartPole-v1"}, [f"algo_kwargs.learning_rate={text}"])
    learning_rate = resolve_config(data).algo_kwargs.learning_rate
    assert type(learning_rate) is float
    assert learning_rate == 1e-3


def test_a_wrapper_may_have_its_arguments_below_its_name_or_be_a_name() -> None:
    data: dict[str, Any] = {"algo": "dqn", "env_id": "CartPole-v1"}
    config = resolve_config({**data, "wrappers": [{"select_observation": {"keys": ["a"]}}, {"my_env:Half": {}}]})
    assert config.wrappers == ({"name": "select_observation", "keys": ["a"]}, {"name": "my_env:Half"})
    assert "unknown wrapper 'select'" in message_of({**data, "wrappers": [{"select": {"keys": ["a"]}}]})
    assert resolve_config({**data, "wrappers": ["atari", "my_env:Half"]}).wrappers == (
        {"name": "atari"},
        {"name": "my_env:Half"},
    )
    assert "unknown wrapper 'nonsense'" in message_of({**data, "wrappers": ["nonsense"]})
    for wrapper in ({"select_observation": ["a"]}, {"my_env:Half": {"name": "other"}}, {}):
        assert "a wrapper needs a name" in message_of({**data, "wrappers": [wrapper]})


def test_overrides_reach_groups_and_leave_the_original_alone() -> None:
    original: dict[str, Any] = {"algo": "dqn", "env_id": "CartPole-v1", "eval": {"episodes": 7}}
    changed = apply_overrides(original, ["eval.interval=40", "algo_kwargs.hidden_sizes=[8, 8]", "seed=3", "seed=4"])
    assert original == {"algo": "dqn", "env_id": "CartPole-v1", "eval": {"episodes": 7}}
    config = resolve_config(changed)
    assert (config.eval.episodes, config.eval.interval, config.seed) == (7, 40, 4)
    assert isinstance(config.algo_kwargs, ValueConfig)
    assert config.algo_kwargs.hidden_sizes == (8, 8)


def test_env_kwargs_take_any_key() -> None:
    data = apply_overrides(
        tiny_values("dqn"), ["env_kwargs.is_slippery=false", "env_kwargs.nested.size=4", "env_kwargs.name=a=b"]
    )
    assert resolve_config(data).env_kwargs == {"is_slippery": False, "nested": {"size": 4}, "name": "a=b"}


@pytest.mark.parametrize("override", ["batch_size", "=3", ""])
def test_an_override_is_key_and_value(override: str) -> None:
    with pytest.raises(ConfigError, match="--set takes key=value"):
        apply_overrides({}, [override])


def test_an_override_below_a_plain_value_is_refused() -> None:
    with pytest.raises(ConfigError, match="'seed' is a value, not a group"):
        apply_overrides({"seed": 3}, ["seed.x=1"])


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"sed": 1}, "unknown key 'sed'; did you mean 'seed'?"),
        ({"total_timestep": 1}, "unknown key 'total_timestep'; did you mean 'total_timesteps'?"),
        ({"eval": {"episode": 1}}, "unknown key 'eval.episode'; did you mean 'episodes'?"),
        ({"checkpoint": {"kep": 1}}, "unknown key 'checkpoint.kep'; did you mean 'keep'?"),
        ({"algo_kwargs": {"gama": 1}}, "unknown key 'algo_kwargs.gama'; did you mean 'gamma'?"),
        ({"log": {"zzzzzz": 1}}, "unknown key 'log.zzzzzz'; choose one of: info_keys, interval, tensorboard, trackers"),
    ],
)
def test_unknown_keys_are_named_with_the_nearest(change: dict[str, Any], expected: str) -> None:
    assert message_of({"algo": "dqn", "env_id": "CartPole-v1", **change}) == expected


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"seed": True}, ["seed", "not true or false"]),
        ({"seed": -1}, ["seed", "greater than or equal to 0", "-1"]),
        ({"num_envs": 0}, ["num_envs", "greater than or equal to 1"]),
        ({"eval": 3}, ["eval is a group of settings (interval, episodes,", "), not 3"]),
        ({"env_kwargs": 3}, ["env_kwargs", "dictionary"]),
        ({"algo_kwargs": [1]}, ["algo_kwargs must be a mapping"]),
        ({"algo_kwargs": {"learning_rate": float("nan")}}, ["algo_kwargs.learning_rate", "finite"]),
        ({"algo_kwargs": {"learning_rate": 0}}, ["algo_kwargs.learning_rate", "greater than 0"]),
        ({"algo_kwargs": {"final_learning_rate": 1e-4}}, ["learning_rate_decay_steps", "set both or neither"]),
        ({"algo_kwargs": {"hidden_sizes": [0]}}, ["algo_kwargs.hidden_sizes.0"]),
    ],
)
def test_wrong_values_are_named(change: dict[str, Any], words: list[str]) -> None:
    message = message_of({"algo": "dqn", "env_id": "CartPole-v1", **change})
    assert all(word in message for word in words), message


def test_all_mistakes_are_reported_at_once() -> None:
    values = tiny_values("dqn", sed=1, algo_kwargs={"gamma": 1.5, "batch_size": -1})
    message = message_of(values)
    assert "unknown key 'sed'" in message
    assert "algo_kwargs.gamma" in message
    assert "algo_kwargs.batch_size" in message


def test_a_setting_that_is_right_is_not_complained_about() -> None:
    message = message_of(tiny_values("dqn", algo_kwargs={"gamma": 1.5}))
    assert message.startswith("algo_kwargs.gamma")
    assert "learning_starts" not in message  # it is 20 of 240, only its default would be too large


@pytest.mark.parametrize(("missing", "flag"), [("algo", "--algo"), ("env_id", "--env")])
def test_algorithm_and_environment_are_required(missing: str, flag: str) -> None:
    values = tiny_values("dqn")
    del values[missing]
    assert flag in message_of(values)


def test_a_copy_with_other_values_is_checked_too() -> None:
    config = resolve_config(tiny_values("dqn"))
    assert config.with_values(total_timesteps=999).total_timesteps == 999
    with pytest.raises(ConfigError, match="nothing would be learned"):
        config.with_values(total_timesteps=5)


def test_a_yaml_file_is_data_never_code(tmp_path: Path) -> None:
    evidence = tmp_path / "evidence"
    file = tmp_path / "attack.yaml"
    file.write_text(f"algo: !!python/object/apply:os.mkdir ['{evidence}']\n")
    with pytest.raises(ConfigError, match=r"attack\.yaml is not valid YAML"):
        load_config_data(str(file))
    assert not evidence.exists()
