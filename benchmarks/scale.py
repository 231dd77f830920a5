"""What collecting costs the learner: CPU microseconds of the trainer's own process per step, by kind of collector.

    python benchmarks/scale.py                 # inline and processes
    python benchmarks/scale.py --ray           # and Ray, on an instance of its own

The kinds are measured in turns, several times; the medians go into docs/scale.md. CPU time is that of the trainer's process
alone: the work of collectors elsewhere is not in it, which is the point.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from statistics import median
from typing import Any

from rl_training.bench.document import markdown_table, write_section
from rl_training.bench.machine import machine, today, versions
from rl_training.experiment.config import TrainConfig, resolve_config
from rl_training.runtime.trainer import Trainer

PAGE = Path(__file__).parent.parent / "docs" / "scale.md"
ENVS, COLLECTORS, STRETCH = 8, 2, 32
CASES: dict[str, dict[str, Any]] = {
    "inline, step by step": {},
    "inline, in stretches": {"stretch": STRETCH, "count": COLLECTORS},
    "process, lockstep": {"stretch": STRETCH, "count": COLLECTORS, "kind": "process"},
    "process, pipelined": {"stretch": STRETCH, "count": COLLECTORS, "kind": "process", "mode": "pipelined"},
    "ray, lockstep": {"stretch": STRETCH, "count": COLLECTORS, "kind": "ray"},
}


def config_of(collectors: dict[str, Any]) -> TrainConfig:
    """DQN with prioritised replay: two layers of 128, batches of 128, an update every 32 steps."""
    return resolve_config(
        {
            "algo": "dqn",
            "env_id": "CartPole-v1",
            "num_envs": ENVS,
            "collectors": collectors,
            "compile": "off",
            "eval": {"interval": 0, "final_episodes": 1, "num_envs": 1},
            "log": {"interval": 100_000_000},
            "total_timesteps": 1_000_000,
            "algo_kwargs": {
                "hidden_sizes": [128, 128],
                "batch_size": 128,
                "train_freq": 32,
                "prioritized": True,
                "learning_starts": 500,
                "buffer_size": 100_000,
                "epsilon": 0.1,
            },
        }
    )


class Measured:
    """A run that is measured in parts."""

    def __init__(self, collectors: dict[str, Any], steps: int) -> None:
        self._trainer, self._steps = Trainer(config_of(collectors)), steps
        self._trainer.train(steps, evaluate=False)  # imports, first episodes, a filled replay

    def microseconds(self) -> float:
        """CPU time per step of another part."""
        begun, cpu = self._trainer.env_steps, time.process_time()
        self._trainer.train(begun + self._steps, evaluate=False)
        return 1e6 * (time.process_time() - cpu) / (self._trainer.env_steps - begun)

    def close(self) -> None:
        self._trainer.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=20_000, help="in each part")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--ray", action="store_true")
    arguments = parser.parse_args()
    runs: dict[str, Measured] = {}
    found: dict[str, list[float]] = {}
    try:
        for name, collectors in CASES.items():
            if arguments.ray or collectors.get("kind") != "ray":
                runs[name], found[name] = Measured(collectors, arguments.steps), []
        for _ in range(arguments.repeats):
            for name, run in runs.items():
                found[name].append(run.microseconds())
    finally:
        for run in runs.values():
            run.close()
    reference = median(found["inline, step by step"])
    rows = [
        (name, f"{median(values):.1f}", f"{min(values):.1f} to {max(values):.1f}", f"{median(values) / reference:.2f}")
        for name, values in found.items()
    ]
    table = markdown_table(("collectors", "us of CPU per step", "all parts", "of step by step"), rows)
    made = ", ".join(f"{name} {version}" for name, version in versions().items())
    text = (
        f"{table}\n\nDQN with prioritised replay on CartPole, two layers of 128, batches of 128, an update every 32 steps; "
        f"{ENVS} environments, {COLLECTORS} collectors, stretches of {STRETCH}; medians of {arguments.repeats} parts of "
        f"{arguments.steps} steps, measured in turns. {today()}, {made}; {machine()}."
    )
    write_section(PAGE, "costs", text)
    print(text)


if __name__ == "__main__":
    main()
