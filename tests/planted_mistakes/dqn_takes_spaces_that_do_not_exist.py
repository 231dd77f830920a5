"""Kinds of spaces that are misspelt."""

from rl_training.algorithms.dqn import DQN


class Mistaken(DQN):
    """No environment would ever fit."""

    actions = ("discreet",)  # expect: assignment
    observations = ("vectors", "image")  # expect: assignment
