"""Which learner an algorithm needs."""

from __future__ import annotations

from rl_training.algorithms.base import Algorithm, OffPolicyAlgorithm, OnPolicyAlgorithm
from rl_training.rng import RandomStreams
from rl_training.runtime.cadence import PhaseTimer
from rl_training.runtime.learner import Learner, OffPolicyLearner
from rl_training.runtime.on_policy_learner import OnPolicyLearner


def make_learner(algorithm: Algorithm, num_envs: int, streams: RandomStreams, timer: PhaseTimer) -> Learner:
    """The learner of the algorithm's family."""
    if isinstance(algorithm, OnPolicyAlgorithm):
        return OnPolicyLearner(algorithm, num_envs, timer)
    assert isinstance(algorithm, OffPolicyAlgorithm), f"{type(algorithm).__name__} is of neither family"
    return OffPolicyLearner(algorithm, num_envs, streams, timer)
