"""Observations as trees of leaves: packed into one array, taken apart again, and encoded by one maker of encoders."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from rollouts import IMAGE

from rl_training.algorithms.base import init_generator
from rl_training.errors import SpaceError
from rl_training.models import NatureCNN, make_encoder
from rl_training.models.mlp import MLP
from rl_training.models.observation import EncoderConfig, MixedEncoder, PreparedEncoder, unpack
from rl_training.types import ObservationLeaf, ObservationSpec

VECTOR = ObservationLeaf("vector", (6,), (2, 3), path=("pose",))
ONE_HOT = ObservationLeaf("one_hot", (5,), (2,), sizes=(2, 3), starts=(0, 7), path=("inner", 1))
CAMERA = ObservationLeaf("image", (3, 13, 11), (3, 13, 11), path=("inner", 0))  # 429 bytes: no multiple of 4
SMALL_CNN = ((4, 3, 2),)


def raw_batch(rng: np.random.Generator, batch: int) -> dict[str, Any]:
    return {
        "pose": rng.standard_normal((batch, 2, 3)),
        "inner": (
            rng.integers(0, 256, (batch, 3, 13, 11)).astype(np.uint8),
            np.stack([rng.integers(0, 2, batch), rng.integers(7, 10, batch)], axis=1),
        ),
    }


@settings(max_examples=30, deadline=None)
@given(st.permutations([VECTOR, ONE_HOT, CAMERA]), st.integers(1, 3), st.integers(1, 4), st.integers(0, 2**32 - 1))
def test_unpacking_undoes_packing(leaves: list[ObservationLeaf], count: int, batch: int, seed: int) -> None:
    spec = ObservationSpec(tuple(leaves[:count]))
    raw = raw_batch(np.random.default_rng(seed), batch)
    packed = spec.encode(raw)
    assert packed.shape == (batch, *spec.shape)
    assert packed.dtype == spec.dtype
    for leaf, found in zip(spec.leaves, unpack(spec, torch.from_numpy(packed)), strict=True):
        entry = raw["pose"] if leaf is VECTOR else raw["inner"][1 if leaf is ONE_HOT else 0]
        np.testing.assert_array_equal(found.numpy(), leaf.encode(entry))


def test_the_kind_follows_from_the_leaves() -> None:
    assert ObservationSpec((VECTOR, ONE_HOT)).kind == "vector"
    assert ObservationSpec((VECTOR, ONE_HOT)).shape == (11,)
    assert ObservationSpec((CAMERA,)).kind == "image"
    assert ObservationSpec((CAMERA,)).shape == (3, 13, 11)
    mixed = ObservationSpec((VECTOR, CAMERA))
    assert (mixed.kind, mixed.shape, mixed.dtype) == ("mixed", (6 * 4 + 429,), np.uint8)


def test_the_maker_takes_the_simplest_encoder_that_fits() -> None:
    generator = init_generator(0)
    assert type(make_encoder(ObservationSpec((VECTOR, ONE_HOT)), EncoderConfig(hidden=(8,)), generator)) is MLP
    assert type(make_encoder(IMAGE.observation, EncoderConfig(), generator)) is NatureCNN
    assert type(make_encoder(ObservationSpec((VECTOR,)), EncoderConfig(standardise=True), generator)) is PreparedEncoder
    with pytest.raises(SpaceError, match="normalize_observations: false"):
        make_encoder(IMAGE.observation, EncoderConfig(standardise=True), generator)


def test_a_mixture_is_encoded_side_by_side() -> None:
    spec = ObservationSpec((VECTOR, CAMERA, ONE_HOT))
    config = EncoderConfig(hidden=(7,), cnn_layers=SMALL_CNN, cnn_features=9)
    encoder = make_encoder(spec, config, init_generator(0))
    assert isinstance(encoder, MixedEncoder)
    assert encoder.out_features == 7
    packed = spec.encode(raw_batch(np.random.default_rng(0), 4))
    pose, camera, one_hot = unpack(spec, torch.from_numpy(packed))
    with torch.no_grad():
        features = torch.cat([encoder.cnns[0](camera), pose, one_hot], dim=1)  # images first
        expected = torch.relu(features @ encoder.mlp.linears[0].weight.T + encoder.mlp.linears[0].bias)
        found = encoder(torch.from_numpy(packed))
    torch.testing.assert_close(found, expected)
    np.testing.assert_allclose(encoder.numpy_forward()(packed), expected.numpy(), rtol=1e-4, atol=1e-5)
    loss = encoder(torch.from_numpy(packed)).sum()
    torch.autograd.backward(loss)
    assert all(parameter.grad is not None and parameter.grad.abs().sum() > 0 for parameter in encoder.parameters())


def test_images_can_be_centred() -> None:
    plain, centred = (NatureCNN((3, 12, 10), init_generator(0), 4, SMALL_CNN, centre=centre) for centre in (False, True))
    images = torch.full((1, 3, 12, 10), 255, dtype=torch.uint8)
    assert [float(cnn.scale(images).max()) for cnn in (plain, centred)] == [1.0, 0.5]
    assert not torch.equal(plain(images), centred(images))
