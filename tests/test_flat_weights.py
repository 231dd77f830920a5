"""Weights as one string of bytes: packing and unpacking is the identity."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from rl_training.errors import CheckpointError
from rl_training.runtime.flat_weights import FlatWeights


def network(seed: int) -> nn.Module:
    """With a buffer of whole numbers that is no array, and a parameter whose memory is not in order."""
    torch.manual_seed(seed)
    first, norm = nn.Linear(3, 5), nn.BatchNorm1d(5)
    first.weight.data = torch.rand(3, 5).T
    norm.num_batches_tracked = torch.tensor(seed)
    return nn.Sequential(first, norm, nn.Linear(5, 2, dtype=torch.float64))


def test_they_arrive_as_they_were_sent() -> None:
    sender, receiver = network(1), network(2)
    FlatWeights(receiver).load(FlatWeights(sender).to_bytes())
    for (name, sent), arrived in zip(sender.state_dict().items(), receiver.state_dict().values(), strict=True):
        assert torch.equal(sent, arrived), name


def test_the_current_weights_are_sent() -> None:
    sender, receiver = network(1), network(2)
    weights = FlatWeights(sender)
    sender.load_state_dict(network(3).state_dict())
    FlatWeights(receiver).load(weights.to_bytes())
    assert torch.equal(receiver.state_dict()["0.weight"], network(3).state_dict()["0.weight"])


def test_a_checkpoint_has_them_by_name() -> None:
    weights = FlatWeights(network(1))
    arrays = weights.arrays(weights.to_bytes())
    assert {name: value.shape for name, value in arrays.items()} == {
        name: tuple(value.shape) for name, value in network(1).state_dict().items()
    }
    assert weights.from_arrays(arrays) == weights.to_bytes()
    with pytest.raises(CheckpointError, match=r"the weight 0\.bias should be float32 of shape \(5,\)"):
        weights.from_arrays({**arrays, "0.bias": np.zeros(4, np.float32)})
