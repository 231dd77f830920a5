"""Acting: the interface of a policy for the training loop, evaluation, prediction and export."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, NamedTuple, final

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from rl_training.types import Array, Carry, PolicyOutput, SpaceSpec, State, Step, reset_rows

#: Raw observations as an exported policy takes them: a tensor, or one for each leaf of a Dict or Tuple.
Observations = Tensor | tuple[Tensor, ...]


class ExportModule(nn.Module):
    """A policy as a standalone module.

    Inputs: raw observations (batch, *raw_shape), or for a Dict or Tuple a tuple of its leaves; the previous reward (batch,)
    if ``takes_reward``; then the state of a recurrent policy. Outputs: environment actions, the values they come from, and
    the next state.
    """

    takes_reward: bool = False
    output_names: tuple[str, ...] = ("action", "values")
    state_names: tuple[str, ...] = ()

    def initial_state(self, batch: int) -> tuple[Tensor, ...]:
        """The state at the start of an episode."""
        return ()


class ActInput(NamedTuple):
    """Everything a policy may use to choose an action, one row per environment."""

    obs: Array  # (env, ...)
    carry: Carry  # the policy's recurrent state; () for a feed-forward policy
    rng: np.random.Generator | None = None  # explore as in training; None: act deterministically
    env_steps: int = 0  # for exploration schedules
    action_mask: NDArray[np.bool_] | None = None  # (env, action) the allowed actions; None: all
    learning: bool = False  # collect experience: act with the weights that are trained, even if there is an average of them


class Policy(ABC):
    """A network that acts."""

    takes_reward: bool = False  # whether ``note_reward`` does anything
    #: acts in place of the network, except to collect experience: an average of the weights that training gave it
    average: Any = None
    #: the index of the first environment that it acts in, and the number of all; None: it acts in all of them
    place: tuple[int, int] | None = None

    def __init__(self, network: nn.Module, spec: SpaceSpec) -> None:
        self.network = network
        self.spec = spec

    @final
    @np.errstate(over="ignore", invalid="ignore")  # callers check actions for NaN and infinity, and explain them
    def act(
        self,
        obs: Array,
        carry: Carry,
        *,
        rng: np.random.Generator | None = None,
        env_steps: int = 0,
        action_mask: NDArray[np.bool_] | None = None,
        learning: bool = False,
    ) -> PolicyOutput:
        """Actions for one observation per environment. With ``rng`` the policy explores; without, it is deterministic."""
        return self.choose(ActInput(obs, carry, rng, env_steps, action_mask, learning))

    @abstractmethod
    def choose(self, given: ActInput) -> PolicyOutput:
        """The implementation of ``act``, for subclasses to define."""

    @abstractmethod
    def export_module(self) -> ExportModule:
        """The deterministic policy as a torch module."""

    def initial_carry(self, num_envs: int) -> Carry:
        """The carry at the start of an episode; empty for a feed-forward policy."""
        return ()

    def reset_carry(self, carry: Carry, ended: Array) -> Carry:
        """The carry with the rows of ended episodes reset to their initial value."""
        return reset_rows(carry, ended)

    def note_reward(self, carry: Carry, reward: Array) -> Carry:
        """The carry with the reward of the last action, for policies that take rewards as inputs."""
        return carry

    def next_carry(self, carry: Carry, step: Step) -> Carry:
        """The carry to act on next, from the carry that ``act`` returned and the step that followed."""
        return self.reset_carry(self.note_reward(carry, step.reward), step.ended) if carry else carry

    def parameters_moved(self) -> None:
        """Called when the parameters have moved to new memory: cached views of them must be dropped."""
        return

    def acting(self, *, learning: bool = False) -> Any:
        """The network that acts; with ``learning``, to collect experience."""
        return self.network if learning or self.average is None else self.average

    @property
    def networks(self) -> list[nn.Module]:
        """The network, and the average of its weights if there is one."""
        return [self.network] if self.average is None else [self.network, self.average]

    def state_dict(self) -> State:
        """The weights that act."""
        return {name: value.detach().clone() for name, value in self.acting().state_dict().items()}

    def load_state_dict(self, state: State) -> None:
        for network in self.networks:
            network.load_state_dict(state)

    def take_weights(self, other: Policy) -> None:
        """Takes all weights of the same policy on another device."""
        for own, network in zip(self.networks, other.networks, strict=True):
            own.load_state_dict(network.state_dict())
