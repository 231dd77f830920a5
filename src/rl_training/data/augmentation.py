"""Random shifts of images (Kostrikov et al., arXiv:2004.13649): pad by repeating the edge, then crop at a random position."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from rl_training.types import Array, ObservationSpec


def random_shift(images: Tensor, pad: int, rng: np.random.Generator, copies: int = 1) -> Tensor:
    """Shifts images (batch, channel, height, width), ``copies`` times each: copy c of image i is row c * batch + i.

    Each row is one of the (2 * pad + 1)^2 whole-pixel crops, drawn independently; all channels of an image shift together.
    """
    assert images.dim() == 4
    shifts = rng.integers(-pad, pad + 1, (copies * len(images), 2))  # down, right
    if images.device.type != "cpu":
        return shift_by_gather(images, torch.from_numpy(shifts).to(images.device))
    shifted = torch.empty((len(shifts), *images.shape[1:]), dtype=images.dtype)
    _shift_rows(images.numpy(), shifts, shifted.numpy())
    return shifted


def shift_images(obs: Tensor, spec: ObservationSpec, pad: int, rng: np.random.Generator, copies: int = 1) -> Tensor:
    """``random_shift`` of every image in packed observations, each by itself; other entries stay as they are."""
    if spec.kind == "image":
        return random_shift(obs, pad, rng, copies)
    shifted = obs.repeat(copies, 1)
    for leaf, place in zip(spec.leaves, spec.places, strict=True):
        if leaf.kind == "image":
            images = obs[:, place].contiguous().view(torch.uint8 if leaf.dtype is np.uint8 else torch.float32)
            moved = random_shift(images.view(-1, *leaf.shape), pad, rng, copies)
            shifted[:, place] = moved.view(len(moved), -1).view(torch.uint8)
    return shifted


def _shift_rows(images: Array, shifts: Array, out: Array) -> None:
    """Copies the part that stays visible and repeats its edges. On a CPU this is three times as fast as a gather."""
    height, width = images.shape[2:]
    for row, (down, right) in enumerate(shifts.tolist()):
        source, target = images[row % len(images)], out[row]
        top, bottom = max(0, -down), min(height, height - down)
        left, end = max(0, -right), min(width, width - right)
        seen = target[:, top:bottom]
        seen[:, :, left:end] = source[:, top + down : bottom + down, left + right : end + right]
        if left:
            seen[:, :, :left] = seen[:, :, left : left + 1]
        if end < width:
            seen[:, :, end:] = seen[:, :, end - 1 : end]
        if top:
            target[:, :top] = target[:, top : top + 1]
        if bottom < height:
            target[:, bottom:] = target[:, bottom - 1 : bottom]


def shift_by_gather(images: Tensor, shifts: Tensor) -> Tensor:
    """The same with a single gather, for devices where that is fast: pixel (y, x) is the one nearest to (y, x) + shift."""
    batch, channels, height, width = images.shape
    rows = (torch.arange(height, device=images.device) + shifts[:, :1]).clamp_(0, height - 1)
    columns = (torch.arange(width, device=images.device) + shifts[:, 1:]).clamp_(0, width - 1)
    index = (rows.unsqueeze(2) * width + columns.unsqueeze(1)).view(len(shifts), 1, -1).expand(-1, channels, -1)
    flat = images.view(batch, channels, -1).repeat(len(shifts) // batch, 1, 1)
    return flat.gather(2, index).view(len(shifts), channels, height, width)
