"""An on-policy learner whose policy has no distribution to sample from."""

import torch

from rl_training.algorithms.epsilon_greedy import EpsilonGreedyPolicy
from rl_training.algorithms.ppo import PPO, PPOConfig
from rl_training.types import SpaceSpec


class Mistaken(PPO):
    """Its loss needs the probabilities of actions."""

    @classmethod
    def make_policy(  # expect: override
        cls, config: PPOConfig, spec: SpaceSpec, generator: torch.Generator
    ) -> EpsilonGreedyPolicy:
        raise AssertionError
