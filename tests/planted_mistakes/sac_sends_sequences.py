"""SAC whose collectors elsewhere record for another replay than its own."""

from rl_training.algorithms.policy import Policy
from rl_training.algorithms.sac import SAC, SACConfig
from rl_training.data import RecurrentRecorder


class Mistaken(SAC):
    """Its replay takes transitions, its collectors send steps with recurrent states."""

    @classmethod
    def make_recorder(cls, config: SACConfig, policy: Policy, num_envs: int) -> RecurrentRecorder:  # expect: override
        return RecurrentRecorder(policy.initial_carry(num_envs))
