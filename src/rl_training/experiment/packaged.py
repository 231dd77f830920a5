"""The configs shipped with the package. Nothing here imports torch, so listing them is fast."""

from __future__ import annotations

from pathlib import Path

_ROOT = Path(__file__).parent.parent / "assets" / "configs"


def packaged_configs() -> dict[str, Path]:
    """The config files by name, such as ``dqn/cartpole``."""
    return {file.relative_to(_ROOT).with_suffix("").as_posix(): file for file in sorted(_ROOT.glob("*/*.yaml"))}
