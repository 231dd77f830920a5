"""The description of an exported policy, inside the file and as JSON beside it: what its inputs and outputs are."""

from __future__ import annotations

from importlib import metadata
from typing import Any

import numpy as np

from rl_training.algorithms.policy import ExportModule, Policy
from rl_training.experiment.config import TrainConfig
from rl_training.types import Array
from rl_training.version import __version__

#: the key of the description in an ONNX file's metadata
KEY = "rl_training"


def input_names(policy: Policy, module: ExportModule) -> list[str]:
    """The inputs in their order: ``obs``, or one for each entry of a Dict or Tuple, such as ``obs.camera``; the
    previous reward if it is an input; the state of a recurrent policy."""
    names: list[str] = []
    for leaf in policy.spec.observation.leaves:
        name = ".".join(map(str, ("obs", *leaf.path)))
        while name in names:  # {"a": {"b": ...}, "a.b": ...}
            name += "_"
        names.append(name)
    return [*names, *(["reward"] if module.takes_reward else []), *module.state_names]


def output_names(module: ExportModule) -> list[str]:
    """The outputs in their order; the next state has the names of the state's inputs with a prefix."""
    return [*module.output_names, *(f"next_{name}" for name in module.state_names)]


def describe_export(policy: Policy, config: TrainConfig, module: ExportModule, inputs: list[Array]) -> dict[str, Any]:
    """The algorithm, the task, the inputs and outputs, what is inside the policy and what is not."""
    names = input_names(policy, module)
    arrays = dict(zip(names, inputs, strict=True))
    return {
        "algorithm": config.algo,
        "env_id": config.env_id,
        "spaces": policy.spec.to_json(),
        "inputs": {name: {"shape": ["batch", *array.shape[1:]], "dtype": str(array.dtype)} for name, array in arrays.items()},
        "outputs": output_names(module),
        "state": {name: f"next_{name}" for name in module.state_names},
        "initial_state": {name: np.unique(arrays[name]).tolist() for name in module.state_names},
        "preprocessing": "inside: observations are those of the wrapped environment, and actions are the environment's",
        "wrappers_not_inside": [dict(wrapper) for wrapper in config.wrappers],
        "actions_masked": policy.spec.action.masked,
        "versions": {"rl-training": __version__, "torch": metadata.version("torch")},
    }
