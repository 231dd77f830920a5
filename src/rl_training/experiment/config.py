"""The config of a run: typed, strict, and complete once resolved.

A config comes from a packaged name (``dqn/cartpole``), a YAML file or keyword arguments, with ``key=value`` overrides on top.
Every mistake in it is reported in one sentence, with the nearest valid name.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import (
    BeforeValidator,
    Field,
    SerializeAsAny,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticSerializationError

from rl_training.algorithms.config import (
    NUMBER,
    SCHEDULE,
    AlgorithmConfig,
    Count,
    Positive,
    PositiveNumber,
    ScheduleConfig,
)
from rl_training.algorithms.strict_model import MAY_CHANGE, StrictModel, current_name, with_current_names
from rl_training.envs.wrappers import spelled_out, wrapper_problem
from rl_training.errors import FOREIGN, MOST_SHOWN, ConfigError, RLTrainingError, described, did_you_mean, either, shown
from rl_training.experiment.collectors import CollectorsConfig
from rl_training.experiment.packaged import configs_of, packaged_configs
from rl_training.experiment.plain_data import parse_yaml as parse_yaml
from rl_training.experiment.plain_data import require_plain, yaml_text
from rl_training.experiment.registry import AlgorithmClass, canonical_name, get_algorithm
from rl_training.experiment.sections import CheckpointConfig, EvalConfig, LogConfig, StopConfig
from rl_training.models.custom import NetworkFunction, PythonNetwork, reference_to

#: The key of a config file that ``tune`` reads and training does not: where to search.
RANGES = "tune"
#: The key of a config file that names the packaged config it builds on.
BASE = "base"
#: Bytes of a file's name and of a path that every file system takes; a path leaves room for the files below it.
LONGEST_NAME = 255
LONGEST_PATH = 3_800


def _not_yaml(value: Any) -> Any:
    """Accepts true and false, because YAML reads a bare on or off as these."""
    return {True: "on", False: "off"}[value] if isinstance(value, bool) else value


CompileMode = Annotated[Literal["auto", "on", "off"], BeforeValidator(_not_yaml)]


class TrainConfig(StrictModel):
    """Everything that determines a run."""

    algo: str = Field(description="name of the algorithm")
    env_id: str = Field(description="Gymnasium id, module:id, module:Class or file.py:Class")
    env_from_python: bool = Field(False, description="the environment was passed from Python, so no file can hold it")
    env_vector: bool = Field(
        False,
        description="training is on a vector environment that was passed from Python; env_id and env_kwargs make one of its "
        "members, for evaluation",
    )
    env_kwargs: dict[str, Any] = Field(default_factory=dict, description="arguments of the environment")
    env_workers: Literal["inline", "subprocess"] = Field(
        "inline", description="where environments run", json_schema_extra=MAY_CHANGE
    )
    env_timeout: PositiveNumber | None = Field(
        None,
        description="time limit of a step or a reset in seconds: beyond it, a worker process is killed, which is a fault; "
        "inline, there is only a warning; not for vector environments; null: no limit",
        json_schema_extra=MAY_CHANGE,
    )
    env_fresh: bool = Field(False, description="create a new environment for each episode")
    wrappers: tuple[dict[str, Any], ...] = Field(
        (), description="wrappers around the environment, innermost first, each a name and its arguments"
    )
    num_envs: Positive = Field(1, description="environments stepped together, over all collectors")
    collectors: CollectorsConfig = Field(default_factory=CollectorsConfig)
    seed: Count = Field(0, description="seed of all random numbers in the run")
    total_timesteps: Positive = Field(50_000, description="env steps of the whole run", json_schema_extra=MAY_CHANGE)
    device: str = Field(
        "cpu",
        description="device of the networks: cpu, cuda, cuda:0, mps, or auto: a GPU if there is one",
        json_schema_extra=MAY_CHANGE,
    )
    compile: CompileMode = Field(
        "auto",
        description="compile the update into one graph: on, off, or auto (on if it is expected to save time)",
        json_schema_extra=MAY_CHANGE,
    )
    threads: Positive = Field(1, description="CPU threads; small networks are fastest on one", json_schema_extra=MAY_CHANGE)
    output_dir: str | None = Field(None, description="run directory; null: runs/<algo>-<env>-seed<seed>, from Python none")
    eval: EvalConfig = Field(default_factory=EvalConfig, json_schema_extra=MAY_CHANGE)
    stop: StopConfig = Field(default_factory=StopConfig, json_schema_extra=MAY_CHANGE)
    checkpoint: CheckpointConfig = Field(default_factory=CheckpointConfig, json_schema_extra=MAY_CHANGE)
    log: LogConfig = Field(default_factory=LogConfig, json_schema_extra=MAY_CHANGE)
    algo_kwargs: SerializeAsAny[AlgorithmConfig] = Field(description="settings of the algorithm")

    @field_validator("wrappers", mode="before")
    @classmethod
    def _names_are_wrappers(cls, wrappers: Any) -> Any:
        listed = isinstance(wrappers, list | tuple)
        return [{"name": one} if isinstance(one, str) else one for one in wrappers] if listed else wrappers

    @field_validator("wrappers")
    @classmethod
    def _wrappers_exist(cls, wrappers: tuple[dict[str, Any], ...]) -> tuple[dict[str, Any], ...]:
        wrappers = tuple(map(spelled_out, wrappers))
        for wrapper in wrappers:
            problem = wrapper_problem(wrapper)
            if problem is not None:
                raise ValueError(problem)
        return wrappers

    @field_validator("output_dir")
    @classmethod
    def _output_dir_has_a_usable_name(cls, output_dir: str | None) -> str | None:
        for name in Path(output_dir or "").parts:
            if len(os.fsencode(name)) > LONGEST_NAME:
                raise ValueError(
                    f"a directory's name can have {LONGEST_NAME} bytes, and this one has {len(os.fsencode(name))}; choose a "
                    "shorter --output-dir"
                )
        if len(os.fsencode(output_dir or "")) > LONGEST_PATH:
            raise ValueError(f"a path can have {LONGEST_PATH} bytes, and this one has more; choose a shorter --output-dir")
        return output_dir

    @model_validator(mode="after")
    def _stop_has_evaluations(self) -> TrainConfig:
        if self.stop.return_ is not None and not self.eval.interval:
            raise ValueError("stop.return needs evaluations during training, but eval.interval is 0; set it to env steps")
        return self

    @model_validator(mode="after")
    def _collectors_fit(self) -> TrainConfig:
        problem = self.collectors.problem(self.num_envs, self.env_workers, self.algo_kwargs)
        if problem is not None:
            raise ValueError(problem)
        return self

    @model_validator(mode="after")
    def _something_is_learned(self) -> TrainConfig:
        self.algo_kwargs.check_run(self.total_timesteps, self.num_envs)
        return self

    def describe(self) -> dict[str, Any]:
        """The settings that determine the run, as plain data: all except the output directory."""
        return self.model_dump(mode="json", exclude={"output_dir"})

    def to_yaml(self) -> str:
        return yaml_text(self.describe())

    def with_values(self, **values: Any) -> TrainConfig:
        """A validated copy with some top-level values replaced."""
        data, network = {**self.model_dump(mode="json"), **values}, self.algo_kwargs.network
        settings = data["algo_kwargs"]
        kept = isinstance(settings, Mapping) and settings.get("network") == str(network)
        return resolve_config(with_network(data, network) if kept else data)  # plain data cannot hold a function


def with_network(values: Mapping[str, Any], network: str | NetworkFunction | None) -> dict[str, Any]:
    """Values with this network of the user's in ``algo_kwargs``; unchanged if it is None."""
    settings = values.get("algo_kwargs") or {}
    if network is None or not isinstance(settings, Mapping):
        return dict(values)
    reference = network if isinstance(network, str | PythonNetwork) else reference_to(network)
    return {**values, "algo_kwargs": {**settings, "network": reference}}


