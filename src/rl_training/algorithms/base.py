"""The interface between the training loop and an algorithm, which turns each batch into an update.

An algorithm is one file: a config class, a loss, and a subclass of ``Algorithm`` that declares its name, its summary and the
spaces it supports. The registry, the managed classes, the command line and the test matrices are derived from that class.
"""

from __future__ import annotations

import typing
from abc import ABC, abstractmethod
from typing import Any, ClassVar, Generic, TypeVar, final

import torch

from rl_training.algorithms.config import AlgorithmConfig, OffPolicyConfig, OnPolicyConfig
from rl_training.algorithms.policy import Policy
from rl_training.algorithms.return_scale import ReturnScale
from rl_training.algorithms.update import Update
from rl_training.data.replay import BatchT, Recorder, Replay, clipped
from rl_training.data.rollout_buffer import Rollout
from rl_training.models.normalization import ObservationNormalizer
from rl_training.rng import RandomStreams, derive_seed
from rl_training.types import ActionKind, ObservationKind, SpaceSpec, State, Step, UpdateResult

ConfigT = TypeVar("ConfigT", bound=AlgorithmConfig)
OffPolicyConfigT = TypeVar("OffPolicyConfigT", bound=OffPolicyConfig)
OnPolicyConfigT = TypeVar("OnPolicyConfigT", bound=OnPolicyConfig)
InputT = TypeVar("InputT")


def _config_argument(cls: type) -> type[AlgorithmConfig] | None:
    """The config class in the type arguments of a class's bases, such as DQNConfig in ``ValueAlgorithm[DQNConfig]``."""
    for base in getattr(cls, "__orig_bases__", ()) if "__orig_bases__" in vars(cls) else ():
        for argument in typing.get_args(base):
            if isinstance(argument, type) and issubclass(argument, AlgorithmConfig):
                return argument
    return None


class Algorithm(ABC, Generic[ConfigT, InputT]):
    """Generic in its config and in the input of one update.

    In ``class DQN(ValueAlgorithm[DQNConfig])`` the type argument sets ``config_class``. The constructor is final because the
    trainer calls it; subclasses do their setup in ``build``.
    """

    name: ClassVar[str]  #: the name used in configs, on the command line and in the log
    public_name: ClassVar[str]  #: the name of the managed class in Python; defaults to the class name
    summary: ClassVar[str]  #: a one-line description for ``rl-training list``
    observations: ClassVar[tuple[ObservationKind, ...]]  #: the kinds of observation it supports
    actions: ClassVar[tuple[ActionKind, ...]]  #: the kinds of action it supports
    config_class: ClassVar[type[AlgorithmConfig]]

    policy: Policy
    config: ConfigT
    updater: Update[Any]

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "public_name" not in vars(cls):
            cls.public_name = cls.__name__
        given = _config_argument(cls)
        if given is not None:
            cls.config_class = given

    @final
    def __init__(self, policy: Policy, config: ConfigT, streams: RandomStreams) -> None:
        self.policy, self.config, self.streams = policy, config, streams
        self.learning_rate = config.learning_rate_schedule()
        self.build()
        self.updater = self.make_update()
        policy.parameters_moved()  # the optimisers have moved the parameters to new memory

    def build(self) -> None:
        """Sets up everything except the policy; a subclass calls ``super().build()`` first."""
        return

    @classmethod
    @abstractmethod
    def make_policy(cls, config: ConfigT, spec: SpaceSpec, generator: torch.Generator) -> Policy:
        """A freshly initialised policy. Evaluation, prediction and export need nothing else."""

    @abstractmethod
    def make_update(self) -> Update[Any]:
        """The stages of one update, with their optimisers and target networks."""

    @abstractmethod
    def update(self, batch: InputT, env_steps: int = 0) -> UpdateResult:
        """Learns from one batch (or rollout)."""

    @property
    def updates(self) -> int:
        """The number of updates so far."""
        return self.updater.updates

    def schedule_values(self, env_steps: int) -> dict[str, float]:
        """The scheduled values at a step, for the log."""
        return self.updater.scheduled(env_steps)

    def why_not_compiled(self) -> str | None:
        """Why the update cannot be compiled into one graph; None if it can."""
        return self.updater.why_not_compiled()

    @abstractmethod
    def compile(self, example: InputT) -> None:
        """Compiles the update into a graph for inputs shaped like ``example``. Nothing else changes."""

    @abstractmethod
    def rows_per_update(self, num_envs: int) -> int:
        """The number of samples in one gradient step."""

    def loss_terms(self) -> int:
        """The number of terms in the loss if it is a double sum such as QR-DQN's, otherwise 0."""
        return 0

    def policy_loaded(self) -> None:
        """Called when weights have been loaded into the policy: copies them to the target networks."""
        self.updater.reset_targets()

    def state_dict(self) -> State:
        """Everything except the policy's weights, which are saved separately."""
        return self.updater.state_dict()

    def load_state_dict(self, state: State) -> None:
        self.updater.load_state_dict(state)


