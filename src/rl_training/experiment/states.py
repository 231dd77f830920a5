"""Nested states as a JSON skeleton and arrays. Saving what was loaded gives the same bytes again."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.numpy import load as load_safetensors

from rl_training.errors import CheckpointError
from rl_training.types import Array

#: In a skeleton, {"$tensor": name} stands for a tensor and {"$array": name} for an array.
REFERENCES = ("$tensor", "$array")
RESERVED_NAME = "__metadata__"  # safetensors keeps it for itself


def take_arrays(value: Any, key: str, arrays: dict[str, Array]) -> Any:
    """A copy of a nested state in which each array is replaced by a reference; the arrays are added to ``arrays``."""
    if isinstance(value, Mapping):
        names = {str(name) for name in value}
        if names & {*REFERENCES}:
            raise CheckpointError(f"a state cannot be saved if it has a key named {' or '.join(REFERENCES)}")
        return {str(name): take_arrays(item, f"{key}/{name}" if key else str(name), arrays) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [take_arrays(item, f"{key}/{i}", arrays) for i, item in enumerate(value)]
    if isinstance(value, torch.Tensor):
        return {"$tensor": _add(arrays, key, value.detach().cpu().contiguous().numpy())}
    if isinstance(value, np.ndarray):
        return {"$array": _add(arrays, key, np.asarray(value, order="C"))}  # unlike ascontiguousarray, it keeps the shape ()
    return value.item() if isinstance(value, np.generic) else value


def _add(arrays: dict[str, Array], key: str, array: Array) -> str:
    """Adds an array under a name of its own: keys that contain slashes may give two of them the same path."""
    name, number = key, 1
    while name in arrays or name == RESERVED_NAME:
        number += 1
        name = f"{key}~{number}"
    arrays[name] = array
    return name


def put_arrays(value: Any, arrays: Mapping[str, Array], file: Path) -> Any:
    """The inverse of ``take_arrays``; ``file`` names the arrays in an error."""
    if isinstance(value, dict):
        for kind in REFERENCES:
            if kind in value:
                array = _referred(value, kind, arrays, file)
                return torch.from_numpy(array) if kind == "$tensor" else array
        return {name: put_arrays(item, arrays, file) for name, item in value.items()}
    if isinstance(value, list):
        return [put_arrays(item, arrays, file) for item in value]
    return value


def _referred(value: dict[str, Any], kind: str, arrays: Mapping[str, Array], file: Path) -> Array:
    name = value[kind]
    if not isinstance(name, str) or len(value) != 1:
        raise CheckpointError(f"{file.with_suffix('.json')} is damaged: it refers to an array by what is not a name")
    if name not in arrays:
        raise CheckpointError(f"{file} lacks the array {name!r}")
    array: Array = arrays[name].copy()
    return array


def parse_arrays(content: bytes, file: Path) -> dict[str, Array]:
    """The arrays of a safetensors file."""
    try:
        arrays: dict[str, Array] = load_safetensors(content)
    except SafetensorError as error:
        raise CheckpointError(f"{file} is not a safetensors file: {' '.join(str(error).split())}") from error
    except (KeyError, TypeError, ValueError, AttributeError, ImportError, OverflowError) as error:
        # what safetensors raises for dtypes that numpy does not know, such as bfloat16 and the eight-bit floats
        raise CheckpointError(
            f"{file} holds an array that numpy cannot represent ({type(error).__name__}: {error})"
        ) from error
    for name, array in arrays.items():
        if array.dtype.kind not in "biufc":
            raise CheckpointError(f"{file} holds the array {name!r} of {array.dtype}, which is no type of numbers")
    return arrays
