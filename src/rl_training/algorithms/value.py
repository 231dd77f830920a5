"""Shared by the algorithms that learn action values: the update step and the target network."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import ClassVar, NamedTuple, TypeVar

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn
from typing_extensions import Self

from rl_training.algorithms.base import OffPolicyAlgorithm
from rl_training.algorithms.config import Count, Fraction, Number, ObservationConfig, Positive, PositiveNumber
from rl_training.algorithms.epsilon_greedy import EpsilonGreedyConfig, EpsilonGreedyPolicy, EpsilonPolicy
from rl_training.algorithms.optimizer import make_optimizer
from rl_training.algorithms.q_values import Values
from rl_training.algorithms.strict_model import MAY_CHANGE, StrictModel, searched
from rl_training.algorithms.transitions import TransitionAlgorithm, TransitionConfig
from rl_training.algorithms.update import NOTHING, AveragedNetwork, Draw, Known, Stage, StageLoss, TargetNetwork, Update
from rl_training.data.replay import BatchT
from rl_training.models import EncoderConfig, ValueHead, ValueNetwork, make_value_body
from rl_training.models.encoder import Encoder
from rl_training.models.noisy import noisy_layers
from rl_training.models.normalization import copied
from rl_training.schedules import Schedule, importance_exponent
from rl_training.types import ActionKind, ObservationKind, SpaceSpec, State, TransitionBatch, UpdateResult


class QLearningConfig(ObservationConfig, EpsilonGreedyConfig):
    """Settings of every algorithm that learns action values."""

    double: bool = Field(False, description="choose the bootstrap action with the online network")
    tau: Fraction = Field(1.0, description="share of the online weights in a target update; 1: a copy")
    target_update_interval: Positive = Field(
        500, description="updates between target updates", json_schema_extra=searched(log=[10, 5000])
    )
    average_updates: Count = Field(
        0,
        description="evaluation, predict and exports use the average of the weights over about this many updates; collecting "
        "experience and learning use the weights themselves; 0: no average",
    )
    initial_value: Number | None = Field(
        None,
        description="initial estimate of every action value; the largest possible return makes what is not known yet look "
        "good; null: about 0, or with C51 the middle of its support",
    )

    @property
    def prioritizes(self) -> bool:
        """Whether replay is prioritised."""
        return False

    def initial_outputs(self) -> Tensor | None:
        """What is added to the network's initial outputs for every action, (atom,) or (1,)."""
        return None if self.initial_value is None else torch.tensor([self.initial_value])

    def encoder(self) -> EncoderConfig:
        """How the encoder of observations is made."""
        return EncoderConfig(
            style=self.style(),
            cnn=self.cnn,
            cnn_layers=self.cnn_layers,
            standardise=self.normalize_observations,
            factors=self.observation_scale,
            orthogonal=self.init == "orthogonal",
            custom=self.custom_network(),
        )


class ValueRangeConfig(StrictModel):
    """A setting of the algorithms whose values have no bounds; those of C51 cannot leave its support."""

    value_range: tuple[Number, Number] | None = Field(
        None, description="smallest and largest possible return; bootstrap values are clipped to them; null: no clipping"
    )

    @model_validator(mode="after")
    def _range_is_not_empty(self) -> Self:
        if self.value_range is not None and self.value_range[0] >= self.value_range[1]:
            raise ValueError(
                f"value_range: the smallest return ({self.value_range[0]}) must be below the largest ({self.value_range[1]})"
            )
        return self

    @model_validator(mode="after")
    def _initial_value_is_possible(self) -> Self:
        initial = getattr(self, "initial_value", None)  # of QLearningConfig, beside which this stands
        if self.value_range is not None and initial is not None:
            smallest, largest = self.value_range
            if not smallest <= initial <= largest:
                raise ValueError(
                    f"initial_value ({initial}) must be within value_range ({smallest} to {largest}), the possible returns: "
                    "choose one of these as initial_value, or widen value_range"
                )
        return self

    def clip_values(self, value: Tensor) -> Tensor:
        """Bootstrap values within the range of possible returns (Andrychowicz et al., arXiv:1707.01495, clip targets so)."""
        return value if self.value_range is None else value.clamp(*self.value_range)


class TDErrorConfig(ValueRangeConfig):
    """Settings of the algorithms whose loss is a function of one TD error; quantiles and atoms have losses of their own."""

    huber_delta: PositiveNumber = Field(
        1.0,
        description="threshold of the Huber loss: quadratic in smaller TD errors, linear in larger ones; above "
        "the largest return it is always quadratic",
    )


class ValueConfig(TransitionConfig, QLearningConfig):
    """Settings of the value family. Rainbow (arXiv:1710.02298) is C51 with all of the options enabled."""

    hidden_sizes: tuple[Positive, ...] = Field((64, 64), description="widths of the hidden layers")
    dueling: bool = Field(False, description="separate streams for the state's value and the actions' advantages")
    noisy: bool = Field(
        False,
        description="explore with noise in the last layers instead of epsilon; all environments share one noise sample "
        "until the next update",
    )
    prioritized: bool = Field(False, description="sample by priority instead of uniformly")
    priority_alpha: Fraction = Field(0.5, description="exponent of the priorities; 0: uniform sampling")
    priority_beta: Fraction = Field(
        0.4, description="initial importance-sampling exponent; 0: no correction", json_schema_extra=MAY_CHANGE
    )
    priority_beta_steps: Count = Field(
        50_000,
        description="env steps over which the importance-sampling exponent grows to 1; 0: constant",
        json_schema_extra=MAY_CHANGE,
    )

    @property
    def prioritizes(self) -> bool:
        return self.prioritized


