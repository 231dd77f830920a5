"""The weights of a network as one string of bytes. Names and shapes need not travel: all processes of a run make the same
network."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from torch import nn

from rl_training.data.loaded import require_like
from rl_training.types import Array, State


class FlatWeights:
    """The parameters and buffers of a network, one after the other. Valid until they move to other memory."""

    def __init__(self, network: nn.Module) -> None:
        self._tensors = dict(sorted(network.state_dict().items()))
        self._arrays = {name: tensor.cpu().numpy() for name, tensor in self._tensors.items()}  # on the CPU, the weights

    def to_bytes(self) -> bytes:
        """The current weights."""
        return _joined(tensor.cpu().numpy() for tensor in self._tensors.values())

    def load(self, content: bytes) -> None:
        """Sets the weights of a network on the CPU."""
        for name, value in self.arrays(content).items():
            self._arrays[name][...] = value

    def arrays(self, content: bytes) -> dict[str, Array]:
        """Weights by their names, for a checkpoint."""
        found: dict[str, Array] = {}
        at = 0
        for name, own in self._arrays.items():
            found[name] = np.frombuffer(content, own.dtype, own.size, at).reshape(own.shape)
            at += own.nbytes
        return found

    def from_arrays(self, arrays: State) -> bytes:
        """The inverse of ``arrays``."""
        for name, own in self._arrays.items():
            require_like(arrays.get(name), own, f"the weight {name}")
        return _joined(arrays[name] for name in self._arrays)


def _joined(arrays: Iterable[Array]) -> bytes:
    return b"".join([np.ascontiguousarray(array).data for array in arrays])
