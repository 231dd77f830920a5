"""Registers the MinAtar games, Atari reduced to 10 x 10 (Young & Tian, arXiv:1903.03176; extra ``minatar``), with Gymnasium.

env_id: rl_training.envs.minatar:MinAtar/Breakout-v1
wrappers:
  - {name: channels_first}
"""

from __future__ import annotations

from typing import Any

from gymnasium.envs.registration import register

from rl_training.errors import MissingExtraError

try:
    from minatar.gym import BaseEnv
except ImportError as _error:
    raise MissingExtraError("minatar", "minatar") from _error

GAMES = ("asterix", "breakout", "freeway", "seaquest", "space_invaders")


class MinAtarGame(BaseEnv):  # type: ignore[misc]
    """A game that clears its last action on reset. MinAtar keeps it, so a sticky action in the first step of an episode could
    repeat one from the previous episode, and the seed and the actions would not determine the episode."""

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self.game.last_action = 0
        observed: tuple[Any, dict[str, Any]] = super().reset(seed=seed, options=options)
        return observed


def _register() -> None:
    """Registers MinAtar's own ids: v0 has all six actions, v1 only those that the game uses."""
    for game in GAMES:
        for version, minimal in enumerate((False, True)):
            register(
                f"MinAtar/{game.title().replace('_', '')}-v{version}",
                entry_point="rl_training.envs.minatar:MinAtarGame",
                kwargs={"game": game, "use_minimal_action_set": minimal},
            )


_register()
