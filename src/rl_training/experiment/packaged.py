"""The configs that come with the package. Nothing here imports torch, so listing them is quick."""

from __future__ import annotations

from pathlib import Path

_ROOT = Path(__file__).parent.parent / "assets" / "configs"


def packaged_configs() -> dict[str, Path]:
    """Names such as ``dqn/cartpole`` and the files behind them."""
    return {file.relative_to(_ROOT).with_suffix("").as_posix(): file for file in sorted(_ROOT.glob("*/*.yaml"))}