def resolve_config(data: Mapping[str, Any]) -> TrainConfig:
    """Checks the values and fills in all defaults."""
    require_plain(data, "the config")
    if BASE in data:
        raise ConfigError(
            "base works only in a file given to --config or from_config; elsewhere, name the packaged config itself"
        )
    values = rename_old(data)
    if "algo" not in values:
        raise ConfigError("the config names no algorithm: add 'algo: dqn', or pass --algo")
    if "env_id" not in values:
        raise ConfigError("the config names no environment: add 'env_id: CartPole-v1', or pass --env")
    if not isinstance(values["algo"], str):
        raise ConfigError(f"algo must be the name of an algorithm, such as dqn, not {shown(values['algo'])}")
    values["algo"] = canonical_name(values["algo"])
    config_class = _algorithm(values["algo"]).config_class
    algo_kwargs = values.pop("algo_kwargs", None) or {}
    if not isinstance(algo_kwargs, Mapping):
        raise ConfigError(f"algo_kwargs must be a mapping of settings, not {shown(algo_kwargs)}")
    problems: list[str] = []
    try:
        settings = config_class.model_validate(dict(algo_kwargs))
    except ValidationError as error:
        problems += _sentences(error, config_class, "algo_kwargs.")
        settings = AlgorithmConfig.model_construct()  # a placeholder, so that mistakes elsewhere are reported too
    try:
        config = TrainConfig.model_validate({**values, "algo_kwargs": settings})
    except ValidationError as error:
        problems += _sentences(error, TrainConfig, "", config_class)
    if problems:
        raise ConfigError("; ".join(problems))
    try:
        require_plain(config.describe(), "the config")
        config.to_yaml()
    except (PydanticSerializationError, yaml.YAMLError) as error:
        raise ConfigError(f"env_kwargs must be plain data that can be saved as YAML ({described(error)})") from error
    return config


