"""Registers the games of MinAtar (Young & Tian, arXiv:1903.03176; extra ``minatar``) with Gymnasium: Atari made 10 x 10.

env_id: rl_training.envs.minatar:MinAtar/Breakout-v1
wrappers:
  - {name: channels_first}
"""

from __future__ import annotations

from rl_training.errors import MissingExtraError

try:
    from minatar.gym import register_envs
except ImportError as _error:
    raise MissingExtraError("minatar", "minatar") from _error

register_envs()
