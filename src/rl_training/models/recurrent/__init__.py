"""Networks with memory."""

from rl_training.models.recurrent.actor_critic import RecurrentActorCritic
from rl_training.models.recurrent.lstm_core import LSTMCore

__all__ = ["LSTMCore", "RecurrentActorCritic"]
