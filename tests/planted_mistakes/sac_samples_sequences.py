"""SAC with a replay of sequences."""

from rl_training.algorithms.sac import SAC
from rl_training.data.replay import Replay
from rl_training.types import SequenceBatch


class Mistaken(SAC):
    """It learns from transitions."""

    def make_replay(self, num_envs: int) -> Replay[SequenceBatch]:  # expect: override
        raise AssertionError
