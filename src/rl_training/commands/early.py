"""Starts what takes long before torch is imported, which also takes seconds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rl_training.errors import RLTrainingError

#: More collectors than this are not started before the settings have been checked.
MOST_EARLY = 64


def start_ray_early(config: str | None, overrides: Sequence[str]) -> None:
    """Starts Ray if these settings ask for it. What is wrong with them is reported by those who check them."""
    try:
        found = _collectors(config, overrides)
    except (RLTrainingError, OSError, ValueError):
        return
    address, count, cpus = found.get("address"), found.get("count", 1), found.get("cpus", 1.0)
    if found.get("kind") != "ray" or not isinstance(address, str | None):
        return
    if isinstance(count, int) and isinstance(cpus, int | float) and 0 < count <= MOST_EARLY and 0 < cpus <= MOST_EARLY:
        from rl_training.runtime.ray_cluster import start_early

        start_early(address, count, float(cpus))


def _collectors(config: str | None, overrides: Sequence[str]) -> dict[str, Any]:
    """The unchecked settings of the collectors."""
    from rl_training.experiment.packaged import packaged_configs
    from rl_training.experiment.plain_data import parse_yaml

    found: dict[str, Any] = {}
    if config is not None:
        data = parse_yaml(packaged_configs().get(config, Path(config)).read_text("utf-8"), config)
        given = data.get("collectors") if isinstance(data, dict) else None
        found |= given if isinstance(given, dict) else {}
    for override in overrides:
        key, _, text = override.partition("=")
        if key.startswith("collectors."):
            found[key.removeprefix("collectors.")] = parse_yaml(text, key)
    return found
