"""An environment of one's own with Dict observations: a camera image, numbers and a choice, all in one observation.

    python examples/dict_observations.py --output-dir runs/delivery

It trains PPO and DQN (whose actions are the same several choices, as one action over their product), asks the trained policy
for an action, and exports it to ONNX with one named input for each entry of the Dict.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from rl_training import DQN, PPO

SIZE, CELL = 36, 6  # pixels of the image and of one cell of its 6 x 6 grid


class Delivery(gym.Env[dict[str, Any], Any]):
    """Drive to the marked cell and put down the right parcel there: see where it is, know which parcel is wanted."""

    def __init__(self) -> None:
        self.observation_space = spaces.Dict(
            {
                "camera": spaces.Box(0, 255, (SIZE, SIZE, 1), np.uint8),  # channels last: turned automatically
                "position": spaces.Box(0.0, 1.0, (2,), np.float32),
                "wanted": spaces.Discrete(2),
            }
        )
        self.action_space = spaces.MultiDiscrete([4, 2])  # where to drive; which parcel to hold
        self._cells = SIZE // CELL
        self._place = self._goal = np.zeros(2, np.int64)
        self._wanted = self._steps = 0

    def _observe(self) -> dict[str, Any]:
        camera = np.zeros((SIZE, SIZE, 1), np.uint8)
        for (row, column), brightness in ((self._goal, 128), (self._place, 255)):
            camera[row * CELL : (row + 1) * CELL, column * CELL : (column + 1) * CELL] = brightness
        position = (self._place / (self._cells - 1)).astype(np.float32)
        return {"camera": camera, "position": position, "wanted": self._wanted}

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        super().reset(seed=seed)
        self._place, self._goal = self.np_random.integers(0, self._cells, (2, 2))
        self._wanted, self._steps = int(self.np_random.integers(2)), 0
        return self._observe(), {}

    def step(self, action: Any) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        moves = np.array([[-1, 0], [1, 0], [0, -1], [0, 1]])
        self._place = np.clip(self._place + moves[action[0]], 0, self._cells - 1)
        self._steps += 1
        there = bool((self._place == self._goal).all())
        reward = -0.05 + (1.0 if there and action[1] == self._wanted else 0.0)
        return self._observe(), reward, there, self._steps >= 30, {}


def main() -> None:
    """Trains, predicts and exports."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output-dir", type=Path, default=Path("runs/delivery"))
    parser.add_argument("--steps", type=int, default=50_000)
    arguments = parser.parse_args()
    common: dict[str, Any] = {"total_timesteps": arguments.steps, "eval": {"interval": 0, "final_episodes": 20}}
    agents = {
        "ppo": PPO(Delivery, num_envs=8, n_steps=64, cnn_features=64, **common),
        "dqn": DQN(Delivery, learning_starts=500, train_freq=4, buffer_size=20_000, **common),
    }
    arguments.output_dir.mkdir(parents=True, exist_ok=True)
    for name, agent in agents.items():
        with agent:
            agent.learn(progress=True)
            assert agent.result is not None
            assert agent.result.evaluation is not None
            print(f"{name}: mean return {agent.result.evaluation.mean_return:.2f} over 20 episodes")
            obs, _ = Delivery().reset(seed=1)
            action, _ = agent.predict(obs)
            print(f"{name}: for the wanted parcel {obs['wanted']} it drives {action[0]} and holds {action[1]}")
            agent.export(arguments.output_dir / f"{name}.safetensors")
    try:
        import onnxruntime
    except ImportError:
        print("for the export to ONNX: pip install 'rl-training[onnx]'")
        return
    path = agents["ppo"].export(arguments.output_dir / "ppo.onnx")
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    entries = {f"obs.{key}": np.asarray(entry)[None] for key, entry in obs.items()}
    found = session.run(["action"], entries)[0][0]
    print(f"onnx: inputs {', '.join(entry.name for entry in session.get_inputs())}; action {found.tolist()}")


if __name__ == "__main__":
    main()
