"""A policy that is built from settings the algorithm does not have."""

import torch

from rl_training.algorithms.c51 import C51
from rl_training.algorithms.epsilon_greedy import EpsilonGreedyPolicy
from rl_training.algorithms.sac import SACConfig
from rl_training.types import SpaceSpec


class Mistaken(C51):
    """The trainer hands it C51's settings."""

    @classmethod
    def make_policy(
        cls,
        config: SACConfig,  # expect: override
        spec: SpaceSpec,
        generator: torch.Generator,
    ) -> EpsilonGreedyPolicy:
        raise AssertionError
