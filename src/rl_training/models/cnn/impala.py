"""The residual encoder of IMPALA (Espeholt et al. 2018, arXiv:1802.01561, figure 3, right)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rl_training.models.cnn.nature import ImageEncoder, make_conv
from rl_training.models.mlp import make_linear

CHANNELS = (16, 32, 32)


class ImpalaCNN(ImageEncoder):
    """Three sections, each a convolution, a maximum over 3x3 with stride 2, and two residual blocks of two convolutions; then
    a linear layer of ``features`` with a ReLU, if given."""

    def __init__(
        self, shape: Sequence[int], generator: torch.Generator, features: int | None = None, *, centre: bool = False
    ) -> None:
        super().__init__(centre=centre)
        channels, height, width = shape
        self.sections: list[list[nn.Conv2d]] = []
        for filters in CHANNELS:
            inputs = (channels, filters, filters, filters, filters)
            self.sections.append([make_conv(count, filters, 3, 1, generator) for count in inputs])
            channels, height, width = filters, (height + 1) // 2, (width + 1) // 2
        self.layers = nn.ModuleList(conv for section in self.sections for conv in section)
        flat = channels * height * width
        self.head = None if features is None else make_linear(flat, features, generator)
        self.out_features = flat if features is None else features

    def forward(self, images: Tensor) -> Tensor:
        x = self.scale(images) if images.dtype == torch.uint8 else images
        for first, *blocks in self.sections:
            x = F.max_pool2d(_same(x, first), 3, stride=2, padding=1)
            for one, other in zip(blocks[::2], blocks[1::2], strict=True):
                x = x + _same(torch.relu_(_same(torch.relu(x), one)), other)
        x = torch.relu(x).flatten(1)
        return x if self.head is None else torch.relu_(F.linear(x, self.head.weight, self.head.bias))


def _same(x: Tensor, conv: nn.Conv2d) -> Tensor:
    """A convolution that keeps the size of the image."""
    return F.conv2d(x, conv.weight, conv.bias, padding=1)
