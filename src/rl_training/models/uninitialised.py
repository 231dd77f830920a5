"""Layers with memory but no values yet."""

from __future__ import annotations

from typing import TypeVar

import torch
from torch import nn

Layer = TypeVar("Layer", bound=nn.Module)


def uninitialised(layer: Layer) -> Layer:
    """A layer that was made on the device "meta", with memory of its own and no values in it yet.

    Made on any other device, a layer would draw its weights from the global generator. (``to_empty`` does the same, but
    spends 0.8 seconds on importing sympy.)
    """
    assert not list(layer.children())
    assert not list(layer.buffers())
    for name, parameter in layer.named_parameters(recurse=False):
        assert parameter.is_meta
        setattr(layer, name, nn.Parameter(torch.empty(parameter.shape)))
    return layer