def _algorithm(name: str) -> AlgorithmClass:
    """The algorithm with this name. An import of the user's module can fail in any way."""
    if len(name) > MOST_SHOWN:
        raise ConfigError(f"unknown algorithm {shown(name)}")
    try:
        return get_algorithm(name)
    except RLTrainingError:
        raise
    except FOREIGN as error:
        raise ConfigError(
            f"algo {shown(name)} cannot be imported ({described(error)}); give module:Class, as in my_package.algos:MyDQN"
        ) from error


def _sentences(
    error: ValidationError, model: type[StrictModel], prefix: str, algo_kwargs: type[StrictModel] | None = None
) -> list[str]:
    """One sentence per mistake, with the full key and, if it is unknown, where it belongs or the nearest valid one."""
    groups = {name: group for name in model.model_fields if (group := _group(model, name)) is not None}
    groups = {**groups, "algo_kwargs": algo_kwargs} if algo_kwargs is not None else {}
    sentences = []
    for item in error.errors():
        path = [str(part) for part in item["loc"] if part not in (NUMBER, SCHEDULE)]
        key = prefix + ".".join(path)
        message = item["msg"].removeprefix("Value error, ")
        places = [name for name, group in groups.items() if path[0] in group.model_fields] if len(path) == 1 else []
        if item["type"] == "extra_forbidden" and places:
            sentences.append(f"unknown key '{key}'; did you mean '{places[-1]}.{key}'?")
        elif item["type"] == "extra_forbidden":
            known = _keys_at(ScheduleConfig, ()) if SCHEDULE in item["loc"] else _keys_at(model, path[:-1])
            inside = {inner: f"{name}.{inner}" for name, group in groups.items() for inner in _keys_at(group, ())}
            in_full = {inner: place for inner, place in inside.items() if len(path) == 1 and inner not in known}
            sentences.append(f"unknown key '{key}'{did_you_mean(path[-1], [*known, *in_full], in_full)}")
        elif not path:
            sentences.append(message)
        elif item["type"] in ("model_type", "model_attributes_type"):
            sentences.append(f"{key} is a group of settings ({', '.join(_keys_at(model, path))}), not {shown(item['input'])}")
        else:
            sentences.append(f"{key}: {message[0].lower()}{message[1:]}, got {shown(item['input'])}")
    return sentences


def _keys_at(model: type[StrictModel], path: Sequence[str]) -> Iterable[str]:
    for part in path:
        inner = _group(model, part)
        if inner is None:
            return ()
        model = inner
    return [field.alias or name for name, field in model.model_fields.items()]


def _group(model: type[StrictModel], name: str, algo: object = None) -> type[StrictModel] | None:
    """The model of the settings under a name, if it is a group. The group algo_kwargs is defined by the algorithm."""
    if (model, name) == (TrainConfig, "algo_kwargs") and isinstance(algo, str):
        with contextlib.suppress(ConfigError):  # an unknown algorithm is reported elsewhere
            return _algorithm(algo).config_class
    annotation = model.model_fields[name].annotation if name in model.model_fields else None
    return annotation if isinstance(annotation, type) and issubclass(annotation, StrictModel) else None


def rename_old(data: Mapping[str, Any]) -> dict[str, Any]:
    """Unchecked values, with every setting under its current name."""
    values = _renamed(TrainConfig, data, "")
    for name, value in values.items():
        group = _group(TrainConfig, name, values.get("algo"))
        if group is not None and isinstance(value, Mapping):
            values[name] = _renamed(group, value, f"{name}: ")
    return values


