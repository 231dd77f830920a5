"""Settings shared by families of algorithms. Every field has a default, a range and a unit."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator


def _no_bool(value: Any) -> Any:
    if isinstance(value, bool):
        raise ValueError("give a number, not true or false")
    return value


Integer = Annotated[int, BeforeValidator(_no_bool)]
Number = Annotated[float, BeforeValidator(_no_bool)]
Positive = Annotated[Integer, Field(ge=1)]
Count = Annotated[Integer, Field(ge=0)]
Fraction = Annotated[Number, Field(ge=0.0, le=1.0)]
PositiveNumber = Annotated[Number, Field(gt=0.0)]


class StrictModel(BaseModel):
    """Unknown keys and NaN are errors; values do not change after validation."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, validate_default=True)


class AlgorithmConfig(StrictModel):
    """What every algorithm has."""

    gamma: Fraction = Field(0.99, description="discount factor")
    learning_rate: PositiveNumber = Field(1e-3, description="Adam's step size")
    final_learning_rate: PositiveNumber | None = Field(
        None, description="step size at the end of a linear decay; none: constant"
    )
    learning_rate_decay_steps: Count = Field(0, description="env steps over which the step size decays")
    adam_eps: PositiveNumber = Field(1e-8, description="Adam's epsilon")
    max_grad_norm: PositiveNumber | None = Field(10.0, description="gradients are clipped to this norm; none: never")

    @model_validator(mode="after")
    def _decay_is_whole(self) -> AlgorithmConfig:
        if (self.final_learning_rate is None) != (self.learning_rate_decay_steps == 0):
            raise ValueError("final_learning_rate and learning_rate_decay_steps go together: set both or neither")
        return self


class OffPolicyConfig(AlgorithmConfig):
    """What every algorithm that learns from replay has."""

    buffer_size: Positive = Field(100_000, description="transitions kept for replay")
    batch_size: Positive = Field(64, description="transitions in one update")
    learning_starts: Count = Field(1_000, description="env steps of random acting before the first update")
    train_freq: Positive = Field(1, description="env steps between training phases")
    gradient_steps: Positive = Field(1, description="updates in one training phase")

    @model_validator(mode="after")
    def _batch_fits(self) -> OffPolicyConfig:
        if self.buffer_size < self.batch_size:
            raise ValueError(
                f"buffer_size ({self.buffer_size}) is smaller than batch_size ({self.batch_size}): raise buffer_size or "
                "lower batch_size"
            )
        return self
