"""Builds the encoder for an observation spec. No other part of the networks depends on the kind of an observation."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rl_training.errors import SpaceError
from rl_training.models.cnn.impala import ImpalaCNN
from rl_training.models.cnn.nature import MINATAR_LAYERS, NATURE_LAYERS, PAPER_LAYERS, ImageEncoder, Layer, NatureCNN
from rl_training.models.custom import CustomNetwork
from rl_training.models.encoder import Encoder, through_torch
from rl_training.models.mlp import MLP, PLAIN, Style, make_mlp
from rl_training.models.normalization import ObservationNormalizer
from rl_training.types import Array, ObservationLeaf, ObservationSpec

CNN = Literal["nature", "impala", "drq", "minatar"]
HIDDEN_GAIN = math.sqrt(2.0)  # of orthogonal layers before an activation


@dataclass(frozen=True)
class EncoderConfig:
    """How observations are encoded."""

    hidden: Sequence[int] = ()  # widths of dense layers on the features of all leaves, each with an activation
    style: Style = PLAIN  # of these layers
    cnn: CNN = "nature"
    cnn_layers: Sequence[Layer] = NATURE_LAYERS  # of the CNN "nature"
    cnn_features: int | None = None  # width of a dense layer after the convolutions of each image; None: no such layer
    centre: bool = False  # scale images to -0.5..0.5 instead of 0..1
    standardise: bool = False  # standardise vectors with a running mean and standard deviation
    orthogonal: bool = False  # orthogonal convolutions
    custom: CustomNetwork | None = None  # the user's network in place of all this, except for standardising


def make_encoder(spec: ObservationSpec, config: EncoderConfig, generator: torch.Generator) -> Encoder:
    """The encoder for a spec: an MLP for vectors, a CNN for an image, both in parallel for a mixture."""
    if config.standardise and spec.images:
        raise SpaceError("images are always scaled to 0..1 and cannot be standardised; set normalize_observations: false")
    if config.custom is not None:
        trunk = config.custom.make_one(spec, generator, partial(unpack, spec))
        return StandardisedEncoder(spec.shape[0], trunk) if config.standardise else trunk
    if spec.kind == "vector":
        mlp = make_mlp([spec.shape[0], *config.hidden], generator, config.style, activate_last=True, output_gain=HIDDEN_GAIN)
        return StandardisedEncoder(spec.shape[0], mlp) if config.standardise else mlp
    cnns = [_make_cnn(leaf, config, generator) for leaf in spec.images]
    if spec.kind == "image" and not config.hidden:
        return cnns[0]
    vectors = sum(leaf.shape[0] for leaf in spec.leaves if leaf.kind != "image")
    width = sum(cnn.out_features for cnn in cnns) + vectors
    mlp = make_mlp([width, *config.hidden], generator, config.style, activate_last=True, output_gain=HIDDEN_GAIN)
    return MixedEncoder(spec, cnns, mlp)


def make_encoders(spec: ObservationSpec, config: EncoderConfig, generator: torch.Generator) -> tuple[Encoder, Encoder | None]:
    """The encoder of an actor and a critic, or one for each if the user's function returns a pair."""
    if config.custom is None:
        return make_encoder(spec, config, generator), None
    trunks: list[Encoder] = [*config.custom.make(spec, generator, partial(unpack, spec))]
    if config.standardise:
        trunks[0] = StandardisedEncoder(spec.shape[0], trunks[0])  # what it prepares is for both
    return trunks[0], trunks[1] if len(trunks) == 2 else None


