"""Atari games with the usual preprocessing: random no-ops at the start, 4 frames per step, 84 x 84 greyscale images, stacks
of 4 (Mnih et al. 2015, doi:10.1038/nature14236). As Machado et al. (arXiv:1709.06009) recommend, losing a life does not end
an episode.

env_id: ale_py:ALE/Pong-v5
env_kwargs: {frameskip: 1}
wrappers:
  - {name: atari}
"""

from __future__ import annotations

import gymnasium as gym
from gymnasium.wrappers import AtariPreprocessing, FrameStackObservation

from rl_training.envs.factory import Env, env_name
from rl_training.errors import ConfigError, MissingExtraError


def atari_pictures(
    env: Env,
    stack: int = 4,
    size: int = 84,
    frame_skip: int = 4,
    noop_max: int = 30,
    terminal_on_life_loss: bool = False,
) -> Env:
    """Observations are (stack, size, size) uint8, oldest image first; each is the maximum of its step's last two frames.

    With ``terminal_on_life_loss`` an episode is the first life of a game: the next reset starts a new game instead of
    playing the remaining lives, so returns are those of one life.
    """
    if not hasattr(env.unwrapped, "ale"):
        raise ConfigError(f"the wrapper atari is for Atari games (env_id: ale_py:ALE/Pong-v5), not for {env_name(env)}")
    try:
        pictures = AtariPreprocessing(env, noop_max, frame_skip, size, terminal_on_life_loss)
    except gym.error.DependencyNotInstalled as error:
        raise MissingExtraError("opencv-python-headless", "atari") from error
    return FrameStackObservation(pictures, stack)
