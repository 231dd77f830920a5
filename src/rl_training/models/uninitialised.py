"""Layers whose memory is allocated but not yet initialised."""

from __future__ import annotations

from typing import TypeVar

import torch
from torch import nn

Layer = TypeVar("Layer", bound=nn.Module)


def uninitialised(layer: Layer) -> Layer:
    """Allocates uninitialised memory for a layer that was created on the device "meta".

    Created on any other device, a layer would draw its weights from the global generator. (``to_empty`` does the same, but
    takes 0.8 seconds to import sympy.)
    """
    assert not list(layer.children())
    assert not list(layer.buffers())
    for name, parameter in layer.named_parameters(recurse=False):
        assert parameter.is_meta
        setattr(layer, name, nn.Parameter(torch.empty(parameter.shape)))
    return layer
