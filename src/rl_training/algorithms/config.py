"""Settings shared by families of algorithms. Every field has a default, a range and a unit."""

from __future__ import annotations

import contextlib
import math
import warnings
from collections.abc import Mapping, Set
from itertools import pairwise
from typing import Annotated, Any, Generic, Literal, TypeVar

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Discriminator,
    Field,
    PlainSerializer,
    PlainValidator,
    Tag,
    model_serializer,
    model_validator,
)

from rl_training.algorithms.strict_model import MAY_CHANGE, StrictModel, searched
from rl_training.models.cnn.nature import NATURE_LAYERS
from rl_training.models.custom import CustomNetwork, NetworkReference, PythonNetwork, reference_to
from rl_training.models.mlp import Activation, Style
from rl_training.models.observation import CNN
from rl_training.names import split_name
from rl_training.schedules import CosineSchedule, LinearSchedule, PiecewiseSchedule, Schedule
from rl_training.tracebacks import users_level


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
Decay = Annotated[Number, Field(ge=0.0, lt=1.0)]
NonNegative = Annotated[Number, Field(ge=0.0)]
#: filters, kernel and stride of each convolution
ConvLayers = tuple[tuple[Positive, Positive, Positive], ...]


def _network(value: Any) -> NetworkReference | None:
    if value is None or isinstance(value, PythonNetwork):
        return value
    if isinstance(value, str):
        module, function = split_name(value)
        if not module or not function:
            raise ValueError("give module:function, as in my_package.nets:make_trunk, or file.py:function")
        return value
    if not callable(value):
        raise ValueError("give module:function or, from Python, a function")
    reference = reference_to(value)
    if isinstance(reference, PythonNetwork):
        warnings.warn(
            f"the network '{reference.name}' is not in a module that can be imported: training, predicting and exporting "
            "work, but load and resume need network= again, and the command line cannot use the agent",
            stacklevel=users_level(),
        )
    return reference


Network = Annotated[
    NetworkReference | None,
    PlainValidator(_network),
    PlainSerializer(lambda value: None if value is None else str(value), return_type=str | None),
]
Init = Literal["default", "orthogonal"]
NumberT = TypeVar("NumberT")


class ScheduleConfig(StrictModel, Generic[NumberT]):
    """A value that changes with the env steps: ``{kind: cosine, from: 3e-4, to: 1e-5, steps: 1e5}``."""

    kind: Literal["constant", "linear", "cosine", "piecewise"] = Field(description="how the value changes")
    from_: NumberT | None = Field(None, alias="from", description="value at step 0")
    to: NumberT | None = Field(None, description="value at the end; not for constant")
    steps: Positive | None = Field(None, description="env steps from the first value to the last; not for constant")
    points: tuple[tuple[Count, NumberT], ...] | None = Field(
        None, description="only for piecewise: [env step, value] each, with straight lines between them"
    )

    @model_validator(mode="after")
    def _is_complete(self) -> ScheduleConfig[NumberT]:
        given, needed = (
            self.as_data(),
            {"constant": ["from"], "piecewise": ["points"]}.get(self.kind, ["from", "to", "steps"]),
        )
        if [*given] != ["kind", *needed]:
            raise ValueError(f"a schedule of the kind {self.kind} needs exactly: {', '.join(['kind', *needed])}")
        steps = [step for step, _ in self.points or ()]
        if self.points is not None and (not steps or any(late < early for early, late in pairwise(steps))):
            raise ValueError("the points of a schedule must be in the order of their steps, and there must be at least one")
        return self

    @model_serializer
    def as_data(self) -> dict[str, Any]:
        """The keys that were given, under their names in a config."""
        values = {"kind": self.kind, "from": self.from_, "to": self.to, "steps": self.steps, "points": self.points}
        return {name: value for name, value in values.items() if value is not None}

    def schedule(self) -> Schedule:
        """The value as a function of the env steps."""
        if self.kind == "piecewise":
            return PiecewiseSchedule(tuple((step, _number(value)) for step, value in self.points or ()))
        initial = _number(self.from_)
        if self.kind == "constant":
            return LinearSchedule(initial, initial, 0)
        kind = LinearSchedule if self.kind == "linear" else CosineSchedule
        return kind(initial, _number(self.to), self.steps or 0)


def _number(value: object) -> float:
    assert isinstance(value, int | float)
    return float(value)


#: Which of the two forms a scheduled setting has; pydantic adds the word to the place of a mistake.
NUMBER, SCHEDULE = "as a number", "as a schedule"


def _form(value: Any) -> str:
    return SCHEDULE if isinstance(value, Mapping | ScheduleConfig) else NUMBER


def _not_zero(schedule: ScheduleConfig[Any]) -> ScheduleConfig[Any]:
    if not any([schedule.from_, schedule.to, *(value for _, value in schedule.points or ())]):
        raise ValueError("a schedule that is 0 from its beginning to its end would learn nothing")
    return schedule


