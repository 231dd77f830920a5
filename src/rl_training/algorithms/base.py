"""What the training loop asks of a policy and of an algorithm. Neither knows environments or files."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from rl_training.algorithms.config import AlgorithmConfig, OffPolicyConfig, OnPolicyConfig
from rl_training.data.rollout_buffer import Rollout
from rl_training.rng import RandomStreams, derive_seed
from rl_training.schedules import LinearSchedule
from rl_training.types import Array, Carry, PolicyOutput, SpaceSpec, State, Step, UpdateResult, reset_rows


class ExportModule(nn.Module):
    """A policy for use elsewhere: raw observations (batch, *raw_shape), the reward of the step before (batch,) if it takes
    that, then the state of a policy that remembers, to actions in the environment's own terms, the numbers behind them, and
    the state after."""

    takes_reward: bool = False
    output_names: tuple[str, ...] = ("action", "values")
    state_names: tuple[str, ...] = ()

    def initial_state(self, batch: int) -> tuple[Tensor, ...]:
        """The state at the start of an episode."""
        return ()


class Policy(ABC):
    """Acting. ``act`` with a generator explores as training does; without one it is deterministic."""

    takes_reward: bool = False  # whether ``note_reward`` matters

    def __init__(self, network: nn.Module, spec: SpaceSpec) -> None:
        self.network = network
        self.spec = spec

    @abstractmethod
    def act(
        self,
        obs: Array,
        carry: Carry,
        *,
        rng: np.random.Generator | None = None,
        env_steps: int = 0,
        action_mask: NDArray[np.bool_] | None = None,
    ) -> PolicyOutput: ...

    @abstractmethod
    def export_module(self) -> ExportModule:
        """Acting without exploration as a torch module."""

    def initial_carry(self, num_envs: int) -> Carry:
        """The carry at the start of an episode; a feed-forward policy's is empty."""
        return ()

    def reset_carry(self, carry: Carry, ended: Array) -> Carry:
        """The carry with the rows of ended episodes set back to the start."""
        return reset_rows(carry, ended)

    def note_reward(self, carry: Carry, reward: Array) -> Carry:
        """The carry after the environments have answered an action with these rewards, for policies that remember them."""
        return carry

    def next_carry(self, carry: Carry, step: Step) -> Carry:
        """What to act on next, from the carry that ``act`` gave and what came of it."""
        return self.reset_carry(self.note_reward(carry, step.reward), step.ended)

    def parameters_moved(self) -> None:
        """Called when the parameters' memory is new, so that cached views of it can be dropped."""
        return

    def state_dict(self) -> State:
        return {name: value.detach().clone() for name, value in self.network.state_dict().items()}

    def load_state_dict(self, state: State) -> None:
        self.network.load_state_dict(state)


class Recorder(Protocol):
    """Turns steps into items for a buffer."""

    def record(self, step: Step, carry: Carry) -> Any:
        """``carry`` is the policy's after the step, not yet reset."""

    def discard(self, env_index: int) -> None: ...

    def state_dict(self) -> State: ...

    def load_state_dict(self, state: State) -> None: ...


class Buffer(Protocol):
    """Stores and samples items."""

    def __len__(self) -> int: ...

    @property
    def nbytes(self) -> int: ...

    def add(self, items: Any) -> None: ...

    def sample(self, batch_size: int) -> Any: ...

    def update_priorities(self, indices: Array, priorities: Array) -> None: ...

    def discard(self, env_index: int) -> None: ...

    def state_dict(self) -> State: ...

    def load_state_dict(self, state: State) -> None: ...


class Algorithm(ABC):
    """One batch in, one update out."""

    config_class: ClassVar[type[AlgorithmConfig]]
    policy: Policy

    def __init__(self, policy: Policy, config: AlgorithmConfig) -> None:
        self.policy = policy
        initial = config.learning_rate
        final = initial if config.final_learning_rate is None else config.final_learning_rate
        self.learning_rate = LinearSchedule(initial, final, config.learning_rate_decay_steps)

    def schedule_values(self, env_steps: int) -> dict[str, float]:
        """Scheduled values at a step, for the log."""
        return {"learning_rate": self.learning_rate(env_steps)}

    @classmethod
    @abstractmethod
    def make_policy(cls, config: Any, spec: SpaceSpec, generator: torch.Generator) -> Policy:
        """A freshly initialised policy: all that evaluation, prediction and export need."""

    def why_not_compiled(self) -> str | None:
        """What stands against a compiled update; None: nothing, and ``compile`` can be called."""
        return "its update has no compiled form"

    def compile_repaid_after(self) -> int:
        """About how many updates of a small network repay its compilation from scratch (docs/adr/0007)."""
        raise NotImplementedError

    def compile(self, source: Any) -> None:
        """Makes the update a compiled graph, for batches as this buffer (or rollout) gives them. Nothing else changes."""
        raise NotImplementedError

    def policy_loaded(self) -> None:
        """Called when the policy starts from given weights, so that whatever follows it can start there too."""
        return

    @abstractmethod
    def state_dict(self) -> State:
        """Everything but the policy's weights, which are saved on their own."""

    @abstractmethod
    def load_state_dict(self, state: State) -> None: ...


class OffPolicyAlgorithm(Algorithm):
    """An algorithm that learns from a replay buffer."""

    config: OffPolicyConfig

    @abstractmethod
    def make_recorder(self, num_envs: int) -> Recorder: ...

    @abstractmethod
    def make_buffer(self, num_envs: int, streams: RandomStreams) -> Buffer: ...

    @abstractmethod
    def update(self, batch: Any, env_steps: int = 0) -> UpdateResult: ...

    def sample(self, buffer: Any, env_steps: int) -> Any:
        """The batch for one update."""
        return buffer.sample(self.config.batch_size)


class OnPolicyAlgorithm(Algorithm):
    """An algorithm that learns from its own rollouts, each used for one training phase."""

    config: OnPolicyConfig
    updates: int

    @abstractmethod
    def update(self, rollout: Rollout, env_steps: int = 0) -> UpdateResult:
        """One training phase."""


def init_generator(seed: int) -> torch.Generator:
    """The generator that initial weights are drawn from."""
    return torch.Generator().manual_seed(derive_seed(seed, "init"))
