"""The interface of encoders, which map each packed observation to a feature vector."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from rl_training.types import Array


class Encoder(nn.Module):
    """``forward``: prepared observations -> features (batch, out_features).

    ``prepare`` has no parameters, so that an update can apply it once for all its passes over a batch.
    """

    out_features: int
    beside: int = 0  # how many of the last features are vectors that were passed on unchanged, beside those of images

    def prepare(self, obs: Tensor) -> Tensor:
        return obs

    def scale(self, obs: Tensor) -> Tensor:
        """Packed observations with their images as the floating-point numbers that convolutions take. ``forward`` takes
        these too; an update that makes several passes over a batch scales it once."""
        return obs

    def has_numpy(self) -> bool:
        """Whether ``numpy_forward`` avoids torch."""
        return False

    def observe(self, obs: Array) -> None:
        """Updates the running statistics, if any, with packed observations (sample, ...)."""
        return

    def numpy_forward(self) -> Callable[[Array], Array]:
        """Packed observations to features on numpy arrays, for acting. Uses torch unless a subclass has a faster way."""
        return through_torch(lambda obs: self(self.prepare(obs)), self)


def unchanged(x: Array) -> Array:
    """The identity: the features of an encoder without layers."""
    return x


def in_turn(first: Callable[[Array], Array], second: Callable[[Array], Array]) -> Callable[[Array], Array]:
    """Composes two functions. The identity is left out: acting on small networks is so fast that a call would show."""
    return second if first is unchanged else lambda x: second(first(x))


def through_torch(function: Callable[[Tensor], Tensor], module: nn.Module) -> Callable[[Array], Array]:
    """Wraps a function of tensors as a function of numpy arrays, computed on the device of ``module``."""
    device = next((parameter.device for parameter in module.parameters()), torch.device("cpu"))

    @torch.no_grad()
    def call(x: Array) -> Array:
        result: Array = function(torch.as_tensor(x, device=device)).cpu().numpy()
        return result

    return call


#: Devices that have no numbers in double precision.
SINGLE_PRECISION = ("mps",)


def widest_float(device: torch.device) -> torch.dtype:
    """The most precise type of numbers that a device has."""
    return torch.float32 if device.type in SINGLE_PRECISION else torch.float64


def on_cpu(module: nn.Module) -> bool:
    """Whether a module's weights are in memory that numpy can read."""
    return all(parameter.device.type == "cpu" for parameter in module.parameters())
