"""Networks with memory."""

from rl_training.models.recurrent.actor_critic import RecurrentActorCritic
from rl_training.models.recurrent.gru_core import GRUCore
from rl_training.models.recurrent.lstm_core import LSTMCore
from rl_training.models.recurrent.lstm_q_network import LSTMQNetwork

__all__ = ["GRUCore", "LSTMCore", "LSTMQNetwork", "RecurrentActorCritic"]