def _renamed(model: type[StrictModel], data: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    try:
        return with_current_names(model, data)
    except ValueError as error:
        raise ConfigError(f"{prefix}{error}") from error


def load_config_data(name_or_path: str) -> dict[str, Any]:
    """The unchecked values of a packaged config or a YAML file, under current names. Ranges for ``tune`` are left out."""
    return {key: value for key, value in load_config_file(name_or_path).items() if key != RANGES}


def load_config_file(name_or_path: str) -> dict[str, Any]:
    """The unchecked values of a packaged config or a YAML file, with the ranges for ``tune``."""
    path = Path(name_or_path)
    packaged = packaged_configs()
    if name_or_path in packaged:
        text = packaged[name_or_path].read_text("utf-8")
    else:
        try:
            if path.suffix not in (".yaml", ".yml") and not path.is_file():
                raise ConfigError(f"unknown config {shown(name_or_path)}{_near_configs(name_or_path)}")
            text = path.read_text("utf-8")
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
            raise ConfigError(f"cannot read the config file {_shortened(name_or_path)}: {reason}") from error
    data = parse_yaml(text, name_or_path)
    if not isinstance(data, dict):
        raise ConfigError(f"the config {name_or_path} must be a mapping of settings, such as 'algo: dqn'")
    return rename_old(data) if BASE not in data else _on_base(data, name_or_path)


def _on_base(data: Mapping[str, Any], name_or_path: str) -> dict[str, Any]:
    """The values of a file on top of those of its base. Groups of settings are merged; everything else is replaced whole."""
    base = data[BASE]
    if not isinstance(base, str) or base not in packaged_configs():
        near = _near_configs(base) if isinstance(base, str) else ""
        raise ConfigError(f"the config {name_or_path}: base must be the name of a packaged config, not {shown(base)}{near}")
    merged = load_config_file(base)
    own = rename_old({"algo": merged["algo"], **{key: value for key, value in data.items() if key != BASE}})
    if own["algo"] != merged["algo"]:
        _require_common_settings(base, merged, own["algo"])
    for key, value in own.items():
        below = merged.pop(key, None)
        if isinstance(below, Mapping) and isinstance(value, Mapping):
            merged[key] = {**below, **value}
        elif value is not None or not isinstance(below, Mapping):  # null for a group: nothing of the base's
            merged[key] = value
    return merged


def _require_common_settings(base: str, data: Mapping[str, Any], algo: str) -> None:
    """Refuses a base whose settings another algorithm does not have."""
    foreign = [key for key in data.get("algo_kwargs", {}) if key not in _algorithm(algo).config_class.model_fields]
    if foreign:
        raise ConfigError(
            f"base {base} is a config of {data['algo']} and sets {', '.join(foreign)}, which {algo} does not have; "
            f"choose one of {algo}'s configs as the base, or none"
        )


def _near_configs(name: str) -> str:
    """Ends a message about a config that does not exist: what may have been meant."""
    meant = [] if "/" in name else configs_of(name[:MOST_SHOWN])
    return f"; did you mean {either(meant)}?" if meant else did_you_mean(name, packaged_configs())


def apply_overrides(data: Mapping[str, Any], overrides: Iterable[str]) -> dict[str, Any]:
    """Values with ``dotted.key=value`` overrides applied; a value is read as YAML. Old names of settings work too."""
    result = rename_old(data)
    for override in overrides:
        key, separator, text = override.partition("=")
        if not separator or not key:
            raise ConfigError(f"--set takes key=value, such as algo_kwargs.batch_size=128, not '{_shortened(override)}'")
        *folders, last = _current_path(key.split("."), result.get("algo"))
        level = result
        for folder in folders:
            inner = level.get(folder)
            if inner is not None and not isinstance(inner, Mapping):
                raise ConfigError(f"--set {_shortened(override)}: '{_shortened(folder)}' is a value, not a group of settings")
            level[folder] = dict(inner or {})
            level = level[folder]
        level[last] = parse_yaml(text, f"--set {_shortened(override)}")
    return result


def _shortened(text: str) -> str:
    return text if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN]}..."


def _current_path(path: Iterable[str], algo: object) -> Iterator[str]:
    """The parts of a dotted key, under current names."""
    model: type[StrictModel] | None = TrainConfig
    for part in path:
        name = part if model is None else current_name(model, part)
        model = None if model is None else _group(model, name, algo)
        yield name
