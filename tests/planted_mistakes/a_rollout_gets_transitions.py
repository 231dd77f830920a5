"""Transitions for a learner of rollouts."""

from rl_training.runtime.learner import OnPolicyLearner
from rl_training.types import Transitions


def add(learner: OnPolicyLearner, block: Transitions) -> None:
    """A rollout takes blocks of whole steps with their carries."""
    learner.add_block(block, None, 0)  # expect: arg-type
