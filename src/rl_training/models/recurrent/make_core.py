"""The recurrent core of a config."""

from __future__ import annotations

from typing import Literal

import torch

from rl_training.models.recurrent.core import RecurrentCore
from rl_training.models.recurrent.gru_core import GRUCore
from rl_training.models.recurrent.lstm_core import LSTMCore

Cell = Literal["lstm", "gru"]


def make_core(
    cell: Cell, inputs: int, hidden: int, layers: int, generator: torch.Generator, *, forget_bias: float = 0.0
) -> RecurrentCore:
    """``layers`` layers of LSTM or GRU; ``forget_bias`` is the LSTM's."""
    if cell == "gru":
        return GRUCore(inputs, hidden, layers, generator)
    return LSTMCore(inputs, hidden, layers, generator, forget_bias=forget_bias)
