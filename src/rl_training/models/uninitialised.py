"""Layers whose memory is allocated but not yet initialised."""

from __future__ import annotations

import math
import os
import resource
from pathlib import Path
from typing import TypeVar

import torch
from torch import nn

from rl_training.errors import ConfigError

Layer = TypeVar("Layer", bound=nn.Module)


def require_room(*shape: int) -> None:
    """Refuses a layer whose weights (float32) are larger than the machine's memory, before they are allocated."""
    needed, memory = 4 * math.prod(shape), _whole_memory()
    if needed > memory:
        raise ConfigError(
            f"a layer of {' x '.join(map(str, shape))} weights needs {needed / 1e9:.1f} GB, but there are {memory / 1e9:.1f} "
            "GB of memory for it; lower the sizes of the network in algo_kwargs, such as hidden_sizes"
        )


def _whole_memory() -> int:
    """The machine's memory, or the addresses that ``ulimit -v`` leaves to this process."""
    whole = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit == resource.RLIM_INFINITY:
        return whole
    pages = Path("/proc/self/statm")
    used = int(pages.read_text("utf-8").split()[0]) * resource.getpagesize() if pages.exists() else 0
    return min(whole, max(limit - used, 0))


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
