"""Exports policies as ONNX, or as safetensors with a description. Every export is verified against the original."""

from __future__ import annotations

import contextlib
import copy
import io
import json
import logging
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.numpy import save_file

from rl_training.algorithms.policy import ExportModule, Policy
from rl_training.errors import CheckpointError, ConfigError, MissingExtraError
from rl_training.experiment.compat import PartContext, migrate, readable_version, stamp
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.files import open_to_read, parse_json, remove, replace_text, with_usual_permissions
from rl_training.experiment.layout import ACTING_PARTS
from rl_training.experiment.states import parse_arrays
from rl_training.experiment.trust import Trust
from rl_training.models.custom import NetworkFunction, PythonNetwork
from rl_training.runtime.divergence import require_finite
from rl_training.runtime.export_description import KEY, describe_export, input_names, output_names
from rl_training.runtime.inference import fitting, nested, policy_of, predict
from rl_training.runtime.onnx_policy import OnnxPolicy, load_onnx
from rl_training.types import Array, Carry, ObservationLeaf, SpaceSpec

FORMATS = ("onnx", "safetensors")
VERIFIED_OBSERVATIONS = 64
VERIFIED_STEPS = 5
TOLERANCE = 1e-4
SAME_ACTIONS = 0.95


def export_policy(policy: Policy, config: TrainConfig, path: Path, file_format: str | None = None) -> float:
    """Writes the policy and returns the largest difference between its outputs and the original's."""
    suffix = path.suffix.removeprefix(".")
    chosen = file_format or suffix
    if chosen not in FORMATS:
        raise ConfigError(f"cannot export to '{chosen}'; choose one of: {', '.join(FORMATS)}")
    if suffix in FORMATS and suffix != chosen:
        raise ConfigError(f"the format {chosen} contradicts the name {path}; leave the format out, or change the name")
    require_finite(policy, "the agent")
    if policy.spec.action.masked:
        warnings.warn(
            "this policy's environment masks actions, but the exported 'action' is the best of all actions: where some are "
            f"masked, choose the best allowed action by the exported '{policy.export_module().output_names[1]}'",
            stacklevel=2,
        )
    write = _export_onnx if chosen == "onnx" else _export_safetensors
    temporary = path.with_name(f".writing-{path.name}")
    try:
        remove(temporary)  # if a link has its name, writing would follow it
        temporary.touch()  # fail early if the file cannot be written: an export takes seconds
        _require_the_policys_actions(policy)
        difference = write(policy, config, temporary)
        if not difference <= TOLERANCE:  # a NaN fails too
            raise CheckpointError(f"the exported policy differs from the original by {difference:.2g}; nothing was written")
        with_usual_permissions(temporary)
        temporary.replace(path)
        replace_text(path.with_name(f"{path.name}.json"), json.dumps(_description(policy, config), indent=1) + "\n")
    except (OSError, SafetensorError) as error:
        raise ConfigError(f"cannot write {path}: {getattr(error, 'strerror', None) or error}") from error
    finally:
        temporary.unlink(missing_ok=True)
    return difference


def _description(policy: Policy, config: TrainConfig) -> dict[str, Any]:
    module = _module(policy)
    inputs = _first_inputs(module, _random_entries(policy.spec, VERIFIED_OBSERVATIONS))
    return describe_export(policy, config, module, [tensor.numpy() for tensor in inputs])


def _module(policy: Policy) -> ExportModule:
    """A copy on the CPU, whatever device the policy is on."""
    return copy.deepcopy(policy.export_module()).cpu().eval()


def _require_the_policys_actions(policy: Policy) -> None:
    """Checks that the module to be exported acts as the policy does, from raw observations to the environment's actions."""
    entries = _random_entries(policy.spec, VERIFIED_OBSERVATIONS)
    module = _module(policy)
    with torch.no_grad():
        found = module(*_nested_inputs(policy, _first_inputs(module, entries)))[0].numpy()
    spec = policy.spec.action
    every_action = np.ones(sum(spec.sizes) or spec.count, np.bool_) if spec.masked else None
    expected, _ = predict(policy, nested(policy.spec.observation, entries), action_mask=every_action)
    if not spec.low:  # where two values tie within rounding, either may be chosen
        same = float((found == expected).mean()) >= SAME_ACTIONS
    else:
        same = np.allclose(found, expected, rtol=TOLERANCE, atol=TOLERANCE)
    if not same:
        raise CheckpointError("the policy cannot be exported: its export module does not choose the policy's actions")


