"""Builds the encoder for an observation spec. No other part of the networks depends on the kind of an observation."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rl_training.errors import SpaceError, counted
from rl_training.models.cnn.impala import ImpalaCNN
from rl_training.models.cnn.nature import (
    MINATAR_LAYERS,
    NATURE_LAYERS,
    PAPER_LAYERS,
    ImageEncoder,
    Layer,
    NatureCNN,
    scale_images,
)
from rl_training.models.custom import CustomNetwork, CustomTrunk
from rl_training.models.encoder import Encoder, in_turn, through_torch
from rl_training.models.mlp import MLP, PLAIN, Style, make_mlp
from rl_training.models.normalization import ObservationNormalizer, ObservationScale, Preparation
from rl_training.types import ActionSpec, Array, ObservationLeaf, ObservationSpec, path_name

CNN = Literal["nature", "impala", "drq", "minatar"]
HIDDEN_GAIN = math.sqrt(2.0)  # gain of orthogonal layers before an activation


@dataclass(frozen=True)
class EncoderConfig:
    """How observations are encoded."""

    hidden: Sequence[int] = ()  # widths of dense layers on the features of all leaves, each with an activation
    style: Style = PLAIN  # how these layers are made
    cnn: CNN = "nature"
    cnn_layers: Sequence[Layer] = NATURE_LAYERS  # only for the CNN "nature"
    cnn_features: int | None = None  # width of a dense layer after the convolutions of each image; None: no such layer
    centre: bool = False  # scale images to -0.5..0.5 instead of 0..1
    standardise: bool = False  # standardise vectors with a running mean and standard deviation
    factors: Sequence[float] | None = None  # multiply vectors by these instead
    orthogonal: bool = False  # orthogonal convolutions
    custom: CustomNetwork | None = None  # the user's network in place of all this, except for standardising and factors


def make_encoder(spec: ObservationSpec, config: EncoderConfig, generator: torch.Generator) -> Encoder:
    """The encoder for a spec: an MLP for vectors, a CNN for an image, both in parallel for a mixture."""
    preparation = make_preparation(spec, config.standardise, config.factors)
    if config.custom is not None:
        return _prepared(preparation, config.custom.make_one(spec, generator, partial(unpack, spec)))
    if spec.kind == "vector":
        mlp = make_mlp([spec.shape[0], *config.hidden], generator, config.style, activate_last=True, output_gain=HIDDEN_GAIN)
        return _prepared(preparation, mlp)
    cnns = [_make_cnn(leaf, config, generator) for leaf in spec.images]
    if spec.kind == "image" and not config.hidden:
        return cnns[0]
    width = sum(cnn.out_features for cnn in cnns) + spec.vector_size
    mlp = make_mlp([width, *config.hidden], generator, config.style, activate_last=True, output_gain=HIDDEN_GAIN)
    return MixedEncoder(spec, cnns, mlp)


def make_encoders(spec: ObservationSpec, config: EncoderConfig, generator: torch.Generator) -> tuple[Encoder, Encoder | None]:
    """The encoder of an actor and a critic, or one for each if the user's function returns a pair."""
    if config.custom is None:
        return make_encoder(spec, config, generator), None
    preparation = make_preparation(spec, config.standardise, config.factors)
    trunks: list[Encoder] = [*config.custom.make(spec, generator, partial(unpack, spec))]
    trunks[0] = _prepared(preparation, trunks[0])  # what it prepares is for both
    return trunks[0], trunks[1] if len(trunks) == 2 else None


def make_preparation(spec: ObservationSpec, standardise: bool, factors: Sequence[float] | None) -> Preparation | None:
    """What prepares vectors for the network, if anything does."""
    if spec.images and standardise:
        raise SpaceError("images are always scaled to 0..1 and cannot be standardised; set normalize_observations: false")
    if spec.images and factors is not None:
        raise SpaceError("observation_scale is for observations without images; set observation_scale: null")
    if factors is not None:
        _require_usable(factors, spec)
        return ObservationScale(factors)
    return ObservationNormalizer(spec.shape[0]) if standardise else None


def _require_usable(factors: Sequence[float], spec: ObservationSpec) -> None:
    if len(factors) != spec.shape[0]:
        given, leaves = counted(len(factors), "number"), [f"{path_name(leaf.path)} {leaf.shape[0]}" for leaf in spec.leaves]
        entries = f" ({', '.join(leaves)})" if len(leaves) > 1 else ""
        raise SpaceError(f"observation_scale has {given}, but an observation has {spec.shape[0]}{entries}; give one for each")
    rounded = torch.tensor(factors, dtype=torch.float32)
    if not (torch.isfinite(rounded) & (rounded > 0)).all():
        raise SpaceError(f"observation_scale {[*factors]} is beyond what single precision can represent")