#: a number, or a schedule of such numbers, which may begin or end with 0
ScheduledPositive = Annotated[
    Annotated[PositiveNumber, Tag(NUMBER)] | Annotated[ScheduleConfig[NonNegative], AfterValidator(_not_zero), Tag(SCHEDULE)],
    Discriminator(_form),
]
#: a number, or a schedule of such numbers
ScheduledFraction = Annotated[
    Annotated[Fraction, Tag(NUMBER)] | Annotated[ScheduleConfig[Fraction], Tag(SCHEDULE)], Discriminator(_form)
]
ScheduledNonNegative = Annotated[
    Annotated[NonNegative, Tag(NUMBER)] | Annotated[ScheduleConfig[NonNegative], Tag(SCHEDULE)], Discriminator(_form)
]
Scheduled = float | ScheduleConfig[Any]


def decaying(value: Scheduled, final: float | None, steps: int) -> Schedule:
    """The schedule of a setting that has a short form: a number that decays linearly to ``final``, if that is given."""
    if isinstance(value, ScheduleConfig):
        return value.schedule()
    return LinearSchedule(value, value if final is None else final, steps)


def require_decay(config: AlgorithmConfig, name: str) -> None:
    """Refuses half of the short form of a linear decay, and the short form beside a schedule."""
    final, steps = f"final_{name}", f"{name}_decay_steps"
    short = getattr(config, final) is not None
    if short != (getattr(config, steps) > 0):
        raise ValueError(f"{final} and {steps} go together: set both or neither")
    if short and isinstance(getattr(config, name), ScheduleConfig):
        raise ValueError(f"{name} is a schedule already: leave out {final} and {steps}")


class AlgorithmConfig(StrictModel):
    """Settings of every algorithm."""

    gamma: Fraction = Field(
        0.99, description="discount factor", json_schema_extra=searched(choice=[0.9, 0.95, 0.98, 0.99, 0.995, 0.999])
    )
    learning_rate: ScheduledPositive = Field(
        1e-3,
        description="the optimiser's learning rate, a number or a schedule",
        json_schema_extra={**MAY_CHANGE, **searched(log=[1e-5, 1e-2])},
    )
    final_learning_rate: PositiveNumber | None = Field(
        None,
        description="short form of a linear schedule: learning rate at its end; null: learning_rate alone decides",
        json_schema_extra=MAY_CHANGE,
    )
    learning_rate_decay_steps: Count = Field(
        0, description="env steps over which the learning rate decays", json_schema_extra=MAY_CHANGE
    )
    optimizer: Literal["adam", "adamw", "rmsprop"] = Field("adam", description="adam, adamw or rmsprop, as in PyTorch")
    adam_eps: PositiveNumber = Field(1e-8, description="epsilon of the optimiser, whichever it is")
    adam_betas: tuple[Decay, Decay] = Field((0.9, 0.999), description="decay of Adam's two moving averages")
    rmsprop_alpha: Decay = Field(0.99, description="decay of RMSprop's moving averages")
    rmsprop_momentum: Decay = Field(0.0, description="momentum of RMSprop")
    rmsprop_centered: bool = Field(False, description="RMSprop divides by the standard deviation of the gradient")
    weight_decay: NonNegative | None = Field(
        None, description="weight decay: decoupled in adamw, in the gradient otherwise; null: 0.01 in adamw, 0 otherwise"
    )
    max_grad_norm: PositiveNumber | None = Field(
        10.0, description="clip gradients to this norm; null: no clipping", json_schema_extra=MAY_CHANGE
    )

    activation: Activation = Field("relu", description="activation of the dense hidden layers")
    layer_norm: bool = Field(False, description="normalise the inputs of each of these activations")
    init: Init = Field("default", description="initial weights: PyTorch's default, or orthogonal")
    network: Network = Field(
        None,
        description="a network of your own, module:function or from Python a function; it takes the observation spec and "
        "network_kwargs, and returns the module that encodes observations, or a pair for actor and critic",
    )
    network_kwargs: dict[str, Any] = Field(default_factory=dict, description="further arguments of network")

    def style(self) -> Style:
        """How dense layers are made."""
        return Style(self.activation, self.layer_norm, self.init == "orthogonal")

    def custom_network(self) -> CustomNetwork | None:
        """The user's own network, if there is one."""
        return None if self.network is None else CustomNetwork(self.network, self.network_kwargs)

    @model_validator(mode="after")
    def _kwargs_belong_to_a_network(self) -> AlgorithmConfig:
        if self.network_kwargs and self.network is None:
            raise ValueError("network_kwargs are the arguments of network: set it too, or leave them out")
        return self

    def learning_rate_schedule(self) -> Schedule:
        """The learning rate as a function of the env steps."""
        return decaying(self.learning_rate, self.final_learning_rate, self.learning_rate_decay_steps)

    @classmethod
    def replaced_by(cls, given: Set[str]) -> Set[str]:
        """The settings that those which are given in a change take the place of; they go back to their defaults."""
        return frozenset()

    def updates_in(self, total_timesteps: int, num_envs: int) -> int:
        """The number of updates in a run of this many env steps."""
        raise NotImplementedError

    def check_run(self, total_timesteps: int, num_envs: int) -> None:
        """Raises ``ValueError`` if a run of this many env steps would not learn anything."""
        return

    @model_validator(mode="after")
    def _decay_is_complete(self) -> AlgorithmConfig:
        require_decay(self, "learning_rate")
        return self