def _first_inputs(module: ExportModule, entries: list[Array]) -> list[torch.Tensor]:
    """The inputs of the module at the start of episodes: the leaves of observations, the reward, the state."""
    rows = len(entries[0])
    reward = [torch.zeros(rows)] if module.takes_reward else []
    return [*map(torch.from_numpy, entries), *reward, *module.initial_state(rows)]


def _nested_inputs(policy: Policy, inputs: Sequence[Any]) -> tuple[Any, ...]:
    """The inputs as the module takes them: the leaves of a Dict or Tuple are one tuple."""
    leaves = len(policy.spec.observation.leaves)
    return tuple(inputs) if policy.spec.observation.plain else (tuple(inputs[:leaves]), *inputs[leaves:])


def random_observations(spec: SpaceSpec, count: int) -> Any:
    """Raw observations (count, *raw_shape), nested as the space is, for comparing two policies; always the same ones."""
    return nested(spec.observation, _random_entries(spec, count))


def _random_entries(spec: SpaceSpec, count: int) -> list[Array]:
    rng = np.random.default_rng(0)
    return [_random_leaf(leaf, count, rng) for leaf in spec.observation.leaves]


def _random_leaf(leaf: ObservationLeaf, count: int, rng: np.random.Generator) -> Array:
    shape = (count, *leaf.raw_shape)
    if leaf.kind == "one_hot":
        sizes = np.asarray(leaf.sizes)
        return (np.asarray(leaf.starts) + rng.integers(0, sizes, (count, len(sizes)))).reshape(shape)
    if leaf.kind == "image":
        return rng.random(shape, np.float32) if leaf.floating else rng.integers(0, 256, shape, np.uint8)
    return rng.standard_normal(shape).astype(np.float32)


def _run(module: ExportModule, step: Callable[[list[Array]], list[Array]], entries: list[Array]) -> list[Array]:
    """All outputs over several steps, each of which passes its state to the next; a single step if there is no state."""
    inputs = [tensor.numpy() for tensor in _first_inputs(module, entries)[len(entries) :]]
    outputs: list[Array] = []
    for k in range(VERIFIED_STEPS if inputs else 1):
        found = step([*(np.roll(entry, k, axis=0) for entry in entries), *inputs])
        state = found[len(module.output_names) :]
        reward = [np.linspace(-1.0, 1.0, len(entries[0]), dtype=np.float32)] if module.takes_reward else []
        inputs = [*reward, *state]
        outputs += found
    return outputs


def _outputs(policy: Policy, entries: list[Array]) -> list[Array]:
    module = _module(policy)

    @torch.no_grad()
    def step(inputs: list[Array]) -> list[Array]:
        return [output.numpy() for output in module(*_nested_inputs(policy, [*map(torch.from_numpy, inputs)]))]

    return _run(module, step, entries)


def _largest_difference(expected: list[Array], found: list[Array]) -> float:
    """The largest difference over all real-valued outputs. Discrete actions follow from these and may differ only at ties."""
    differences = [
        float(np.max(np.abs(a - b) / np.maximum(1.0, np.abs(a))))
        for a, b in zip(expected, found, strict=True)
        if np.issubdtype(a.dtype, np.floating)
    ]
    return max(differences)


