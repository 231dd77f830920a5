"""SAC's replay with the recorder of the recurrent algorithms."""

import numpy as np

from rl_training.algorithms.sac import SAC
from rl_training.data import RecurrentRecorder, ReplayBuffer
from rl_training.data.replay import Replay
from rl_training.types import TransitionBatch


class Mistaken(SAC):
    """Its buffer stores transitions, its recorder makes steps with recurrent states."""

    def make_replay(self, num_envs: int) -> Replay[TransitionBatch]:
        buffer = ReplayBuffer(10, (3,), rng=np.random.default_rng(0))
        return Replay(RecurrentRecorder((np.zeros((1, 1)),)), buffer, batch_size=2)  # expect: misc
