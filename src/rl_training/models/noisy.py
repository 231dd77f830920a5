"""Noisy linear layers with factorised Gaussian noise (Fortunato et al., arXiv:1706.10295)."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from rl_training.models.uninitialised import require_room

INITIAL_SIGMA = 0.5


class NoisyLinear(nn.Module):
    """w = mu + sigma * f(e_out) f(e_in)^T, b = mu_b + sigma_b * f(e_out), with f(x) = sgn(x) sqrt|x|.

    ``weight`` and ``bias`` are noisy in training mode and the means in evaluation mode. The noise stays the same until
    ``resample``; it is a buffer, so checkpoints include it.
    """

    noise_in: Tensor
    noise_out: Tensor

    def __init__(self, inputs: int, outputs: int, generator: torch.Generator) -> None:
        super().__init__()
        require_room(outputs, inputs)
        bound = 1.0 / math.sqrt(inputs)
        self.weight_mean = nn.Parameter(torch.empty(outputs, inputs).uniform_(-bound, bound, generator=generator))
        self.bias_mean = nn.Parameter(torch.empty(outputs).uniform_(-bound, bound, generator=generator))
        self.weight_sigma = nn.Parameter(torch.full((outputs, inputs), INITIAL_SIGMA * bound))
        self.bias_sigma = nn.Parameter(torch.full((outputs,), INITIAL_SIGMA * bound))
        self.register_buffer("noise_in", torch.zeros(inputs))
        self.register_buffer("noise_out", torch.zeros(outputs))

    @property
    def weight(self) -> Tensor:
        if not self.training:
            return self.weight_mean
        return self.weight_mean + self.weight_sigma * torch.outer(self.noise_out, self.noise_in)

    @property
    def bias(self) -> Tensor:
        if not self.training:
            return self.bias_mean
        return self.bias_mean + self.bias_sigma * self.noise_out

    def resample(self, rng: np.random.Generator) -> None:
        """Draws new noise."""
        for noise in (self.noise_in, self.noise_out):
            drawn = rng.standard_normal(len(noise), np.float32)
            noise.copy_(torch.from_numpy(np.sign(drawn) * np.sqrt(np.abs(drawn))))


class NoisyArrays:
    """The parameters of a noisy layer as numpy views."""

    def __init__(self, layer: NoisyLinear, noisy: bool) -> None:
        self._noisy = noisy
        tensors = (layer.weight_mean, layer.bias_mean, layer.weight_sigma, layer.bias_sigma, layer.noise_in, layer.noise_out)
        views: list[NDArray[np.float32]] = [tensor.detach().numpy() for tensor in tensors]
        self._weight, self._bias, self._weight_sigma, self._bias_sigma, self._noise_in, self._noise_out = views

    def current(self) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """The current weight, (inputs, outputs), and bias."""
        if not self._noisy:
            return self._weight.T, self._bias
        weight = self._weight + self._weight_sigma * np.outer(self._noise_out, self._noise_in)
        return weight.T, self._bias + self._bias_sigma * self._noise_out


def noisy_layers(module: nn.Module) -> Iterator[NoisyLinear]:
    """All noisy layers of a network."""
    return (layer for layer in module.modules() if isinstance(layer, NoisyLinear))
