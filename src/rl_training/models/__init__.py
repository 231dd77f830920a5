"""Networks. Each is built from an explicit random generator and has no knowledge of losses or environments."""

from rl_training.models.actor_critic import ActorCritic
from rl_training.models.mlp import MLP
from rl_training.models.mlp_q_network import MLPQNetwork
from rl_training.models.normalization import ObservationNormalizer, RunningMoments
from rl_training.models.recurrent import LSTMCore, RecurrentActorCritic
from rl_training.models.value_network import ValueNetwork

__all__ = [
    "MLP",
    "ActorCritic",
    "LSTMCore",
    "MLPQNetwork",
    "ObservationNormalizer",
    "RecurrentActorCritic",
    "RunningMoments",
    "ValueNetwork",
]
