"""Writes ``tests/golden/<version>/<algorithm>``: a small run of every algorithm, as this release writes it.

    python tests/make_golden.py

Later versions must load, resume, evaluate and export these runs (``test_golden.py``). A release adds its own and never
changes those of an earlier one.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from conftest import ALGORITHMS, settings_of, tiny_config

import rl_training
from rl_training.api import load_agent
from rl_training.experiment.run import step_directories
from rl_training.runtime.export import random_observations
from rl_training.runtime.sessions import start_training

GOLDEN = Path(__file__).parent / "golden"
SMALL: dict[str, Any] = {
    "hidden_sizes": [4],
    "encoder_sizes": [4],
    "lstm_size": 4,
    "lstm_layers": 1,
    "cnn_features": 4,
    "cnn_layers": [[2, 3, 2]],
    "buffer_size": 60,
    "batch_size": 4,
    "sequence_length": 4,
    "learning_starts": 20,
    "n_step": 2,
}


def main() -> None:
    """Makes the runs of this version that are not there yet."""
    for algo in ALGORITHMS:
        run = GOLDEN / rl_training.__version__ / algo
        if run.exists():
            continue
        config = tiny_config(
            algo,
            num_envs=2,
            total_timesteps=80,
            eval={"interval": 40, "episodes": 1, "final_episodes": 1, "num_envs": 1},
            checkpoint={"interval": 0},
            algo_kwargs=settings_of(algo, SMALL),
            output_dir=str(run),
        )
        trainer = start_training(config, command="python tests/make_golden.py")
        trainer.train(70)  # in the middle of episodes and of a rollout
        trainer.close()
        (run / ".lock").unlink()
        shutil.rmtree(run / "tensorboard", ignore_errors=True)
        agent = load_agent(run)
        actions, _ = agent.predict(random_observations(agent.policy.spec, 30))
        (run / "expected_actions.json").write_text(json.dumps(actions.tolist()) + "\n", "utf-8")
        assert len(step_directories(run)) == 1


if __name__ == "__main__":
    main()
