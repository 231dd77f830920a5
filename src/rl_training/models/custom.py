"""A user's own network as the encoder of ours.

The user gives a function ``make_trunk(observation_spec, **network_kwargs)`` that returns a ``torch.nn.Module``, or a pair of
modules for actor and critic. A module maps (batch, ...) observations to features (batch, out_features); the heads stay ours.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from rl_training.errors import ConfigError, NetworkError, RLTrainingError, described, did_you_mean, shown
from rl_training.models.cnn.nature import scale_images
from rl_training.models.encoder import Encoder
from rl_training.names import imported, split_name
from rl_training.types import ObservationSpec, path_name

#: Stands in a config for the module of a function that cannot be imported.
FROM_PYTHON = "python"
Unpack = Callable[[Tensor], list[Tensor]]


@dataclass(frozen=True)
class PythonNetwork:
    """A function that was passed from Python and that no other process can import by a name."""

    name: str
    function: Callable[..., Any]

    def __str__(self) -> str:
        return f"{FROM_PYTHON}:{self.name}"


#: The user's function in a config: ``module:function``, or the function itself if it cannot be imported.
NetworkReference = str | PythonNetwork
#: The user's function as it is passed from Python.
NetworkFunction = Callable[..., Any] | PythonNetwork


def reference_to(function: Callable[..., Any]) -> NetworkReference:
    """The name by which a function can be imported, or the function itself if there is none."""
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", type(function).__name__)
    if isinstance(module, str) and module != "__main__":
        found: object = sys.modules.get(module)
        for part in name.split("."):
            found = getattr(found, part, None)  # None for a local function or a lambda
        if found is function:
            return f"{module}:{name}"
    return PythonNetwork(name, function)


@dataclass(frozen=True)
class CustomNetwork:
    """The user's function and its arguments."""

    reference: NetworkReference
    kwargs: Mapping[str, Any] = field(default_factory=dict)

    def make(self, spec: ObservationSpec, generator: torch.Generator, unpack: Unpack) -> list[CustomTrunk]:
        """The encoder that the function makes, or the encoders of actor and critic.

        ``unpack`` separates the entries of a mixture. The user's code initialises its weights from torch's global generator,
        which is seeded from ``generator`` meanwhile and then put back.
        """
        function = self._function()
        seed = int(torch.randint(2**62, (), generator=generator))
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            made = self._call(function, spec)
            modules = list(made) if isinstance(made, tuple | list) else [made]
            if not 1 <= len(modules) <= 2 or not all(isinstance(module, nn.Module) for module in modules):
                raise ConfigError(
                    f"the network {self.reference} must return a torch.nn.Module, or a pair of them for actor and critic, "
                    f"not {shown(made)}"
                )
            return [CustomTrunk(str(self.reference), spec, module, unpack) for module in modules]

    def make_one(self, spec: ObservationSpec, generator: torch.Generator, unpack: Unpack) -> CustomTrunk:
        """The encoder, for networks without a separate critic."""
        trunks = self.make(spec, generator, unpack)
        if len(trunks) > 1:
            raise ConfigError(
                f"the network {self.reference} returns a pair of modules, but here one network has both parts or there is no "
                "critic: return one module"
            )
        return trunks[0]

    def make_pair(self, spec: ObservationSpec, generator: torch.Generator, unpack: Unpack) -> tuple[CustomTrunk, CustomTrunk]:
        """The encoders of actor and critic. If the function returns one module, it is called once for each."""
        trunks = self.make(spec, generator, unpack)
        actor, critic = trunks if len(trunks) == 2 else (trunks[0], self.make_one(spec, generator, unpack))
        return actor, critic

    def _function(self) -> Callable[..., Any]:
        if isinstance(self.reference, PythonNetwork):
            return self.reference.function
        module_name, attribute = split_name(self.reference)
        if module_name is None or module_name == FROM_PYTHON:
            raise ConfigError(
                f"the network '{attribute}' of this agent was passed from Python, so no file can hold it: pass it again, as "
                f"in load(path, network={attribute}); the command line can use it once it is in a module that can be imported"
            )
        module = imported(module_name, f"network '{self.reference}'")
        try:
            function: object = functools.reduce(getattr, attribute.split("."), module)
        except AttributeError as error:
            raise ConfigError(
                f"network '{self.reference}': the module '{module_name}' has no '{attribute}'"
                f"{did_you_mean(attribute, _functions(module))}"
            ) from error
        if not callable(function):
            raise ConfigError(f"network '{self.reference}' is not a function: it must return a torch.nn.Module")
        return function

    def _call(self, function: Callable[..., Any], spec: ObservationSpec) -> Any:
        try:
            return function(spec, **self.kwargs)
        except RLTrainingError:
            raise
        except (Exception, SystemExit) as error:
            raise ConfigError(
                f"the network {self.reference} raised {described(error)} when it was called with the observation spec and "
                f"network_kwargs {shown(dict(self.kwargs))}"
            ) from error