def _prepared(preparation: Preparation | None, trunk: Encoder) -> Encoder:
    return trunk if preparation is None else PreparedEncoder(preparation, trunk)


def _make_cnn(leaf: ObservationLeaf, config: EncoderConfig, generator: torch.Generator) -> ImageEncoder:
    cnn: ImageEncoder
    if config.cnn == "impala":
        cnn = ImpalaCNN(leaf.shape, generator, config.cnn_features, centre=config.centre)
    else:
        layers = {"nature": config.cnn_layers, "drq": PAPER_LAYERS, "minatar": MINATAR_LAYERS}[config.cnn]
        cnn = NatureCNN(leaf.shape, generator, config.cnn_features, layers, centre=config.centre)
        cnn.layout = None if config.cnn == "nature" else config.cnn
    if config.orthogonal:
        for parameter in cnn.parameters():
            if parameter.dim() > 1:
                nn.init.orthogonal_(parameter, math.sqrt(2.0), generator=generator)
            else:
                nn.init.zeros_(parameter)
    return cnn


class PreparedEncoder(Encoder):
    """Standardises or scales vectors, then encodes them; running statistics change only in ``observe``."""

    def __init__(self, normalizer: Preparation, mlp: Encoder) -> None:
        super().__init__()
        self.normalizer = normalizer  # both names are in the keys of checkpoints
        self.mlp = mlp
        self.out_features = mlp.out_features

    def prepare(self, obs: Tensor) -> Tensor:
        prepared: Tensor = self.normalizer(obs)
        return prepared

    def forward(self, prepared: Tensor) -> Tensor:
        features: Tensor = self.mlp(prepared)
        return features

    def observe(self, obs: Array) -> None:
        self.normalizer.update(obs)

    def has_numpy(self) -> bool:
        return self.mlp.has_numpy()

    def numpy_forward(self) -> Callable[[Array], Array]:
        return in_turn(self.normalizer.numpy_forward(), self.mlp.numpy_forward())


class MixedEncoder(Encoder):
    """A CNN for each image, and an MLP on their features followed by the unchanged vectors.

    Observations are rows of bytes, or rows of floats as ``scale`` returns them.
    """

    def __init__(self, spec: ObservationSpec, cnns: Sequence[ImageEncoder], mlp: MLP) -> None:
        super().__init__()
        self.spec = spec
        self.cnns = nn.ModuleList(cnns)
        self.mlp = mlp
        self.beside = 0 if mlp.linears else spec.vector_size
        self.out_features = mlp.out_features

    def scale(self, obs: Tensor) -> Tensor:
        if self.spec.kind == "image":
            return self._cnn(0).scale(obs)
        images, entries = 0, []
        for leaf, entry in zip(self.spec.leaves, unpack(self.spec, obs), strict=True):
            entries.append(self._cnn(images).scale(entry) if leaf.kind == "image" else entry)
            images += leaf.kind == "image"
        return torch.cat([entry.flatten(1) for entry in entries], dim=1)

    def forward(self, prepared: Tensor) -> Tensor:
        features: Tensor = self.mlp(self._features(prepared))
        return features

    def numpy_forward(self) -> Callable[[Array], Array]:
        return in_turn(through_torch(self._features, self), self.mlp.numpy_forward())

    def _cnn(self, index: int) -> ImageEncoder:
        cnn = self.cnns[index]
        assert isinstance(cnn, ImageEncoder)
        return cnn

    def _features(self, prepared: Tensor) -> Tensor:
        if self.spec.kind == "image":
            features: Tensor = self._cnn(0)(prepared)
            return features
        entries = list(zip(self.spec.leaves, unpack(self.spec, prepared), strict=True))
        images = [entry for leaf, entry in entries if leaf.kind == "image"]
        vectors = [entry for leaf, entry in entries if leaf.kind != "image"]
        return torch.cat([*(cnn(image) for cnn, image in zip(self.cnns, images, strict=True)), *vectors], dim=1)


