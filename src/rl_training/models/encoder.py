"""What every encoder is: packed observations in, one feature vector per observation out."""

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

    def prepare(self, obs: Tensor) -> Tensor:
        return obs

    def observe(self, obs: Array) -> None:
        """Takes packed observations (sample, ...) into running statistics, if there are any."""
        return

    def numpy_forward(self) -> Callable[[Array], Array]:
        """Packed observations to features on numpy arrays, for acting. Through torch, unless a subclass is faster."""
        return through_torch(lambda obs: self(self.prepare(obs)), self)


def through_torch(function: Callable[[Tensor], Tensor], module: nn.Module) -> Callable[[Array], Array]:
    """A function of tensors as a function of numpy arrays, computed on the device where ``module`` lives."""
    device = next((parameter.device for parameter in module.parameters()), torch.device("cpu"))

    @torch.no_grad()
    def call(x: Array) -> Array:
        result: Array = function(torch.as_tensor(x, device=device)).cpu().numpy()
        return result

    return call


def on_cpu(module: nn.Module) -> bool:
    """Whether a module's weights are in the memory that numpy can see."""
    return all(parameter.device.type == "cpu" for parameter in module.parameters())
