"""The configs shipped with the package. Nothing here imports torch, so listing them is fast."""

from __future__ import annotations

import difflib
import functools
import json
import re
from itertools import takewhile
from pathlib import Path
from typing import Any

_ASSETS = Path(__file__).parent.parent / "assets"
_ROOT = _ASSETS / "configs"
#: what the configs reach, and in how many seconds on the machine of docs/benchmarks.md; benchmarks/expected.py writes it
EXPECTED = _ASSETS / "expected.json"


@functools.cache
def packaged_configs() -> dict[str, Path]:
    """The config files by name, such as ``dqn/cartpole``."""
    return {file.relative_to(_ROOT).with_suffix("").as_posix(): file for file in sorted(_ROOT.glob("*/*.yaml"))}


def configs_of(word: str) -> list[str]:
    """The configs for a task or of an algorithm, which may be misspelt or an environment's id; none if it is like nothing."""
    groups: dict[str, list[str]] = {}
    for config in packaged_configs():
        for part in config.split("/"):
            groups.setdefault(part, []).append(config)
    near = difflib.get_close_matches(re.sub(r"-v\d+$", "", word).lower(), groups, n=1)
    return groups[near[0]] if near else []


def about(config: Path) -> str:
    """The first sentence of the comment at the top of a config; empty if it has none."""
    lines = takewhile(lambda line: line.startswith("#"), config.read_text("utf-8").splitlines())
    text = " ".join(line.removeprefix("#").strip() for line in lines)
    text = re.sub(r" \(pip install '[^']*'\)|[;,]? needs pip install '[^']*'", "", text, flags=re.IGNORECASE)
    return re.split(r"(?<!al)\. (?=[A-Za-z])", text)[0].removesuffix(".")


def expected_results() -> dict[str, dict[str, Any]]:
    """The median return and seconds of the configs that have been measured, by name."""
    results: dict[str, dict[str, Any]] = json.loads(EXPECTED.read_text("utf-8"))
    return results


def expectation(name: str) -> str | None:
    """What the packaged config with this name reached, and how long it took; None if it has not been measured."""
    result = expected_results().get(name)
    if result is None:
        return None
    seconds = result["seconds"]
    duration = f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
    return f"return {result['return']:g}, {duration}"
