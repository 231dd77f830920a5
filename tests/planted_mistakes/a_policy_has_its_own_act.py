"""Acting with a signature of its own."""

from rl_training.algorithms.epsilon_greedy import EpsilonGreedyPolicy
from rl_training.types import Array


class Mistaken(EpsilonGreedyPolicy):
    """There is one signature; a policy implements ``choose``."""

    def act(self, obs: Array, deterministic: bool = True) -> Array:  # expect: misc, override
        return obs
