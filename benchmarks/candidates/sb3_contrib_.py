"""sb3-contrib's candidates."""

from __future__ import annotations

from measure import Measurement
from sb3_contrib import QRDQN, TQC, RecurrentPPO
from workloads import DQNSettings, PPOSettings, SACSettings

from candidates.sb3 import measure_dqn, measure_ppo, measure_sac


def qr_dqn(settings: DQNSettings, seed: int) -> Measurement:
    return measure_dqn(QRDQN, settings, seed, n_quantiles=settings.num_quantiles)


def recurrent_ppo(settings: PPOSettings, seed: int) -> Measurement:
    return measure_ppo(RecurrentPPO, "MlpLstmPolicy", settings, seed, lstm_hidden_size=settings.lstm_size)


def tqc(settings: SACSettings, seed: int) -> Measurement:
    return measure_sac(TQC, settings, seed)