def _make_cnn(leaf: ObservationLeaf, config: EncoderConfig, generator: torch.Generator) -> ImageEncoder:
    cnn: ImageEncoder
    if config.cnn == "impala":
        cnn = ImpalaCNN(leaf.shape, generator, config.cnn_features, centre=config.centre)
    else:
        layers = {"nature": config.cnn_layers, "drq": PAPER_LAYERS, "minatar": MINATAR_LAYERS}[config.cnn]
        cnn = NatureCNN(leaf.shape, generator, config.cnn_features, layers, centre=config.centre)
    if config.orthogonal:
        for parameter in cnn.parameters():
            if parameter.dim() > 1:
                nn.init.orthogonal_(parameter, math.sqrt(2.0), generator=generator)
            else:
                nn.init.zeros_(parameter)
    return cnn


class StandardisedEncoder(Encoder):
    """Standardises vectors, then encodes them; the statistics change only in ``observe``."""

    def __init__(self, size: int, mlp: Encoder) -> None:
        super().__init__()
        self.normalizer = ObservationNormalizer(size)
        self.mlp = mlp
        self.out_features = mlp.out_features

    def prepare(self, obs: Tensor) -> Tensor:
        standardised: Tensor = self.normalizer(obs)
        return standardised

    def forward(self, prepared: Tensor) -> Tensor:
        features: Tensor = self.mlp(prepared)
        return features

    def observe(self, obs: Array) -> None:
        self.normalizer.update(obs)

    def has_numpy(self) -> bool:
        return self.mlp.has_numpy()

    def numpy_forward(self) -> Callable[[Array], Array]:
        normalize, mlp = self.normalizer.numpy_forward(), self.mlp.numpy_forward()
        return lambda obs: mlp(normalize(obs))


class MixedEncoder(Encoder):
    """A CNN for each image, and an MLP on their features together with the unchanged vectors."""

    def __init__(self, spec: ObservationSpec, cnns: Sequence[ImageEncoder], mlp: MLP) -> None:
        super().__init__()
        self.spec = spec
        self.cnns = nn.ModuleList(cnns)
        self.mlp = mlp
        self.out_features = mlp.out_features

    def forward(self, prepared: Tensor) -> Tensor:
        features: Tensor = self.mlp(self._features(prepared))
        return features

    def numpy_forward(self) -> Callable[[Array], Array]:
        features, mlp = through_torch(self._features, self), self.mlp.numpy_forward()
        return lambda obs: mlp(features(obs))

    def _features(self, prepared: Tensor) -> Tensor:
        if self.spec.kind == "image":
            features: Tensor = self.cnns[0](prepared)
            return features
        cnns = iter(self.cnns)
        entries = zip(self.spec.leaves, unpack(self.spec, prepared), strict=True)
        return torch.cat([next(cnns)(entry) if leaf.kind == "image" else entry for leaf, entry in entries], dim=1)


def unpack(spec: ObservationSpec, packed: Tensor) -> list[Tensor]:
    """The leaves of packed observations, (batch, *shape) each."""
    if spec.kind == "image":
        return [packed]
    if spec.kind == "vector":
        return list(torch.split(packed, [leaf.shape[0] for leaf in spec.leaves], dim=1))
    parts = torch.split(packed, [leaf.nbytes for leaf in spec.leaves], dim=1)
    return [_from_bytes(leaf, part) for leaf, part in zip(spec.leaves, parts, strict=True)]


def _from_bytes(leaf: ObservationLeaf, part: Tensor) -> Tensor:
    if leaf.kind == "image":
        return part.reshape(-1, *leaf.shape)
    return part.clone(memory_format=torch.contiguous_format).view(torch.float32)  # a copy is aligned, a slice need not be


def encode_observation(obs: Tensor, spec: ObservationSpec) -> Tensor:
    """``ObservationSpec.encode`` of a plain observation as torch operations, so that an exported policy includes it."""
    leaf = spec.only
    if leaf.kind != "one_hot":
        return obs.reshape(-1, *leaf.shape)
    indices = obs.reshape(-1, len(leaf.sizes)).long() - torch.tensor(leaf.starts)
    blocks = [F.one_hot(indices[:, i], size) for i, size in enumerate(leaf.sizes)]
    return torch.cat(blocks, dim=1).float()
