"""Small finished runs that fuzzed commands use and damage."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from conftest import tiny_config

from rl_training.runtime.sessions import start_training


@dataclass(frozen=True)
class Prepared:
    """A run, with the shape of its observations and the number of its actions (of dimensions, if they are continuous)."""

    algo: str
    env_id: str
    shape: tuple[int, ...]
    actions: int
    continuous: bool = False
    env_kwargs: dict[str, Any] = field(default_factory=dict)
    algo_kwargs: dict[str, Any] = field(default_factory=dict)


PREPARED = {
    "values": Prepared("dqn", "CartPole-v1", (4,), 2, algo_kwargs={"prioritized": True, "n_step": 3}),
    "continuous": Prepared("sac", "Pendulum-v1", (3,), 1, continuous=True),
    "masked": Prepared("ppo", "rl_training_test_envs:Masked-v0", (1,), 4, algo_kwargs={"normalize_rewards": True}),
    "memory": Prepared("r2d2", "CartPole-v1", (4,), 2, algo_kwargs={"previous_inputs": True}),
    "pictures": Prepared("dqn", "misbehaving_envs:Misbehaving-v0", (1, 4, 4), 3, env_kwargs={"space": "image"}),
}


def prepare(folder: Path) -> dict[str, Path]:
    """Trains all of them."""
    runs = {}
    for name, one in PREPARED.items():
        runs[name] = folder / name
        config = tiny_config(
            one.algo,
            env_id=one.env_id,
            env_kwargs=one.env_kwargs,
            algo_kwargs=one.algo_kwargs,
            total_timesteps=150,
            eval={"interval": 60, "episodes": 1, "final_episodes": 1, "num_envs": 1},
            checkpoint={"interval": 50},
            compile="off",
            output_dir=str(runs[name]),
        )
        trainer = start_training(config, command="test")
        trainer.train()
        trainer.close()
    return runs