def _export_onnx(policy: Policy, config: TrainConfig, path: Path) -> float:
    try:
        import onnx
        import onnxruntime
        import onnxscript  # noqa: F401 - torch.onnx needs it
    except ImportError as error:
        raise MissingExtraError(str(error.name), "onnx") from error
    entries = _random_entries(policy.spec, VERIFIED_OBSERVATIONS)
    module = _module(policy)
    inputs = _nested_inputs(policy, _first_inputs(module, entries))
    names = input_names(policy, module)
    batch = {0: torch.export.Dim("batch")}
    observed = batch if policy.spec.observation.plain else tuple(batch for _ in entries)
    with _quiet():
        torch.onnx.export(
            module,
            inputs,
            path,
            input_names=names,
            output_names=output_names(module),
            dynamic_shapes=(observed, tuple(batch for _ in inputs[1:])) if inputs[1:] else (observed,),
            dynamo=True,
            external_data=False,
            verbose=False,
        )
    model = onnx.load(path)
    onnx.helper.set_model_props(model, {KEY: json.dumps(_description(policy, config))})
    onnx.save(model, path)
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])

    def step(arrays: list[Array]) -> list[Array]:
        outputs: list[Array] = session.run(None, dict(zip(names, arrays, strict=True)))
        return outputs

    samples = (entries, [entry[:1] for entry in entries])
    return max(_largest_difference(_outputs(policy, sample), _run(module, step, sample)) for sample in samples)


@contextlib.contextmanager
def _quiet() -> Any:
    """Silences the exporter's progress reports; only its failures matter here."""
    previous = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(previous)


def _export_safetensors(policy: Policy, config: TrainConfig, path: Path) -> float:
    arrays = {name: value.cpu().numpy() for name, value in policy.state_dict().items()}
    description = {"config": config.describe(), "spaces": policy.spec.to_json(), **stamp(ACTING_PARTS)}
    save_file(arrays, path, metadata={"rl_training": json.dumps(description)})
    entries = _random_entries(policy.spec, VERIFIED_OBSERVATIONS)
    given = config.algo_kwargs.network
    loaded = _load_safetensors(path, network=given if isinstance(given, PythonNetwork) else None)
    return _largest_difference(_outputs(policy, entries), _outputs(loaded.policy, entries))


@dataclass(frozen=True)
class ExportedPolicy:
    """A policy that was exported, ready to act."""

    policy: Policy
    config: TrainConfig

    def predict(
        self,
        obs: Any,
        state: Carry | None = None,
        episode_start: Any = None,
        *,
        action_mask: Any = None,
        reward: Any = None,
    ) -> tuple[Array, Carry]:
        """The action for one observation, or one per row of a batch, and the state to pass to the next call."""
        return predict(self.policy, obs, state, episode_start, reward=reward, action_mask=action_mask)


def load_exported(
    path: str | Path, *, trust_modules: bool = False, network: NetworkFunction | None = None
) -> ExportedPolicy | OnnxPolicy:
    """Loads an exported policy, which has ``predict``. An ONNX file acts through onnxruntime (extra: onnx).

    An algorithm or network of another package (``module:Class``) that a safetensors file names is imported only from a
    trusted place, unless ``trust_modules``; ``network`` replaces the network that it names.
    """
    path = Path(path)
    return load_onnx(path) if path.suffix == ".onnx" else _load_safetensors(path, trust_modules, network)


def _load_safetensors(path: Path, trust_modules: bool = False, network: NetworkFunction | None = None) -> ExportedPolicy:
    """The policy in a safetensors export of this version or an older one."""
    place = f"the exported policy {path}"
    description, weights = _read_export(path)
    algo = description["config"].get("algo")
    parts: dict[str, Any] = {"agent": {key: description.get(key) for key in ("config", "spaces")}, "policy": weights}
    for name, state in parts.items():
        version = readable_version(name, description, place)
        parts[name] = migrate(state, version, PartContext(name, algo), place)
    trust = Trust(path.parent, trust_modules)
    return ExportedPolicy(*policy_of(parts, place, description.get("written_by"), trust, network))


def _read_export(path: Path) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """The description and the weights in a safetensors export."""
    try:
        with open_to_read(path.resolve()) as file:  # a link to it is the user's own
            content = file.read()
    except OSError as error:
        raise CheckpointError(f"cannot read the exported policy {path}: {error.strerror}") from error
    arrays = parse_arrays(content, path)
    length = int.from_bytes(content[:8], "little")
    header = parse_json(content[8 : 8 + length], path)
    description = parse_json(str(header.get("__metadata__", {}).get("rl_training", "null")).encode(), path)
    if not isinstance(description, dict) or not isinstance(description.get("config"), dict):
        raise CheckpointError(f"{path} is not a policy exported by rl_training: it has no description of one")
    with fitting(f"the exported policy {path}"):
        return description, {name: torch.from_numpy(array.copy()) for name, array in arrays.items()}
