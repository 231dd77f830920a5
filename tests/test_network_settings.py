"""Activations, layer normalisation, initial weights and CNNs: against torch's own modules, and in every algorithm."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch
from conftest import ALGORITHMS, EXPORTED, config_fields, tiny_config
from torch import nn

from rl_training.algorithms.base import init_generator
from rl_training.errors import ConfigError, SpaceError
from rl_training.experiment.registry import get_algorithm
from rl_training.models import EncoderConfig, make_encoder
from rl_training.models.cnn.impala import ImpalaCNN
from rl_training.models.cnn.nature import MINATAR_LAYERS, NatureCNN
from rl_training.models.mlp import ACTIVATIONS, MLP, Style, make_mlp
from rl_training.runtime.export import export_policy
from rl_training.runtime.inference import predict
from rl_training.runtime.trainer import Trainer
from rl_training.types import ObservationSpec

MODULES: dict[str, type[nn.Module]] = {
    "relu": nn.ReLU,
    "tanh": nn.Tanh,
    "gelu": nn.GELU,
    "silu": nn.SiLU,
    "elu": nn.ELU,
    "leaky_relu": nn.LeakyReLU,
}
assert MODULES.keys() == ACTIVATIONS.keys()
STYLES = [
    Style(activation, layer_norm, orthogonal)
    for activation, layer_norm, orthogonal in itertools.product(ACTIVATIONS, (False, True), (False, True))
]


def twin(mlp: MLP, style: Style, activate_last: bool) -> nn.Sequential:
    """The same layers from torch's own modules."""
    layers: list[nn.Module] = []
    for i, linear in enumerate(mlp.linears):
        layers.append(linear)
        if i < len(mlp.linears) - 1 or activate_last:
            if style.layer_norm:
                assert mlp.norms is not None
                layers.append(mlp.norms[i])
            layers.append(MODULES[style.activation]())
    return nn.Sequential(*layers)


@pytest.mark.parametrize("activate_last", [False, True])
@pytest.mark.parametrize("style", STYLES, ids=str)
def test_an_mlp_is_the_stack_of_torchs_modules(style: Style, activate_last: bool) -> None:
    mlp = make_mlp([5, 16, 12, 3], init_generator(0), style, activate_last=activate_last)
    with torch.no_grad():
        for parameter in mlp.parameters():  # layer normalisations other than the identity
            parameter.add_(0.1)
    x = torch.randn(20, 5, generator=init_generator(1))
    expected = twin(mlp, style, activate_last)(x.clone())
    torch.testing.assert_close(mlp(x.clone()), expected)
    np.testing.assert_allclose(mlp.numpy_forward()(x.numpy().copy()), expected.detach().numpy(), rtol=1e-5, atol=1e-5)
    assert mlp.has_numpy() == (style.activation in ("relu", "tanh") and not style.layer_norm)


def test_orthogonal_and_default_weights() -> None:
    orthogonal = make_mlp([8, 8, 8, 4], init_generator(0), Style(orthogonal=True), output_gain=0.01)
    for layer, gain in zip(orthogonal.linears, (math.sqrt(2.0), math.sqrt(2.0), 0.01), strict=True):
        gram = layer.weight @ layer.weight.T
        torch.testing.assert_close(gram, gain**2 * torch.eye(len(gram)), atol=1e-5, rtol=0.0)
        assert not layer.bias.any()
    default = make_mlp([100, 50, 4], init_generator(0), Style(), output_gain=0.01)
    for layer, inputs in zip(default.linears, (100, 50), strict=True):
        bound = 1.0 / math.sqrt(inputs)
        assert 0.9 * bound < layer.weight.abs().max() <= bound
        assert layer.bias.any()


CHANGES: list[dict[str, Any]] = [{"activation": "gelu"}, {"layer_norm": True}, {"init": "default"}, {"init": "orthogonal"}]


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_every_algorithm_has_the_settings(algo: str) -> None:
    """Each of them changes what the policy computes or how it starts."""
    found = []
    for change in [{}, *CHANGES]:
        trainer = Trainer(tiny_config(algo, seed=4, algo_kwargs=change))
        trainer.close()
        parameters = torch.cat([parameter.detach().reshape(-1) for parameter in trainer.policy.network.parameters()])
        mlps = [module for module in trainer.policy.network.modules() if isinstance(module, MLP)]
        activations = {mlp.activation for mlp in mlps if mlp.linears}
        found.append((len(parameters), float(parameters.square().sum()), tuple(sorted(activations))))
    plain, gelu, normed, default, orthogonal = found
    assert gelu[2] == ("gelu",) != plain[2]
    assert normed[0] > plain[0]
    assert default[1] != orthogonal[1]
    assert plain in (default, orthogonal)


