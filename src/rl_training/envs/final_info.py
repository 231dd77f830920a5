"""The part of the info of an episode's last step that is kept."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from rl_training.errors import shown

#: The entry by which environments report whether an episode has reached its goal; it is always kept.
SUCCESS = "is_success"
NO_INFO: Mapping[str, Any] = MappingProxyType({})
#: Numbers that an entry may have; of a longer one only the beginning is shown, as text.
MOST_NUMBERS = 64


def chosen(info: Mapping[str, Any], keys: Sequence[str]) -> dict[str, Any]:
    """The entries of these names, as plain data that a log can hold."""
    return {key: _plain(info[key]) for key in keys if key in info}


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray | np.generic) and value.size <= MOST_NUMBERS and value.dtype.kind in "biuf":
        value = value.tolist() if value.size != 1 else value.reshape(()).item()
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, list):
        return [_plain(item) for item in value[:MOST_NUMBERS]]
    return value if value is None or isinstance(value, bool | int) else shown(value) if not isinstance(value, str) else value