class OffPolicyAlgorithm(Algorithm[OffPolicyConfigT, BatchT]):
    """An algorithm that learns from replayed experience."""

    #: whether steps come with the Q-values of acting, from which the replay makes initial priorities
    actor_priorities: bool = False

    def build(self) -> None:
        super().build()
        self.return_scale = ReturnScale(self.config.gamma) if self.config.normalize_rewards else None
        modules = self.policy.network.modules()
        self.normalizers = [module for module in modules if isinstance(module, ObservationNormalizer)]
        self.has_statistics = bool(self.normalizers) or self.return_scale is not None

    @property
    def device(self) -> torch.device:
        """The device of the networks, and so of the batches."""
        return next(self.policy.network.parameters()).device

    @abstractmethod
    def make_update(self) -> Update[BatchT]:
        """The stages of one update, each with a batch of the replay as its input."""

    @abstractmethod
    def make_replay(self, num_envs: int) -> Replay[BatchT]:
        """The replay from which its batches are sampled."""

    @classmethod
    @abstractmethod
    def make_recorder(cls, config: OffPolicyConfigT, policy: Policy, num_envs: int) -> Recorder[Any, Any]:
        """The recorder of this replay alone, for a collector with some of the environments. A family declares its type."""

    def observe(self, step: Step) -> None:
        """Updates the running statistics of observations and returns, if there are any, with a step of all environments."""
        fields: tuple[Any, ...] = step._replace(values=None)
        block = Step(*(None if field is None else field[None] for field in fields))  # type: ignore[arg-type]
        self.observe_block(block, 0, len(step.reward))

    def observe_block(self, block: Step, first: int, num_envs: int) -> None:
        """``observe`` for several steps, (time, env, ...), of environment ``first`` of ``num_envs`` and those after it."""
        present = block.present
        for normalizer in self.normalizers:
            normalizer.update(block.obs.reshape(-1, *block.obs.shape[2:]) if present is None else block.obs[present])
        if self.return_scale is not None:
            reward = clipped(block, self.config.clip_reward).reward
            self.return_scale.observe(reward, block.ended, present, first, num_envs)

    def inputs(self, batch: BatchT) -> BatchT:
        """Converts a sampled batch into the input of the update's stages."""
        if self.return_scale is None:
            return batch
        sampled: Any = batch
        scaled: BatchT = sampled._replace(reward=self.return_scale.scale_batch(sampled.reward, self.config.n_step))
        return scaled

    def update(self, batch: BatchT, env_steps: int = 0) -> UpdateResult:
        outcome = self.updater(self.inputs(batch), env_steps)
        assert outcome is not None
        return UpdateResult(outcome.metrics, outcome.kept.get("priority"), outcome.kept.get("share"))

    def compile(self, example: BatchT) -> None:
        self.updater.compile(self.inputs(example))

    def rows_per_update(self, num_envs: int) -> int:
        return self.config.batch_size

    def state_dict(self) -> State:
        state = super().state_dict()
        return state if self.return_scale is None else {**state, "return_scale": self.return_scale.state_dict()}

    def load_state_dict(self, state: State) -> None:
        super().load_state_dict(state)
        if self.return_scale is not None:
            self.return_scale.load_state_dict(state["return_scale"])


class OnPolicyAlgorithm(Algorithm[OnPolicyConfigT, Rollout]):
    """An algorithm that learns from its own rollouts, each used for one training phase."""


def init_generator(seed: int) -> torch.Generator:
    """The generator that initial weights are drawn from."""
    return torch.Generator().manual_seed(derive_seed(seed, "init"))
