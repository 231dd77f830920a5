"""MiniGrid's rooms as flat vectors: its own observations hold a text, which no algorithm takes."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
from minigrid.wrappers import ImgObsWrapper


def make(room: str = "MiniGrid-DoorKey-5x5-v0", **options: Any) -> gym.Env[Any, Any]:
    return gym.wrappers.FlattenObservation(ImgObsWrapper(gym.make(room, **options)))


gym.register("FlatMiniGrid-v0", entry_point=f"{__name__}:make")
