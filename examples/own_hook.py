"""A hook of your own: stop when evaluations no longer improve, and look at every episode.

python examples/own_hook.py            about half a minute
python examples/own_hook.py --steps 500    a tiny run, a few seconds

A hook is an object with some of the methods of ``rl_training.Callback``; it need not inherit from it. A method that returns a
text asks to stop. With ``state_dict`` and ``load_state_dict`` a hook is part of every checkpoint, so that a run which was
stopped or killed goes on exactly as if nothing had happened.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

from rl_training import DQN, Callback
from rl_training.envs.pool import Episode
from rl_training.runtime.evaluation import EvaluationResult
from rl_training.runtime.hooks import Training


class Patience(Callback):
    """Asks to stop after several evaluations without a new best return."""

    def __init__(self, evaluations: int) -> None:
        self.evaluations = evaluations
        self.best = float("-inf")
        self.without = 0

    def on_evaluation(self, result: EvaluationResult) -> str | None:
        self.without = 0 if result.mean_return > self.best else self.without + 1
        self.best = max(self.best, result.mean_return)
        if self.without < self.evaluations:
            return None
        return f"{self.without} evaluations in a row were not better than {self.best:.1f}"

    def state_dict(self) -> dict[str, Any]:
        return {"best": self.best, "without": self.without}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.best, self.without = state["best"], state["without"]


class Longest:
    """Remembers the longest episode. A plain class with the two methods that it needs."""

    def on_start(self, training: Training) -> None:
        self.training = training  # can be read at any time: steps, policy, config, run directory
        self.length = 0

    def on_episode(self, episode: Episode) -> None:
        if episode.length > self.length:
            self.length = episode.length
            print(f"step {self.training.env_steps}: an episode of {episode.length} steps")


def main() -> None:
    """Trains in two parts with the same hooks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=20_000, help="env steps of training, if nothing stops it")
    arguments = parser.parse_args()

    settings: dict[str, Any] = {
        "learning_rate": 1e-3,
        "batch_size": 128,
        "learning_starts": 200,
        "train_freq": 16,
        "gradient_steps": 8,
        "target_update_interval": 50,
        "exploration_steps": 5_000,
        "eval": {"interval": arguments.steps // 20, "episodes": 5, "final_episodes": 10},
    }
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        with DQN("CartPole-v1", output_dir=str(run), total_timesteps=arguments.steps, **settings) as agent:
            agent.learn(arguments.steps // 4, callbacks=[Patience(5), Longest()])
        with DQN.resume(run) as agent:  # Patience continues to count where it was
            agent.learn(arguments.steps, callbacks=[patience := Patience(5), Longest()])
            result = agent.result
            assert result is not None
            assert result.evaluation is not None
            print(f"stopped at step {result.env_steps}: {result.stopped_by or 'all steps are done'}")
            print(f"best evaluation: {patience.best:.1f}")
            print(f"return: {result.evaluation.mean_return:.1f} +- {result.evaluation.std_return:.1f}")


if __name__ == "__main__":
    main()
