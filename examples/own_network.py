"""A network of your own for DQN on CartPole-v1: train, save, load, export.

python examples/own_network.py            about a minute
python examples/own_network.py --steps 500    a tiny run, a few seconds

You write the part that turns observations into features; rl_training adds the head, so that dueling, noisy layers, action
masks, LSTMs, compiled updates, export and exact resume work with it. Every algorithm takes a network in this way. For PPO and
SAC the function may return two modules, (actor, critic).
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import torch
from torch import Tensor, nn

from rl_training import DQN
from rl_training.types import ObservationSpec


class ResidualTrunk(nn.Module):
    """(batch, numbers) -> (batch, out_features). Initialise it as you like: torch's generator is seeded for you."""

    def __init__(self, inputs: int, width: int, blocks: int) -> None:
        super().__init__()
        self.out_features = width
        self.first = nn.Linear(inputs, width)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.SiLU(), nn.Linear(width, width))
            for _ in range(blocks)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = x + block(x)
        return torch.relu(x)


def make_trunk(spec: ObservationSpec, width: int = 64, blocks: int = 1) -> nn.Module:
    """``spec`` describes the observations: here a vector of ``spec.shape[0]`` numbers."""
    return ResidualTrunk(spec.shape[0], width, blocks)


def main() -> None:
    """Trains, evaluates, saves, loads and exports."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=20_000, help="env steps of training")
    arguments = parser.parse_args()

    agent = DQN(
        "CartPole-v1",
        network=make_trunk,
        network_kwargs={"width": 64},
        hidden_sizes=[64],  # the layers of the head, after your network; [] for none
        dueling=True,
        learning_rate={"kind": "cosine", "from": 2e-3, "to": 1e-5, "steps": 20_000},
        optimizer="adamw",
        normalize_observations=True,
        double=True,
        batch_size=128,
        learning_starts=200,
        train_freq=16,
        gradient_steps=8,
        target_update_interval=50,
        exploration_steps=5_000,
        eval={"interval": 0, "final_episodes": 10},
    )
    agent.learn(arguments.steps)
    result = agent.evaluate(episodes=20)
    print(f"return: {result.mean_return:.1f} +- {result.std_return:.1f}")

    with tempfile.TemporaryDirectory() as folder:
        agent.save(Path(folder) / "agent")
        # This function is in a script, which no other program can import, so loading needs it again. Put it into a module,
        # and a config can name it too (algo_kwargs: {network: "my_package.nets:make_trunk", network_kwargs: {width: 64}});
        # loading, resuming and the command line then find it by that name.
        loaded = DQN.load(Path(folder) / "agent", network=make_trunk)
        obs = [0.0, 0.1, 0.0, -0.1]
        print(f"action: {agent.predict(obs)[0]}, of the loaded agent: {loaded.predict(obs)[0]}")
        exported = loaded.export(Path(folder) / "policy.safetensors")
        print(f"exported: {exported.name}, {exported.stat().st_size} bytes")


if __name__ == "__main__":
    main()
