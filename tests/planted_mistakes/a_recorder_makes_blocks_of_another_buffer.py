"""A replay whose recorder and buffer agree on single steps, but not on blocks of steps from a collector elsewhere."""

from collections.abc import Sequence

import numpy as np

from rl_training.data import FrameReplayBuffer
from rl_training.data.blocks import stacked
from rl_training.data.replay import Replay
from rl_training.types import Carry, SpaceSpec, State, Step


class Whole:
    """Its blocks are whole steps; the buffer takes compact ones."""

    def record(self, step: Step, carry: Carry) -> Step:
        return step

    def block(self, recorded: Sequence[Step], frame_channels: int | None) -> Step:
        return stacked(recorded)

    def discard(self, env_index: int) -> None:
        return

    def state_dict(self) -> State:
        return {}

    def load_state_dict(self, state: State) -> None:
        return

    def check(self, spec: SpaceSpec) -> None:
        return


buffer = FrameReplayBuffer(10, (1, 8, 8), stack=1, num_envs=1, n_step=1, gamma=0.9, rng=np.random.default_rng(0))
replay = Replay(Whole(), buffer, batch_size=2)  # expect: misc
