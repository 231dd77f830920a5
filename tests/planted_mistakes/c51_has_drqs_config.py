"""C51's update with the settings of DrQ."""

from rl_training.algorithms.drq import DrQConfig
from rl_training.algorithms.value import ValueAlgorithm


class Mistaken(ValueAlgorithm[DrQConfig]):  # expect: type-var
    """DrQ's config is not one of the value family."""