def _functions(module: ModuleType) -> list[str]:
    """What of a module could make a network."""
    return [name for name, value in vars(module).items() if callable(value) and not name.startswith("_")]


class CustomTrunk(Encoder):
    """The user's module. It gets vectors as they are, images as floats in 0..1, and the entries of a Dict or Tuple with
    images as a dict of tensors by their names."""

    def __init__(self, name: str, spec: ObservationSpec, module: nn.Module, unpack: Unpack) -> None:
        super().__init__()
        self._name, self._spec, self._unpack = name, spec, unpack
        self.module = module
        self.out_features = self._tried()

    def scale(self, obs: Tensor) -> Tensor:
        return _as_floats(obs) if self._spec.kind == "image" else obs

    def forward(self, prepared: Tensor) -> Tensor:
        try:
            features: Tensor = self.module(self._entries(prepared))
        except RLTrainingError:
            raise
        except Exception as error:
            raise NetworkError(f"the network {self._name} raised {described(error)}") from error
        return features

    def _entries(self, prepared: Tensor) -> Tensor | dict[str, Tensor]:
        if self._spec.kind != "mixed":
            return self.scale(prepared)
        entries = zip(self._spec.leaves, self._unpack(prepared), strict=True)
        return {path_name(leaf.path): _as_floats(entry) for leaf, entry in entries}

    def _tried(self) -> int:
        """The number of features. Everything that would break later, far from its cause, is refused here."""
        example = torch.zeros((2, *self._spec.shape), dtype=torch.uint8 if self._spec.dtype is np.uint8 else torch.float32)
        with torch.no_grad():
            self(example)  # lazy modules create their weights now
            before, buffers = torch.random.get_rng_state(), [buffer.clone() for buffer in self.module.buffers()]
            features = self(example)
        if not torch.equal(before, torch.random.get_rng_state()):
            raise ConfigError(
                f"the network {self._name} draws random numbers in its forward pass, as dropout does, so no run with it "
                "could be repeated or resumed exactly: take that layer out"
            )
        if not all(torch.equal(one, other) for one, other in zip(buffers, self.module.buffers(), strict=True)):
            raise ConfigError(
                f"the network {self._name} changes its buffers in its forward pass, as batch normalisation does, so that "
                "acting, evaluation and target networks would disagree: use layer normalisation"
            )
        declared = getattr(self.module, "out_features", None)
        wanted = f"(2, {declared})" if isinstance(declared, int) else "(2, out_features)"
        if not isinstance(features, Tensor) or features.dim() != 2 or len(features) != 2 or not features.is_floating_point():
            raise ConfigError(
                f"the network {self._name} must map 2 observations to floating-point features {wanted}, not to "
                f"{_described(features)}"
            )
        if isinstance(declared, int) and features.shape[1] != declared:
            raise ConfigError(
                f"the network {self._name} declares out_features as {declared}, but returns {features.shape[1]}"
            )
        if any(parameter.dtype != torch.float32 for parameter in self.module.parameters()):
            raise ConfigError(f"the network {self._name} has weights that are not float32: create it without another dtype")
        return features.shape[1]


def _described(value: object) -> str:
    return f"a {value.dtype} tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else shown(value)


def _as_floats(entry: Tensor) -> Tensor:
    return scale_images(entry) if entry.dtype == torch.uint8 else entry
