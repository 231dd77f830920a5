"""A constructor that the trainer cannot call."""

from rl_training.algorithms.drqn import DRQN, DRQNConfig
from rl_training.algorithms.recurrent_value import RecurrentQPolicy


class Mistaken(DRQN):
    """Subclasses set themselves up in ``build``."""

    def __init__(self, config: DRQNConfig, policy: RecurrentQPolicy) -> None:  # expect: misc
        self.config, self.policy = config, policy
