"""Shared by the algorithms that learn from one-step or n-step transitions: their recorder and their replay."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from pydantic import Field

from rl_training.algorithms.base import OffPolicyAlgorithm
from rl_training.algorithms.config import OffPolicyConfig, Positive
from rl_training.algorithms.policy import Policy
from rl_training.algorithms.strict_model import searched
from rl_training.data.replay import Replay
from rl_training.data.transition_replay import TransitionRecorder, make_transition_recorder, make_transition_replay
from rl_training.types import TransitionBatch


class TransitionConfig(OffPolicyConfig):
    """Settings of the algorithms that learn from transitions."""

    n_step: Positive = Field(1, description="rewards summed in one transition", json_schema_extra=searched(choice=[1, 3, 5]))


TransitionConfigT = TypeVar("TransitionConfigT", bound=TransitionConfig)


class TransitionAlgorithm(OffPolicyAlgorithm[TransitionConfigT, TransitionBatch]):
    """Learns from batches of transitions."""

    @classmethod
    def make_recorder(cls, config: TransitionConfigT, policy: Policy, num_envs: int) -> TransitionRecorder:
        return make_transition_recorder(policy.spec, num_envs, config.n_step, config.gamma)

    def priority_exponents(self) -> tuple[float, Callable[[int], float]] | None:
        """The exponent of the priorities, and the importance-sampling exponent as a function of the env steps; None if
        replay is uniform."""
        return None

    def make_replay(self, num_envs: int) -> Replay[TransitionBatch]:
        config = self.config
        alpha, beta = self.priority_exponents() or (None, None)
        return make_transition_replay(
            self.policy.spec,
            capacity=config.buffer_size,
            batch_size=config.batch_size,
            num_envs=num_envs,
            n_step=config.n_step,
            gamma=config.gamma,
            frame_stack=config.frame_stack,
            alpha=alpha,
            beta=beta,
            clip_reward=config.clip_reward,
            rng=self.streams["replay"],
            device=self.device,
            actor_priorities=self.actor_priorities,
        )
