"""Shared code of the reference scripts: the whole workflow, from a packaged config to an exported policy."""

from __future__ import annotations

import argparse
from datetime import datetime
from pathlib import Path
from typing import Any

from rl_training import ManagedAlgorithm
from rl_training.envs.factory import RegisteredEnv
from rl_training.envs.wrappers import WrappedEnv

SMOKE: dict[str, Any] = {
    "total_timesteps": 400,
    "eval": {"interval": 0, "final_episodes": 1, "num_envs": 1},
    "checkpoint": {"interval": 0},
    "learning_starts": 50,
    "train_freq": 4,
    "gradient_steps": 2,
}


def run_reference(algorithm: type[ManagedAlgorithm], config: str, description: str | None) -> None:
    """Trains from the config, evaluates, plays one episode in an explicit loop, and exports the policy."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--smoke", action="store_true", help="a tiny run, to check that everything works")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output-dir", type=Path, help="run directory (default: a new one below runs/reference)")
    arguments = parser.parse_args()
    output_dir = arguments.output_dir or Path("runs") / "reference" / f"{config}-{datetime.now():%Y%m%d-%H%M%S}"

    settings = SMOKE if arguments.smoke else {}
    agent = algorithm.from_config(config, seed=arguments.seed, output_dir=str(output_dir), **settings)
    agent.learn(progress=True)
    result = agent.evaluate(episodes=2 if arguments.smoke else 100)
    print(f"greedy return: {result.mean_return:.1f} +- {result.std_return:.1f}")

    env = WrappedEnv(RegisteredEnv(agent.config.env_id, agent.config.env_kwargs), agent.config.wrappers)()
    obs, _ = env.reset(seed=arguments.seed)
    state, reward, total, done = None, None, 0.0, False
    while not done:
        action, state = agent.predict(obs, state, reward=reward)
        obs, reward, terminated, truncated, _ = env.step(action)
        total += float(reward)
        done = terminated or truncated
    print(f"return of one episode: {total:.1f}")

    exported = agent.export(output_dir / "policy.safetensors")
    print(f"run directory: {output_dir}; exported policy: {exported}")
    agent.close()