@pytest.mark.parametrize("exported", EXPORTED)
@pytest.mark.parametrize("algo", ALGORITHMS)
def test_every_algorithm_learns_with_them_and_is_exported(algo: str, exported: str, tmp_path: Any) -> None:
    changed = {"activation": "silu", "layer_norm": True, "optimizer": "rmsprop"}
    trainer = Trainer(tiny_config(algo, algo_kwargs=changed))
    trainer.train(120)
    trainer.close()
    assert trainer.learner.updates > 5
    assert export_policy(trainer.policy, trainer.config, tmp_path / f"policy.{exported}") < 1e-4
    spec = trainer.policy.spec.observation.leaves[0]
    predict(trainer.policy, np.zeros(spec.raw_shape, spec.dtype))


IMAGES = [name for name in ALGORITHMS if "cnn" in config_fields(name)]


CNNS_FAST = {("impala", "safetensors"), ("drq", "safetensors")}
CNNS = [
    pytest.param(algo, cnn, suffix, marks=[] if (cnn, suffix) in CNNS_FAST else [pytest.mark.slow])
    for algo in IMAGES
    for cnn in ("nature", "impala", "drq", "minatar")
    for suffix in ("onnx", "safetensors")
]


def test_images_that_are_too_small_are_refused_with_the_settings_that_take_them() -> None:
    with pytest.raises(SpaceError, match=r"images of 7x7 are too small .* or cnn: minatar"):
        NatureCNN((3, 7, 7), init_generator(0))
    assert NatureCNN((3, 7, 7), init_generator(0), layers=MINATAR_LAYERS).out_features


@pytest.mark.parametrize(("algo", "cnn", "suffix"), CNNS)
def test_every_cnn_learns_and_is_exported(algo: str, cnn: str, suffix: str, tmp_path: Any) -> None:
    layers = [[32, 8, 4], [64, 4, 2], [64, 3, 1]]
    env_id = "rl_training_test_envs:ImageWalk-v0"
    small = "discrete" not in get_algorithm(algo).actions
    if small:  # images of 12x12, which are too small for two of the CNNs
        env_id, layers = "rl_training_test_envs:RandomWalkPictures-v0", [[8, 4, 2]] if cnn == "nature" else layers
    settings: dict[str, Any] = {"cnn": cnn, "cnn_layers": layers}
    config = tiny_config(algo, env_id=env_id, total_timesteps=60, compile="off", algo_kwargs=settings)
    if small and cnn == "drq":
        with pytest.raises(SpaceError, match="images of 12x12 are too small"):
            Trainer(config)
        return
    trainer = Trainer(config)
    trainer.train(60)
    trainer.close()
    kinds = {type(module).__name__ for module in trainer.policy.network.modules()}
    assert ("ImpalaCNN" in kinds) == (cnn == "impala")
    assert export_policy(trainer.policy, trainer.config, tmp_path / f"policy.{suffix}") < 1e-4


def test_a_cnn_of_its_own_takes_no_layers() -> None:
    with pytest.raises(ConfigError, match="cnn: impala has convolutions of its own: leave out cnn_layers"):
        tiny_config("dqn", algo_kwargs={"cnn": "impala", "cnn_layers": [[4, 3, 2]]})


def test_impala_by_torchs_modules() -> None:
    """Figure 3 of the paper: 15 convolutions, sizes halved three times."""
    cnn = ImpalaCNN((3, 21, 16), init_generator(0), 7)
    assert cnn.head is not None
    assert cnn.head.in_features == 32 * 3 * 2
    convs = iter(cnn.layers)
    x = torch.rand(2, 3, 21, 16, generator=init_generator(1))
    expected = x
    for _ in range(3):

        def conv(y: torch.Tensor) -> torch.Tensor:
            layer: Any = next(convs)
            same = nn.Conv2d(layer.in_channels, layer.out_channels, 3, padding=1)
            same.load_state_dict(layer.state_dict())
            out: torch.Tensor = same(y)
            return out

        expected = nn.MaxPool2d(3, 2, 1)(conv(expected))
        for _ in range(2):
            expected = expected + conv(conv(expected.relu()).relu())
    assert next(convs, None) is None
    expected = cnn.head(expected.relu().flatten(1)).relu()
    torch.testing.assert_close(cnn(x), expected)


def test_named_cnns_by_their_shapes() -> None:
    spec = ObservationSpec.image(4, 10, 10)
    minatar = make_encoder(spec, EncoderConfig(cnn="minatar"), init_generator(0))
    assert [tuple(parameter.shape) for parameter in minatar.parameters()] == [(16, 4, 3, 3), (16,)]
    assert minatar.out_features == 16 * 8 * 8
    drq = make_encoder(ObservationSpec.image(9, 84, 84), EncoderConfig(cnn="drq"), init_generator(0))
    assert drq.out_features == 32 * 35 * 35  # as in the paper
