"""A value network's parts, put together for a kind of observation: what trains and what is tested alone come from here."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from rl_training.models.cnn.nature import NATURE_LAYERS, Layer, NatureCNN
from rl_training.models.mlp import MLP
from rl_training.models.value_head import ValueHead


def make_value_body(
    obs_shape: Sequence[int],
    actions: int,
    hidden: Sequence[int],
    generator: torch.Generator,
    *,
    atoms: int = 1,
    dueling: bool = False,
    noisy: bool = False,
    cnn_layers: Sequence[Layer] = NATURE_LAYERS,
) -> tuple[nn.Module, ValueHead]:
    """The trunk and the head: convolutions on images and all hidden layers after them, or hidden layers on a vector, of which
    the last belongs to the head, as dueling wants it."""
    trunk: MLP | NatureCNN
    if len(obs_shape) == 3:
        trunk = NatureCNN(obs_shape, generator, features=None, layers=cnn_layers)
    else:
        trunk = MLP([obs_shape[0], *hidden[:-1]], generator, activate_last=True)
        hidden = hidden[-1:]
    return trunk, ValueHead(trunk.features, hidden, actions, generator, atoms=atoms, dueling=dueling, noisy=noisy)
