"""Settings shared by families of algorithms. Every field has a default, a range and a unit."""

from __future__ import annotations

import contextlib
import math
import warnings
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, JsonValue, model_validator

from rl_training.models.cnn.nature import NATURE_LAYERS


def _no_bool(value: Any) -> Any:
    if isinstance(value, bool):
        raise ValueError("give a number, not true or false")
    return value


def _whole(value: Any) -> Any:
    """A whole number, which may be written as 1e6; YAML reads that as text."""
    _no_bool(value)
    if isinstance(value, str) and "e" in value.lower():
        with contextlib.suppress(ValueError):
            number = float(value)
            return int(number) if number.is_integer() else value
    return value


Integer = Annotated[int, BeforeValidator(_whole)]
Number = Annotated[float, BeforeValidator(_no_bool)]
Positive = Annotated[Integer, Field(ge=1)]
Count = Annotated[Integer, Field(ge=0)]
Fraction = Annotated[Number, Field(ge=0.0, le=1.0)]
PositiveNumber = Annotated[Number, Field(gt=0.0)]
#: filters, kernel and stride of each convolution
ConvLayers = tuple[tuple[Positive, Positive, Positive], ...]


_RENAMED_FROM = "renamed_from"


def renamed_from(*old: str) -> dict[str, JsonValue]:
    """Declares a setting's old names, which still work: ``Field(0.99, json_schema_extra=renamed_from("discount"))``."""
    return {_RENAMED_FROM: [*old]}


def old_names(model: type[BaseModel]) -> dict[str, str]:
    """Maps the old names of a model's settings to their current names. A subclass that redefines a setting keeps them."""
    names: dict[str, str] = {}
    for base in model.__mro__:
        if issubclass(base, BaseModel):
            for name, field in base.model_fields.items():
                extra = field.json_schema_extra
                former = extra.get(_RENAMED_FROM) if isinstance(extra, dict) else None
                for old in former if isinstance(former, list) else ():
                    if names.setdefault(str(old), name) != name:
                        raise TypeError(f"{model.__name__}: '{old}' is the old name of both '{names[str(old)]}' and '{name}'")
    return names


def current_name(model: type[BaseModel], name: str) -> str:
    """The current name of a setting. An old name gives a warning; any other name is returned unchanged."""
    current = old_names(model).get(name, name)
    if current != name:
        warnings.warn(f"the setting '{name}' is now called '{current}'; use that name", UserWarning, stacklevel=2)
    return current


