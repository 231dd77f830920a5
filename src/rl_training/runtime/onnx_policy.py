"""An exported ONNX file as a policy: it acts with onnxruntime alone, and knows its inputs from its own description."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rl_training.errors import CheckpointError, MissingExtraError, ObservationError, described
from rl_training.experiment.files import open_to_read, parse_json
from rl_training.runtime.export_description import KEY
from rl_training.runtime.inference import as_batch, as_mask, as_rewards, as_starts, fitting, nested, require_rows
from rl_training.runtime.onnx_file import names_other_files
from rl_training.types import Array, Carry, ObservationLeaf, SpaceSpec, entry_at

#: An input that repeats the last action, which a mask would change.
PREVIOUS_ACTION = "previous_action"


@dataclass(frozen=True)
class OnnxPolicy:
    """An exported policy that acts through onnxruntime."""

    session: Any  # an onnxruntime.InferenceSession
    spec: SpaceSpec
    description: dict[str, Any]  # the description in the file

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
        batch, single = as_batch(obs, self.spec.observation)
        entries = [entry_at(batch, leaf.path) for leaf in self.spec.observation.leaves]
        rows = len(entries[0])
        start = as_starts(episode_start, rows)
        if state is None:
            start = np.ones(rows, np.bool_)
        else:
            require_rows(state, rows)
        names = list(self.description["inputs"])
        rewards = [as_rewards(reward, start)] if "reward" in names[len(entries) :] else []
        given = [*entries, *rewards, *self._carried(state, start)]
        outputs = self.session.run(
            None, {name: np.asarray(value, self._dtype(name)) for name, value in zip(names, given, strict=True)}
        )
        mask = as_mask(action_mask, rows, self.spec)
        actions = outputs[0] if mask is None else self._best_allowed(outputs[1], mask)
        return (actions[0] if single else actions), tuple(outputs[len(outputs) - len(self.description["state"]) :])

    def _dtype(self, name: str) -> np.dtype[Any]:
        return np.dtype(str(self.description["inputs"][name]["dtype"]))

    def _carried(self, state: Carry | None, start: NDArray[np.bool_]) -> list[Array]:
        """The state as inputs, with its initial value where an episode starts."""
        carried = []
        for k, name in enumerate(self.description["state"]):
            shape = (len(start), *self.description["inputs"][name]["shape"][1:])
            initial = np.full(shape, self.description["initial_state"][name][0], self._dtype(name))
            now = initial if state is None else np.asarray(state[k])
            carried.append(np.where(start.reshape(-1, *[1] * (len(shape) - 1)), initial, now))
        return carried

    def _best_allowed(self, values: Array, mask: NDArray[np.bool_]) -> Array:
        """The actions with the highest values among those that are allowed."""
        if PREVIOUS_ACTION in self.description["state"]:
            raise ObservationError(
                "this policy remembers its last action, so an ONNX file of it cannot take an action_mask; use an export to "
                ".safetensors"
            )
        action, allowed = self.spec.action, np.where(mask, values, -np.inf)
        if action.kind == "discrete":
            return action.to_env(allowed.argmax(axis=1))
        choices = np.split(allowed, np.cumsum(action.sizes)[:-1], axis=1)
        return action.to_env(np.stack([choice.argmax(axis=1) for choice in choices], axis=1))


def load_onnx(path: Path) -> OnnxPolicy:
    """The policy in an ONNX file that this package has exported."""
    try:
        import onnxruntime
    except ImportError as error:
        raise MissingExtraError(str(error.name), "onnx", f"loading {path}") from error
    try:
        with open_to_read(path.resolve()) as file:  # a link to it is the user's own
            content = file.read()
    except OSError as error:
        raise CheckpointError(f"cannot read the exported policy {path}: {error.strerror}") from error
    options = onnxruntime.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 4, 1  # what fails is raised; a policy is small
    try:
        if names_other_files(content):  # onnxruntime would look for them in the current directory
            raise CheckpointError(f"{path} has its weights in other files, which an export of rl_training never has")
        session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
        text = session.get_modelmeta().custom_metadata_map.get(KEY)
    except CheckpointError:
        raise
    except Exception as error:  # onnxruntime has a class for each kind of damage
        raise CheckpointError(f"{path} is not an ONNX file that onnxruntime can load ({described(error)})") from error
    if text is None:
        raise CheckpointError(f"{path} has no description of its inputs, as an export of rl_training has; export it again")
    description = parse_json(text.encode(), path)
    with fitting(f"the exported policy {path}"):
        policy = OnnxPolicy(session, SpaceSpec.from_json(description["spaces"]), description)
        known = {"inputs": {one.name for one in session.get_inputs()}, "outputs": {one.name for one in session.get_outputs()}}
        for kind, names in known.items():
            if set(description[kind]) != names:
                raise CheckpointError(f"{path} is damaged: its {kind} are not those of its description")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a trial without an action mask warns
            policy.predict(_first_observation(policy.spec))
        return policy


def _first_observation(spec: SpaceSpec) -> Any:
    """Zeros, or the lowest whole numbers that there are."""
    return nested(spec.observation, [_first_entry(leaf) for leaf in spec.observation.leaves])


def _first_entry(leaf: ObservationLeaf) -> Array:
    if leaf.kind == "one_hot":
        return np.asarray(leaf.starts).reshape(leaf.raw_shape)
    return np.zeros(leaf.raw_shape, leaf.dtype)