QConfigT = TypeVar("QConfigT", bound=QLearningConfig)
ValueConfigT = TypeVar("ValueConfigT", bound=ValueConfig)


class LossOutput(NamedTuple):
    """A loss before reduction, the metrics to report, and the priority of each sample."""

    loss: Tensor  # (batch,)
    metrics: Mapping[str, Tensor]  # each (batch,)
    priority: Tensor  # (batch,)


class QLearning(OffPolicyAlgorithm[QConfigT, BatchT]):
    """An online network that learns and a target network that follows it."""

    actions: ClassVar[tuple[ActionKind, ...]] = ("discrete",)
    policy: EpsilonPolicy
    target: nn.Module

    def build(self) -> None:
        super().build()
        config, network = self.config, self.policy.network
        self.target = copied(network)
        self.optimizer = make_optimizer(network, config, max_norm=config.max_grad_norm)
        self.target_network = TargetNetwork(self.target, self.optimizer, tau=config.tau, every=config.target_update_interval)

    @abstractmethod
    def stage_loss(self, batch: BatchT, known: Known) -> StageLoss:
        """The loss with the current weights."""

    def draws(self) -> Mapping[str, Draw[BatchT]]:
        """The random inputs of the loss, by name, if it has any."""
        return {}

    def followers(self) -> dict[str, TargetNetwork]:
        """The networks that follow the online network: the target network, and the average that acts if there is one."""
        found = {"target": self.target_network}
        if self.config.average_updates:
            self.policy.average = copied(self.policy.network, buffers=True)
            found["average"] = AveragedNetwork(self.policy.average, self.optimizer, self.config.average_updates)
        return found

    def make_update(self) -> Update[BatchT]:
        return Update(
            [Stage("loss", self.optimizer, self.stage_loss, self.draws())],
            rng=self.streams["noise"],
            schedules={"learning_rate": self.learning_rate},
            targets=self.followers(),
        )

    def state_dict(self) -> State:
        """With an average, the policy's state has its weights, and those that are trained are here."""
        trained = {} if self.policy.average is None else {"trained": self.optimizer.parameters.clone()}
        return {**super().state_dict(), **trained}

    def load_state_dict(self, state: State) -> None:
        super().load_state_dict(state)
        if self.policy.average is not None:
            self.optimizer.parameters.copy_(state["trained"])

    def schedule_values(self, env_steps: int) -> dict[str, float]:
        return {**super().schedule_values(env_steps), "epsilon": self.policy.epsilon(env_steps)}


class ValueAlgorithm(TransitionAlgorithm[ValueConfigT], QLearning[ValueConfigT, TransitionBatch]):
    """The update of the value family; a subclass adds its network and its ``loss``."""

    observations: ClassVar[tuple[ObservationKind, ...]] = ("vector", "image", "mixed")
    policy: EpsilonGreedyPolicy
    target: ValueNetwork

    @classmethod
    @abstractmethod
    def make_policy(cls, config: ValueConfigT, spec: SpaceSpec, generator: torch.Generator) -> EpsilonGreedyPolicy:
        """A freshly initialised policy."""

    def build(self) -> None:
        super().build()
        self._noisy_layers = [*noisy_layers(self.policy.network), *noisy_layers(self.target)]
        self._resample_noise()

    @abstractmethod
    def loss(self, online: Values, target: Values, batch: TransitionBatch, known: Known = NOTHING) -> LossOutput:
        """The per-sample loss, from two functions of the observations; ``known`` holds the random inputs of ``draws``."""

    def stage_loss(self, batch: TransitionBatch, known: Known) -> StageLoss:
        output = self.loss(self.policy.network, self.target, batch, known)
        loss = output.loss if batch.weights is None else output.loss * batch.weights
        return StageLoss(loss, output.metrics, {"priority": output.priority})

    def update(self, batch: TransitionBatch, env_steps: int = 0) -> UpdateResult:
        self._resample_noise()
        return super().update(batch, env_steps)

    def _resample_noise(self) -> None:
        """Draws new noise in both networks before each update; acting uses the online network's noise until the next one."""
        for layer in self._noisy_layers:
            layer.resample(self.streams["noise"])

    def priority_exponents(self) -> tuple[float, Schedule] | None:
        config = self.config
        if not config.prioritized:
            return None
        return config.priority_alpha, importance_exponent(config.priority_beta, config.priority_beta_steps)


def make_body(config: ValueConfig, spec: SpaceSpec, generator: torch.Generator, atoms: int = 1) -> tuple[Encoder, ValueHead]:
    """The trunk and the head for a config."""
    return make_value_body(
        spec.observation,
        spec.action.count,
        config.hidden_sizes,
        generator,
        atoms=atoms,
        dueling=config.dueling,
        noisy=config.noisy,
        encoder=config.encoder(),
        initial=config.initial_outputs(),
    )
