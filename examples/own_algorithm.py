"""An algorithm of your own: DeepMellow on CartPole-v1, from its target to an agent that trains, resumes and is exported.

python examples/own_algorithm.py            about half a minute
python examples/own_algorithm.py --steps 500    a tiny run, a few seconds

DeepMellow (Kim et al. 2019, doi:10.24963/ijcai.2019/379) is DQN with a softer maximum in its target. That is all there is to
write: the settings, the loss and a class that declares itself. Replay, exploration, target network, logging, checkpoints,
exact resume, compiled updates and export come with the base class. CONTRIBUTING.md lists the other base classes.
"""

from __future__ import annotations

import argparse
import math
import tempfile
from pathlib import Path
from typing import Any

import torch
from pydantic import Field
from torch import Tensor

from rl_training import managed
from rl_training.algorithms.config import PositiveNumber
from rl_training.algorithms.dqn import dqn_loss
from rl_training.algorithms.epsilon_greedy import EpsilonGreedyPolicy
from rl_training.algorithms.q_values import Values, allowed
from rl_training.algorithms.update import NOTHING, Known
from rl_training.algorithms.value import LossOutput, ValueAlgorithm, ValueConfig, make_body
from rl_training.models import QNetwork
from rl_training.types import SpaceSpec, TransitionBatch


class DeepMellowConfig(ValueConfig):
    """The settings of DQN, and one more. Each has a range, which is checked, and a description, which is shown."""

    omega: PositiveNumber = Field(10.0, description="temperature of the mellowmax; the larger, the closer to the maximum")


def mellowmax(q_values: Tensor, omega: float) -> Tensor:
    """log(mean(exp(omega * q))) / omega over the actions, (batch, action) -> (batch,); minus infinity is left out."""
    count = torch.isfinite(q_values).sum(dim=1)
    return (torch.logsumexp(omega * q_values, dim=1) - count.log()) / omega


class DeepMellow(ValueAlgorithm[DeepMellowConfig]):
    """DQN that bootstraps from the mellowmax of the next Q-values."""

    name = "deep_mellow"
    summary = "DQN with the mellowmax in its target"

    @classmethod
    def make_policy(cls, config: DeepMellowConfig, spec: SpaceSpec, generator: torch.Generator) -> EpsilonGreedyPolicy:
        return EpsilonGreedyPolicy(QNetwork(*make_body(config, spec, generator)), spec, config, noisy=config.noisy)

    def loss(self, online: Values, target: Values, batch: TransitionBatch, known: Known = NOTHING) -> LossOutput:
        with torch.no_grad():
            next_value = mellowmax(allowed(target(batch.next_obs), batch), self.config.omega)
        return dqn_loss(online(batch.obs), batch.action, batch.reward, batch.discount, next_value)


def main() -> None:
    """Trains in two parts, evaluates and exports."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=20_000, help="env steps of training")
    arguments = parser.parse_args()

    # Check the formula first: the mean of exp(0) and exp(log 3) is 2.
    assert math.isclose(mellowmax(torch.tensor([[0.0, math.log(3.0)]]), 1.0).item(), math.log(2.0), rel_tol=1e-6)

    agent_class = managed(DeepMellow)  # like rl_training.DQN
    settings: dict[str, Any] = {
        "omega": 5.0,
        "learning_rate": 1e-3,
        "batch_size": 128,
        "learning_starts": 200,
        "train_freq": 16,
        "gradient_steps": 8,
        "target_update_interval": 50,
        "exploration_steps": 5_000,
        "eval": {"interval": 0, "final_episodes": 10},
    }
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        half = arguments.steps // 2
        with agent_class("CartPole-v1", output_dir=str(run), total_timesteps=arguments.steps, **settings) as agent:
            agent.learn(half)
        with agent_class.resume(run) as agent:  # continues exactly where it stopped, here or in another process
            agent.learn(arguments.steps)
            result = agent.evaluate(episodes=20)
            print(f"return: {result.mean_return:.1f} +- {result.std_return:.1f}")
            exported = agent.export(Path(folder) / "policy.safetensors")
            print(f"exported: {exported.name}, {exported.stat().st_size} bytes")
    # If it is in a module of your own, the command line can use it too:
    # rl-training train --algo my_package.algos:DeepMellow --env CartPole-v1


if __name__ == "__main__":
    main()