def with_current_names(model: type[BaseModel], data: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a model's settings under their current names."""
    values: dict[str, Any] = {}
    given_as: dict[str, str] = {}
    for name, value in data.items():
        current = current_name(model, name)
        if current in values:
            raise ValueError(f"'{current}' is given twice: as '{given_as[current]}' and as '{name}'; keep only '{current}'")
        values[current], given_as[current] = value, name
    return values


class StrictModel(BaseModel):
    """Rejects unknown keys and NaN, accepts old names of settings, and is immutable after validation."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, validate_default=True)

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        for old, new in old_names(cls).items():
            if old in cls.model_fields:
                raise TypeError(f"{cls.__name__}: '{old}' is both an old name of '{new}' and a setting")

    @model_validator(mode="before")
    @classmethod
    def _take_old_names(cls, data: Any) -> Any:
        return with_current_names(cls, data) if isinstance(data, Mapping) else data


class AlgorithmConfig(StrictModel):
    """Settings of every algorithm."""

    gamma: Fraction = Field(0.99, description="discount factor")
    learning_rate: PositiveNumber = Field(1e-3, description="Adam's learning rate")
    final_learning_rate: PositiveNumber | None = Field(
        None, description="learning rate at the end of a linear decay; null: constant"
    )
    learning_rate_decay_steps: Count = Field(0, description="env steps over which the learning rate decays")
    adam_eps: PositiveNumber = Field(1e-8, description="Adam's epsilon")
    max_grad_norm: PositiveNumber | None = Field(10.0, description="clip gradients to this norm; null: no clipping")

    def updates_in(self, total_timesteps: int, num_envs: int) -> int:
        """The number of updates in a run of this many env steps."""
        raise NotImplementedError

    def check_run(self, total_timesteps: int, num_envs: int) -> None:
        """Raises ``ValueError`` if a run of this many env steps would not learn anything."""
        return

    @model_validator(mode="after")
    def _decay_is_complete(self) -> AlgorithmConfig:
        if (self.final_learning_rate is None) != (self.learning_rate_decay_steps == 0):
            raise ValueError("final_learning_rate and learning_rate_decay_steps go together: set both or neither")
        return self


class OffPolicyConfig(AlgorithmConfig):
    """Settings of every algorithm that learns from replayed experience."""

    buffer_size: Positive = Field(100_000, description="transitions kept for replay")
    batch_size: Positive = Field(64, description="transitions in one update")
    learning_starts: Count = Field(1_000, description="env steps of random acting before the first update")
    train_freq: Positive = Field(1, description="env steps between training phases")
    gradient_steps: Positive = Field(1, description="updates in one training phase")
    clip_reward: PositiveNumber | None = Field(
        None, description="clip rewards to +-x for learning; reported returns are not clipped; null: no clipping"
    )

    def updates_in(self, total_timesteps: int, num_envs: int) -> int:
        return max(total_timesteps - self.learning_starts, 0) // self.train_freq * self.gradient_steps

    def check_run(self, total_timesteps: int, num_envs: int) -> None:
        if self.learning_starts >= total_timesteps:
            raise ValueError(
                f"algo_kwargs.learning_starts ({self.learning_starts}) must be below total_timesteps ({total_timesteps}), or "
                "nothing would be learned: lower learning_starts or raise total_timesteps"
            )
        if self.learning_starts + self.train_freq > total_timesteps + num_envs:
            raise ValueError(
                f"algo_kwargs.train_freq ({self.train_freq}) leaves no room for an update between learning_starts "
                f"({self.learning_starts}) and total_timesteps ({total_timesteps}): lower it or raise the total"
            )

    @model_validator(mode="after")
    def _batch_fits(self) -> OffPolicyConfig:
        if self.buffer_size < self.batch_size:
            raise ValueError(
                f"buffer_size ({self.buffer_size}) is smaller than batch_size ({self.batch_size}): raise buffer_size or "
                "lower batch_size"
            )
        return self


class OnPolicyConfig(AlgorithmConfig):
    """Settings of every algorithm that learns from its own rollouts."""

    n_steps: Positive = Field(128, description="steps of each environment in one rollout")

    def updates_in(self, total_timesteps: int, num_envs: int) -> int:
        return total_timesteps // (self.n_steps * num_envs) * math.prod(self.passes())

    def passes(self) -> tuple[int, int]:
        """The number of passes over each rollout, and of minibatches in a pass."""
        return 1, 1

    def check_run(self, total_timesteps: int, num_envs: int) -> None:
        size = self.n_steps * num_envs
        if size > total_timesteps:
            raise ValueError(
                f"one rollout (algo_kwargs.n_steps {self.n_steps} * num_envs {num_envs} = {size}) is longer than "
                f"total_timesteps ({total_timesteps}), so nothing would be learned: lower n_steps or raise total_timesteps"
            )


class ActorCriticConfig(OnPolicyConfig):
    """Settings of on-policy actor-critics: a value function, advantages and an entropy bonus."""

    learning_rate: PositiveNumber = Field(3e-4, description="Adam's learning rate")
    adam_eps: PositiveNumber = Field(1e-5, description="Adam's epsilon")
    max_grad_norm: PositiveNumber | None = Field(0.5, description="clip gradients to this norm; null: no clipping")
    gae_lambda: Fraction = Field(0.95, description="lambda of generalised advantage estimation")
    entropy_coef: Annotated[Number, Field(ge=0.0)] = Field(0.0, description="weight of the entropy bonus")
    value_coef: Annotated[Number, Field(ge=0.0)] = Field(0.5, description="weight of the value loss")
    normalize_advantage: bool = Field(True, description="standardise the advantages of each minibatch")
    normalize_observations: bool = Field(False, description="standardise observations with a running mean and std")
    normalize_rewards: bool = Field(
        False, description="divide rewards by the running standard deviation of the discounted return"
    )
    hidden_sizes: tuple[Positive, ...] = Field((64, 64), description="widths of the hidden layers")
    activation: Literal["tanh", "relu"] = Field("tanh", description="activation of the hidden layers")
    initial_log_std: Number = Field(0.0, description="initial log standard deviation of continuous actions")
    cnn_layers: ConvLayers = Field(NATURE_LAYERS, description="filters, kernel and stride of each convolution on images")
    cnn_features: Positive = Field(512, description="width of the layer after the convolutions")
