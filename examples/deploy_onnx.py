"""Deployment: train here, act there. The policy is one ONNX file, and what uses it needs onnxruntime and numpy, but neither
torch nor rl_training.

    python examples/deploy_onnx.py train policy.onnx        about a minute
    python examples/deploy_onnx.py play policy.onnx         on any machine with onnxruntime and the environment

Exporting needs the extra: pip install 'rl-training[onnx]'.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import gymnasium as gym
import numpy as np

ENV_ID = "CartPole-v1"


def train(path: Path, steps: int) -> None:
    """Trains a policy and writes it. The export is verified: both give the same actions for random observations."""
    from rl_training import DQN

    agent = DQN.from_config("dqn/cartpole", seed=1)
    agent.learn(steps)
    print(f"exported: {agent.export(path)}, with its description in {path.name}.json")


def play(path: Path, episodes: int) -> None:
    """Acts in the environment with the exported policy."""
    import onnxruntime

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    about = json.loads(session.get_modelmeta().custom_metadata_map["rl_training"])  # what it is, its inputs and outputs
    print(f"policy: {about['algorithm']} for {about['env_id']}, inputs {about['inputs']}")
    env = gym.make(ENV_ID)
    returns = []
    for seed in range(episodes):
        obs, _ = env.reset(seed=seed)
        total, over = 0.0, False
        while not over:
            batch = np.asarray(obs, np.float32)[None]  # one observation; many at once are as easy
            action = session.run(["action"], {"obs": batch})[0][0]
            obs, reward, terminated, truncated, _ = env.step(action)
            total, over = total + float(reward), terminated or truncated
        returns.append(total)
    print(f"return: {np.mean(returns):.1f} over {episodes} episodes")


def main() -> None:
    """Trains or plays."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("train", "play"))
    parser.add_argument("policy", type=Path, help="the ONNX file")
    parser.add_argument("--steps", type=int, default=20_000, help="env steps of training")
    parser.add_argument("--episodes", type=int, default=10, help="episodes to play")
    arguments = parser.parse_args()
    if arguments.command == "train":
        train(arguments.policy, arguments.steps)
    else:
        play(arguments.policy, arguments.episodes)


if __name__ == "__main__":
    main()
