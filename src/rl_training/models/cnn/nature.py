"""The convolutional encoder of DQN (Mnih et al. 2015): channel-first uint8 images to a feature vector."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rl_training.errors import SpaceError
from rl_training.models.encoder import Encoder
from rl_training.models.mlp import make_linear
from rl_training.models.uninitialised import require_room, uninitialised

#: filters, kernel, stride
Layer = tuple[int, int, int]
NATURE_LAYERS: tuple[Layer, ...] = ((32, 8, 4), (64, 4, 2), (64, 3, 1))
#: the convolutions of DrQ's and DrQ-v2's papers
PAPER_LAYERS: tuple[Layer, ...] = ((32, 3, 2), (32, 3, 1), (32, 3, 1), (32, 3, 1))
#: the convolution of MinAtar's paper (Young & Tian 2019, arXiv:1903.03176), for images of 10x10
MINATAR_LAYERS: tuple[Layer, ...] = ((16, 3, 1),)


def make_conv(inputs: int, outputs: int, kernel: int, stride: int, generator: torch.Generator) -> nn.Conv2d:
    """A convolution with PyTorch's default initialisation, drawn from ``generator``."""
    require_room(outputs, inputs, kernel, kernel)
    layer = uninitialised(nn.Conv2d(inputs, outputs, kernel, stride, device="meta"))
    bound = 1.0 / math.sqrt(inputs * kernel * kernel)
    for parameter in (layer.weight, layer.bias):
        assert parameter is not None
        nn.init.uniform_(parameter, -bound, bound, generator=generator)
    return layer


def scale_images(images: Tensor) -> Tensor:
    """Scales bytes to 0..1, as floating-point images are, in channels-last memory, which is faster for CPU kernels."""
    images = images.contiguous(memory_format=torch.channels_last)
    return images if images.is_floating_point() else images.to(torch.float32).div_(255.0)


class ImageEncoder(Encoder):
    """An encoder of images. They are scaled to 0..1, or with ``centre`` to -0.5..0.5."""

    layout: str | None = None  # whose convolutions it has, if they are not those of its own paper

    def __init__(self, *, centre: bool) -> None:
        super().__init__()
        self._centre = centre

    def scale(self, images: Tensor) -> Tensor:
        """Converts images to the floating-point numbers that the convolutions take."""
        scaled = scale_images(images)
        if not self._centre:
            return scaled
        return scaled - 0.5 if images.is_floating_point() else scaled.sub_(0.5)


class NatureCNN(ImageEncoder):
    """(batch, channel, height, width) uint8 in 0..255, or floats in 0..1 -> (batch, features), with ReLU after each layer.
    Without ``features`` there is no linear layer.

    Call ``scale`` once to use the result in several passes.
    """

    def __init__(
        self,
        shape: Sequence[int],
        generator: torch.Generator,
        features: int | None = 512,
        layers: Sequence[Layer] = NATURE_LAYERS,
        *,
        centre: bool = False,
    ) -> None:
        super().__init__(centre=centre)
        channels, height, width = shape
        convs = []
        for filters, kernel, stride in layers:
            convs.append(make_conv(channels, filters, kernel, stride, generator))
            channels, height, width = filters, (height - kernel) // stride + 1, (width - kernel) // stride + 1
            if min(height, width) < 1:
                raise SpaceError(
                    f"images of {shape[1]}x{shape[2]} are too small for convolutions of (filters, kernel, stride) "
                    f"{[tuple(layer) for layer in layers]}; use larger images, smaller cnn_layers "
                    "or cnn: minatar, or the wrapper flatten_observation to take them as vectors (the last two not with DrQ)"
                )
        self.convs = convs
        self.layers = nn.ModuleList(convs)
        flat = channels * height * width
        self.head = None if features is None else make_linear(flat, features, generator)
        self.out_features = flat if features is None else features

    def forward(self, images: Tensor) -> Tensor:
        """Bytes, or what ``scale`` has returned."""
        x = self.scale(images) if images.dtype == torch.uint8 else images
        for conv in self.convs:
            x = torch.relu_(F.conv2d(x, conv.weight, conv.bias, conv.stride))
        x = x.flatten(1)
        return x if self.head is None else torch.relu_(F.linear(x, self.head.weight, self.head.bias))
