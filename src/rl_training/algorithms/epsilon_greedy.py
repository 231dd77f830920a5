"""Acting on Q-values, with epsilon-greedy exploration."""

from __future__ import annotations

import copy
from collections.abc import Callable, Set
from typing import Annotated, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator
from torch import Tensor, nn

from rl_training.algorithms.config import Count, Fraction, Number, OffPolicyConfig, ScheduledFraction, decaying
from rl_training.algorithms.policy import ActInput, ExportModule, Observations, Policy
from rl_training.algorithms.strict_model import MAY_CHANGE, searched
from rl_training.models.action_head import index_to_env
from rl_training.models.observation import encode_observation
from rl_training.models.value_network import ValueNetwork
from rl_training.schedules import LinearSchedule, Schedule
from rl_training.types import Array, PolicyOutput, SpaceSpec


class EpsilonGreedyConfig(OffPolicyConfig):
    """Settings of every algorithm that explores epsilon-greedily."""

    exploration_initial_eps: Fraction = Field(1.0, description="initial epsilon", json_schema_extra=MAY_CHANGE)
    exploration_final_eps: Fraction = Field(
        0.05, description="final epsilon", json_schema_extra={**MAY_CHANGE, **searched(uniform=[0.0, 0.2])}
    )
    exploration_steps: Count = Field(10_000, description="env steps over which epsilon decays", json_schema_extra=MAY_CHANGE)
    epsilon: ScheduledFraction | None = Field(
        None,
        description="epsilon, a number or a schedule, instead of the linear decay of the exploration_* settings",
        json_schema_extra=MAY_CHANGE,
    )

    epsilon_spread: Annotated[Number, Field(ge=0.0)] = Field(
        0.0, description="environment i of N explores with epsilon^(1 + spread * i / (N - 1)); 0: all use epsilon"
    )

    DECAY: ClassVar = ("exploration_initial_eps", "exploration_final_eps", "exploration_steps")

    @classmethod
    def replaced_by(cls, given: Set[str]) -> Set[str]:
        if "epsilon" in given:
            return {*cls.DECAY} - given
        return {"epsilon"} if given & {*cls.DECAY} else frozenset()

    def epsilon_schedule(self) -> Schedule:
        """Epsilon as a function of the env steps, after the warm-up."""
        if self.epsilon is None:
            return LinearSchedule(self.exploration_initial_eps, self.exploration_final_eps, self.exploration_steps)
        return decaying(self.epsilon, None, 0)

    @model_validator(mode="after")
    def _one_epsilon(self) -> EpsilonGreedyConfig:
        changed = [name for name in self.DECAY if getattr(self, name) != type(self).model_fields[name].default]
        if self.epsilon is not None and changed:
            raise ValueError(f"epsilon replaces the linear decay: leave out {' and '.join(changed)}")
        return self


class EpsilonPolicy(Policy):
    """Epsilon-greedy acting on Q-values. Each environment draws separately whether to explore."""

    passes_q_values = False  # whether ``act`` returns them in its extras

    def __init__(self, network: nn.Module, spec: SpaceSpec, config: EpsilonGreedyConfig) -> None:
        super().__init__(network, spec)
        self._warm_up = config.learning_starts
        self._schedule = config.epsilon_schedule()
        self._spread = config.epsilon_spread

    def epsilon(self, env_steps: int) -> float:
        return 1.0 if env_steps < self._warm_up else self._schedule(env_steps)

    def epsilons(self, env_steps: int, envs: int) -> Array | float:
        """Epsilon of each environment, or one value for all. With a spread it is epsilon^(1 + spread * i / (N - 1)) for
        environment i of all N of the run (Horgan et al., arXiv:1803.00933)."""
        epsilon = self.epsilon(env_steps)
        if not self._spread:
            return epsilon
        first, total = self.place or (0, envs)
        exponents: Array = 1.0 + self._spread * (first + np.arange(envs)) / max(1, total - 1)
        return epsilon**exponents

    def draw(
        self, rng: np.random.Generator, env_steps: int, envs: int, action_mask: NDArray[np.bool_] | None
    ) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
        """Which environments explore, and a random action for each."""
        explore: NDArray[np.bool_] = rng.random(envs) < self.epsilons(env_steps, envs)
        return explore, _random_actions(rng, envs, self.spec.action.count, action_mask)


def greedy_actions(q_values: Array, action_mask: NDArray[np.bool_] | None) -> NDArray[np.int64]:
    """The best allowed action of each row (env, action)."""
    if action_mask is not None:
        q_values = np.where(action_mask, q_values, -np.inf)
    greedy: NDArray[np.int64] = q_values.argmax(axis=1)
    return greedy


def _random_actions(
    rng: np.random.Generator, envs: int, count: int, action_mask: NDArray[np.bool_] | None
) -> NDArray[np.int64]:
    """One action per environment, uniform over the allowed ones."""
    if action_mask is None:
        return rng.integers(0, count, envs)
    rank = np.floor(rng.random(envs) * action_mask.sum(axis=1))  # take the rank-th allowed action
    action: NDArray[np.int64] = (action_mask.cumsum(axis=1) > rank[:, None]).argmax(axis=1)
    return action


class EpsilonGreedyPolicy(EpsilonPolicy):
    """Epsilon-greedy on a feed-forward network. A noisy network explores through its noise, so epsilon is 0 after warm-up."""

    network: ValueNetwork

    def __init__(self, network: ValueNetwork, spec: SpaceSpec, config: EpsilonGreedyConfig, *, noisy: bool = False) -> None:
        super().__init__(network, spec, config)
        self._noisy = noisy
        self._q_functions: dict[tuple[bool, bool], Callable[[Array], Array]] = {}

    def epsilon(self, env_steps: int) -> float:
        return 0.0 if self._noisy and env_steps >= self._warm_up else super().epsilon(env_steps)

    def choose(self, given: ActInput) -> PolicyOutput:
        obs, carry, rng, env_steps, action_mask, learning = given
        if rng is None:
            return PolicyOutput(greedy_actions(self.q(obs, learning=learning), action_mask), carry, {})
        explore, action = self.draw(rng, env_steps, len(obs), action_mask)
        if self.passes_q_values or not explore.all():
            q_values = self.q(obs, self._noisy, learning=learning)
            action = np.where(explore, action, greedy_actions(q_values, action_mask))
            if self.passes_q_values:
                return PolicyOutput(action, carry, {"q_values": q_values})
        return PolicyOutput(action, carry, {})

    def q(self, obs: Array, noisy: bool = False, *, learning: bool = False) -> Array:
        """Q-values (env, action) of the network that acts, with or without exploration noise."""
        key = noisy, learning
        if key not in self._q_functions:
            self._q_functions[key] = self.acting(learning=learning).q_function(noisy)
        return self._q_functions[key](obs)

    def parameters_moved(self) -> None:
        self._q_functions.clear()

    def export_module(self) -> ExportModule:
        return GreedyModule(self.acting(), self.spec).eval()


class GreedyModule(ExportModule):
    """Raw observations -> greedy environment actions, and the Q-values they come from."""

    def __init__(self, network: ValueNetwork, spec: SpaceSpec) -> None:
        super().__init__()
        self.network = copy.deepcopy(network)
        self.spec = spec

    def forward(self, obs: Observations) -> tuple[Tensor, Tensor]:
        q_values = self.network.q_values(encode_observation(obs, self.spec.observation))
        return index_to_env(q_values.argmax(dim=1), self.spec.action), q_values