class OffPolicyConfig(AlgorithmConfig):
    """Settings of every algorithm that learns from replayed experience."""

    buffer_size: Positive = Field(100_000, description="transitions kept for replay")
    batch_size: Positive = Field(
        64, description="transitions in one update", json_schema_extra=searched(choice=[32, 64, 128, 256])
    )
    learning_starts: Count = Field(1_000, description="env steps of random acting before the first update")
    train_freq: Positive = Field(1, description="env steps between training phases")
    gradient_steps: Positive = Field(1, description="updates in one training phase")
    clip_reward: PositiveNumber | None = Field(
        None, description="clip rewards to +-x for learning; reported returns are not clipped; null: no clipping"
    )
    normalize_rewards: bool = Field(
        False, description="divide sampled rewards by the running standard deviation of the discounted return"
    )
    n_step: Positive = Field(1, description="rewards summed in one target")
    frame_stack: Positive = Field(1, description="frames in an image observation; each is stored once")

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

    n_steps: Positive = Field(
        128,
        description="steps of each environment in one rollout",
        json_schema_extra=searched(choice=[32, 64, 128, 256, 512]),
    )

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


class ObservationConfig(StrictModel):
    """Settings of the algorithms that learn from vectors, images or both."""

    normalize_observations: bool = Field(False, description="standardise vectors with a running mean and std")
    observation_scale: tuple[PositiveNumber, ...] | None = Field(
        None, description="multiply vectors by these numbers, one for each entry, instead of standardising them"
    )
    cnn: CNN = Field(
        "nature", description="encoder of images: nature (with cnn_layers), impala, drq (its paper's convolutions) or minatar"
    )
    cnn_layers: ConvLayers = Field(NATURE_LAYERS, description="filters, kernel and stride of each convolution on images")

    @model_validator(mode="after")
    def _settings_agree(self) -> ObservationConfig:
        if self.observation_scale is not None and self.normalize_observations:
            raise ValueError(
                "observation_scale and normalize_observations both scale the inputs: set observation_scale to null or "
                "normalize_observations to false"
            )
        if self.cnn != "nature" and self.cnn_layers != NATURE_LAYERS:
            raise ValueError(f"cnn: {self.cnn} has convolutions of its own: leave out cnn_layers, or use cnn: nature")
        return self


class ActorCriticConfig(ObservationConfig, OnPolicyConfig):
    """Settings of on-policy actor-critics: a value function, advantages and an entropy bonus."""

    learning_rate: ScheduledPositive = Field(3e-4, description="the optimiser's learning rate, a number or a schedule")
    adam_eps: PositiveNumber = Field(1e-5, description="epsilon of the optimiser, whichever it is")
    max_grad_norm: PositiveNumber | None = Field(0.5, description="clip gradients to this norm; null: no clipping")
    gae_lambda: Fraction = Field(
        0.95,
        description="lambda of generalised advantage estimation",
        json_schema_extra=searched(choice=[0.8, 0.9, 0.95, 0.98, 1.0]),
    )
    entropy_coef: ScheduledNonNegative = Field(
        0.0,
        description="weight of the entropy bonus, a number or a schedule",
        json_schema_extra={**MAY_CHANGE, **searched(log=[1e-5, 0.1])},
    )
    value_coef: NonNegative = Field(
        0.5, description="weight of the value loss", json_schema_extra=searched(uniform=[0.1, 1.0])
    )
    normalize_advantage: bool = Field(True, description="standardise the advantages of each minibatch")
    normalize_rewards: bool = Field(
        False, description="divide rewards by the running standard deviation of the discounted return"
    )
    hidden_sizes: tuple[Positive, ...] = Field((64, 64), description="widths of the hidden layers")
    activation: Activation = Field("tanh", description="activation of the dense hidden layers")
    init: Init = Field("orthogonal", description="initial weights: PyTorch's default, or orthogonal")
    initial_log_std: Number = Field(0.0, description="initial log standard deviation of continuous actions")
    cnn_features: Positive = Field(512, description="width of the layer after the convolutions")
