"""A learner of transitions that acts with a policy for sequences."""

import torch

from rl_training.algorithms.dqn import DQN, DQNConfig
from rl_training.algorithms.recurrent_value import RecurrentQPolicy
from rl_training.algorithms.value import ValueAlgorithm
from rl_training.types import SpaceSpec


class Mistaken(ValueAlgorithm[DQNConfig]):
    """Its target network and its loss are those of a feed-forward network."""

    loss = DQN.loss

    @classmethod
    def make_policy(  # expect: override
        cls, config: DQNConfig, spec: SpaceSpec, generator: torch.Generator
    ) -> RecurrentQPolicy:
        raise AssertionError
