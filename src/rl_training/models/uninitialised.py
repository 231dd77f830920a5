"""Layers whose memory is allocated but not yet initialised."""

from __future__ import annotations

import math
from typing import TypeVar

import torch
from torch import nn

from rl_training.errors import ConfigError
from rl_training.limits import addresses_left, machine_memory

Layer = TypeVar("Layer", bound=nn.Module)


def require_room(*shape: int) -> None:
    """Refuses a layer whose weights (float32) are larger than the machine's memory, before they are allocated."""
    needed = 4 * math.prod(shape)
    memory = min((known for known in (machine_memory(), addresses_left()) if known is not None), default=None)
    if memory is not None and needed > memory:
        raise ConfigError(
            f"a layer of {' x '.join(map(str, shape))} weights needs {needed / 1e9:.1f} GB, but there are {memory / 1e9:.1f} "
            "GB of memory for it; lower the sizes of the network in algo_kwargs, such as hidden_sizes"
        )


def uninitialised(layer: Layer) -> Layer:
    """Allocates uninitialised memory for a layer that was created on the device "meta".

    Created on any other device, a layer would draw its weights from the global generator. (``to_empty`` does the same, but
    takes 0.8 seconds to import sympy.)
    """
    assert not list(layer.children())
    assert not list(layer.buffers())
    for name, parameter in layer.named_parameters(recurse=False):
        assert parameter.is_meta
        require_room(*parameter.shape)
        setattr(layer, name, nn.Parameter(torch.empty(parameter.shape)))
    return layer
