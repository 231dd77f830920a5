"""How vectors are prepared for a network: running statistics, kept in float64 and restored exactly, or fixed factors."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from typing_extensions import Self

from rl_training.models.encoder import widest_float
from rl_training.types import Array, State

CLIP = 10.0
EPSILON = 1e-8


class RunningMoments:
    """Count, mean and variance of all samples so far, updated in batches (Chan, Golub & LeVeque 1979)."""

    def __init__(self, shape: tuple[int, ...] = ()) -> None:
        self.count = 0.0
        self.mean = np.zeros(shape)
        self.squares = np.zeros(shape)  # the sum of squared distances from the mean

    def update(self, batch: Array) -> None:
        """Adds a batch of the shape ``(sample, *shape)``."""
        if not len(batch):
            return
        values = batch.astype(np.float64)
        mean = values.mean(axis=0)
        squares = np.square(values - mean).sum(axis=0)
        total = self.count + len(values)
        distance = mean - self.mean
        self.squares = self.squares + squares + np.square(distance) * (self.count * len(values) / total)
        self.mean = self.mean + distance * (len(values) / total)
        self.count = total

    @property
    def std(self) -> Array:
        """The standard deviation; 1 before the first sample."""
        if not self.count:
            return np.ones_like(self.mean)
        deviation: Array = np.sqrt(self.squares / self.count + EPSILON)
        return deviation

    def state_dict(self) -> State:
        # Arithmetic turns an array without dimensions into a number; saved as an array, it is the same after loading.
        return {"count": self.count, "mean": np.array(self.mean), "squares": np.array(self.squares)}

    def load_state_dict(self, state: State) -> None:
        shape = np.shape(self.mean)  # release 0.2.0 saved the shape () as a number or as (1,)
        self.count = float(state["count"])
        self.mean, self.squares = (np.array(state[name], np.float64).reshape(shape) for name in ("mean", "squares"))


class ObservationNormalizer(nn.Module):
    """Standardises vectors with their running mean and standard deviation, and clips them to +-10.

    The statistics are buffers, so a policy's weights, checkpoints and exports include them. They change only in ``update``:
    acting, evaluation and the passes of one training phase all use the same function. The buffers are always written in
    place, so that numpy views of them stay valid.
    """

    count: Tensor
    mean: Tensor
    squares: Tensor
    shift: Tensor
    scale: Tensor

    def __init__(self, size: int) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(1, dtype=torch.float64))
        self.register_buffer("mean", torch.zeros(size, dtype=torch.float64))
        self.register_buffer("squares", torch.zeros(size, dtype=torch.float64))
        self.register_buffer("shift", torch.zeros(size))  # mean and 1 / std, as the network uses them
        self.register_buffer("scale", torch.ones(size))

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Moves the module to a device. The statistics, which need double precision, stay where they are if the new device
        does not have it; ``forward`` does not use them."""
        doubles = widest_float(fn(torch.empty(0)).device) == torch.float64
        kept = {} if doubles else {name: self._buffers.pop(name) for name in ("count", "mean", "squares")}
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self._buffers = {**kept, **self._buffers}  # in the same order as before
        return self

    def update(self, obs: Array) -> None:
        """Updates the statistics with observations (sample, size)."""
        moments = RunningMoments()
        moments.count = float(self.count)
        moments.mean, moments.squares = self.mean.cpu().numpy(), self.squares.cpu().numpy()
        moments.update(obs)
        self.count.fill_(moments.count)
        self.mean.copy_(torch.from_numpy(moments.mean))
        self.squares.copy_(torch.from_numpy(moments.squares))
        self.shift.copy_(self.mean.to(torch.float32))
        self.scale.copy_(torch.from_numpy(1.0 / moments.std).to(torch.float32))

    def forward(self, obs: Tensor) -> Tensor:
        return ((obs - self.shift) * self.scale).clamp(-CLIP, CLIP)

    def numpy_forward(self) -> Callable[[Array], Array]:
        """``forward`` on numpy arrays, with views of the buffers."""
        shift, scale = self.shift.numpy(), self.scale.numpy()

        def normalize(obs: Array) -> Array:
            x = obs - shift
            x *= scale
            clipped: Array = np.clip(x, -CLIP, CLIP, out=x)
            return clipped

        return normalize


class ObservationScale(nn.Module):
    """Multiplies vectors by fixed factors, which belong to the weights as running statistics do."""

    factors: Tensor

    def __init__(self, factors: Sequence[float]) -> None:
        super().__init__()
        self.register_buffer("factors", torch.tensor(factors, dtype=torch.float32))

    def update(self, obs: Array) -> None:
        """Observations do not change it."""

    def forward(self, obs: Tensor) -> Tensor:
        return obs * self.factors

    def numpy_forward(self) -> Callable[[Array], Array]:
        """``forward`` on numpy arrays, with a view of the buffer."""
        factors = self.factors.numpy()
        return lambda obs: obs * factors


Preparation = ObservationNormalizer | ObservationScale
ModuleT = TypeVar("ModuleT", bound=nn.Module)


def copied(network: ModuleT, *, buffers: bool = False) -> ModuleT:
    """A copy with weights of its own that prepares vectors with the same tensors, as a target network needs. With
    ``buffers``, it shares all buffers, such as noise, so that it has no state but its weights."""
    owners = (module for module in network.modules() if buffers or isinstance(module, Preparation))
    shared = {id(buffer): buffer for owner in owners for buffer in owner.buffers()}
    return copy.deepcopy(network, shared)
