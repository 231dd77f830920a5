"""An environment of your own, from Python: write it, check it, register it, train on it, evaluate and film the result.

    python examples/own_environment.py            about a minute
    python examples/own_environment.py --steps 500    a tiny run, a few seconds

The command line takes the same class by its file and name, without registering anything:

    rl-training train --algo dqn --env examples/own_environment.py:Docking --total-timesteps 20000
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.utils.env_checker import check_env
from numpy.typing import NDArray

from rl_training import DQN

ENV_ID = "examples/Docking-v0"
THRUST, NEAR, SLOW = 0.02, 0.06, 0.04


class Docking(gym.Env[NDArray[np.float32], np.int64]):
    """A ship on a line must come to rest at its dock. The actions are to push left, to drift, and to push right."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 25}  # noqa: RUF012

    def __init__(self, render_mode: str | None = None) -> None:
        # Position, speed and the dock. Observations that the bounds rule out would be refused.
        self.observation_space = spaces.Box(-2.0, 2.0, (3,), np.float32)
        self.action_space = spaces.Discrete(3)
        self.render_mode = render_mode
        self._place = self._speed = self._dock = 0.0

    def _observe(self) -> NDArray[np.float32]:
        return np.array([self._place, self._speed, self._dock], np.float32)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        super().reset(seed=seed)  # seeds self.np_random, the only source of chance: so an episode can be repeated exactly
        self._place, self._dock = self.np_random.uniform(-1.0, 1.0, 2)
        self._speed = 0.0
        return self._observe(), {}

    def step(self, action: np.int64) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        self._speed = float(np.clip(self._speed + THRUST * (int(action) - 1), -0.2, 0.2))
        self._place = float(np.clip(self._place + self._speed, -1.5, 1.5))
        distance = abs(self._place - self._dock)
        docked = distance < NEAR and abs(self._speed) < SLOW
        # terminated: the task is over. An episode that only runs out of time is truncated, which `register` sees to below.
        return self._observe(), 1.0 if docked else -0.05 * distance, docked, False, {"is_success": docked}

    def render(self) -> NDArray[np.uint8]:
        picture = np.full((60, 320, 3), 255, np.uint8)
        for place, top, color in ((self._dock, 40, (200, 120, 0)), (self._place, 20, (0, 90, 200))):
            middle = 160 + round(100 * place)
            picture[top : top + 20, middle - 6 : middle + 6] = color
        return picture


def main() -> None:
    """Checks, registers, trains, evaluates and films."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=20_000, help="env steps of training")
    arguments = parser.parse_args()

    check_env(Docking(), skip_render_check=True)  # Gymnasium's own check finds most mistakes
    gym.register(ENV_ID, Docking, max_episode_steps=100)  # type: ignore[arg-type]
    agent = DQN(
        ENV_ID,  # or Docking itself, or a function that makes one
        seed=1,
        total_timesteps=arguments.steps,
        learning_rate=1e-3,
        learning_starts=200,
        train_freq=4,
        target_update_interval=200,
        exploration_steps=5_000,
        double=True,
    )
    agent.learn()
    result = agent.evaluate(episodes=50)
    print(f"return: {result.mean_return:.2f}, in episodes of {np.mean(result.lengths):.0f} steps on average")
    with tempfile.TemporaryDirectory() as folder:
        film = agent.film(Path(folder) / "docking.gif", seed=7)
        print(f"filmed: {film.frames} frames")
        agent.save(Path(folder) / "agent")
        loaded = DQN.load(Path(folder) / "agent")
        obs = [0.5, 0.0, -0.5]
        print(f"action: {agent.predict(obs)[0]}, of the loaded agent: {loaded.predict(obs)[0]}")


if __name__ == "__main__":
    main()