def unpack(spec: ObservationSpec, packed: Tensor) -> list[Tensor]:
    """The leaves of packed observations, (batch, *shape) each. A mixture is packed as bytes, or as floats for export."""
    if spec.kind == "image":
        return [packed]
    if spec.kind == "mixed" and packed.dtype == torch.uint8:
        parts = torch.split(packed, [leaf.nbytes for leaf in spec.leaves], dim=1)
        return [_from_bytes(leaf, part) for leaf, part in zip(spec.leaves, parts, strict=True)]
    parts = torch.split(packed, [math.prod(leaf.shape) for leaf in spec.leaves], dim=1)
    return [part.reshape(-1, *leaf.shape) for leaf, part in zip(spec.leaves, parts, strict=True)]


def _from_bytes(leaf: ObservationLeaf, part: Tensor) -> Tensor:
    if leaf.dtype is np.uint8:
        return part.reshape(-1, *leaf.shape)
    aligned = part.clone(memory_format=torch.contiguous_format)  # a copy is aligned, a slice need not be
    return aligned.view(torch.float32).reshape(-1, *leaf.shape)


def encode_observation(obs: Tensor | Sequence[Tensor], spec: ObservationSpec) -> Tensor:
    """``ObservationSpec.encode`` as torch operations, so that an exported policy includes it. A Dict or Tuple is a sequence
    with one tensor for each leaf. No runtime can pack floats into bytes, so a mixture becomes one row of floats."""
    given = [obs] if isinstance(obs, Tensor) else list(obs)
    entries = [_encode_leaf(entry, leaf) for entry, leaf in zip(given, spec.leaves, strict=True)]
    if len(entries) == 1:
        return entries[0]
    scaled = (
        scale_images(entry) if leaf.kind == "image" else entry for entry, leaf in zip(entries, spec.leaves, strict=True)
    )
    return torch.cat([entry.flatten(1) for entry in scaled], dim=1)


def _encode_leaf(obs: Tensor, leaf: ObservationLeaf) -> Tensor:
    if leaf.kind != "one_hot":
        obs = obs.movedim(-1, 1) if leaf.channels_last else obs
        return obs.reshape(-1, *leaf.shape)
    indices = obs.reshape(-1, len(leaf.sizes)).long() - torch.tensor(leaf.starts)
    blocks = [F.one_hot(indices[:, i], size) for i, size in enumerate(leaf.sizes)]
    return torch.cat(blocks, dim=1).float()


def describe_observation(spec: ObservationSpec, network: nn.Module) -> str:
    """How an observation is interpreted, such as ``image 3x64x64 uint8 -> NatureCNN``."""
    encoders = (part for part in network.modules() if isinstance(part, ImageEncoder | CustomTrunk))
    encoder = next(encoders, network)
    cnn = type(encoder.module if isinstance(encoder, CustomTrunk) else encoder).__name__
    if isinstance(encoder, ImageEncoder) and encoder.layout is not None:
        cnn += f" ({encoder.layout})"
    words = [f"{path_name(leaf.path)}: {_describe_leaf(leaf, cnn)}".removeprefix(": ") for leaf in spec.leaves]
    return ", ".join(words)


def describe_action(spec: ActionSpec) -> str | None:
    """How an action is interpreted, if that is not obvious."""
    if spec.kind == "unbounded":
        free = int((~spec.has_bounds).sum())
        half = bool((np.isfinite(spec.low) != np.isfinite(spec.high)).any())
        those = (
            "with one bound or none: not squashed, clipped at a bound"
            if half
            else "without bounds: neither squashed nor clipped"
        )
        return f"{counted(len(spec.low), 'number')}, {free} of them {those}"
    if spec.sizes:
        values = ", ".join(map(str, spec.sizes))
        joint = f" as one action over their {spec.count} combinations" if spec.kind == "discrete" else ""
        return f"{counted(len(spec.sizes), 'choice')} between {values} values{joint}"
    return None


def _describe_leaf(leaf: ObservationLeaf, cnn: str) -> str:
    if leaf.kind == "one_hot":
        return f"{counted(len(leaf.sizes), 'whole number')} as one-hot {leaf.shape[0]}"
    if leaf.kind == "vector":
        return f"vector {leaf.shape[0]}"
    turned = f" (turned from {'x'.join(map(str, leaf.raw_shape))}, channels last)" if leaf.channels_last else ""
    stored = "float32 in [0, 1], stored as it is with 4 bytes per pixel" if leaf.floating else "uint8"
    return f"image {'x'.join(map(str, leaf.shape))} {stored}{turned} -> {cnn}"
