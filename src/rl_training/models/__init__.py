"""Networks. Each is built from an explicit random generator and has no knowledge of losses or environments."""

from rl_training.models.actor_critic import ActorCritic
from rl_training.models.cnn import CNNDrQModel, CNNDrQv2Model, NatureCNN
from rl_training.models.encoder import Encoder
from rl_training.models.mlp import MLP
from rl_training.models.mlp_q_network import MLPQNetwork
from rl_training.models.mlp_qr_q_network import MLPQRQNetwork
from rl_training.models.noisy import NoisyLinear
from rl_training.models.normalization import ObservationNormalizer, ObservationScale, RunningMoments
from rl_training.models.observation import EncoderConfig, make_encoder
from rl_training.models.recurrent import GRUCore, LSTMCore, LSTMQNetwork, RecurrentActorCritic
from rl_training.models.value_head import ValueHead
from rl_training.models.value_network import (
    CategoricalQNetwork,
    QNetwork,
    QuantileQNetwork,
    ValueNetwork,
    make_value_body,
)

__all__ = [
    "MLP",
    "ActorCritic",
    "CNNDrQModel",
    "CNNDrQv2Model",
    "CategoricalQNetwork",
    "Encoder",
    "EncoderConfig",
    "GRUCore",
    "LSTMCore",
    "LSTMQNetwork",
    "MLPQNetwork",
    "MLPQRQNetwork",
    "NatureCNN",
    "NoisyLinear",
    "ObservationNormalizer",
    "ObservationScale",
    "QNetwork",
    "QuantileQNetwork",
    "RecurrentActorCritic",
    "RunningMoments",
    "ValueHead",
    "ValueNetwork",
    "make_encoder",
    "make_value_body",
]
