"""What collecting costs the learner: CPU microseconds of the trainer's own process per step, by kind of collector.

    python benchmarks/scale.py                 # inline and processes
    python benchmarks/scale.py --ray           # and Ray, on an instance of its own

The kinds are measured in turns, several times; the medians go into docs/scale.md. CPU time is that of the trainer's process
alone: the work of collectors elsewhere is not in it, which is the point. The last three tables are in wall time, and mean
something only on a machine with two cores that are otherwise idle.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from statistics import median
from typing import Any

import gymnasium as gym
import numpy as np

from rl_training.bench.document import markdown_table, write_section
from rl_training.bench.machine import machine, today, versions
from rl_training.experiment.config import TrainConfig, resolve_config
from rl_training.runtime.ray_cluster import connected
from rl_training.runtime.trainer import Trainer

PAGE = Path(__file__).parent.parent / "docs" / "scale.md"
ENVS, COLLECTORS, STRETCH = 8, 2, 32
CASES: dict[str, dict[str, Any]] = {
    "inline, step by step": {},
    "inline, in stretches, one collector": {"stretch": STRETCH},
    "inline, in stretches": {"stretch": STRETCH, "count": COLLECTORS},
    "process, lockstep": {"stretch": STRETCH, "count": COLLECTORS, "kind": "process"},
    "process, pipelined": {"stretch": STRETCH, "count": COLLECTORS, "kind": "process", "mode": "pipelined"},
    "ray, lockstep": {"stretch": STRETCH, "count": COLLECTORS, "kind": "ray"},
}
#: The first table also has messages of 256 steps in place of 128.
LONGER: dict[str, dict[str, Any]] = {
    f"{kind}, lockstep, messages of 256 steps": {"stretch": 2 * STRETCH, "count": COLLECTORS, "kind": kind}
    for kind in ("process", "ray")
}
#: Learning and collecting at the same time; one collector, because a learner and two collectors need three cores.
AT_ONCE: dict[str, dict[str, Any]] = {
    "inline, step by step": {},
    "process, pipelined, one collector": {"stretch": STRETCH, "kind": "process", "mode": "pipelined"},
    "process, pipelined": CASES["process, pipelined"],
    "ray, pipelined, one collector": {"stretch": STRETCH, "kind": "ray", "mode": "pipelined"},
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


def without_learning(config: TrainConfig) -> TrainConfig:
    """The same with messages of 256 steps, from which nothing is learned: what is left is the cost of taking them in."""
    data = config.model_dump(mode="json")
    settings = {**data["algo_kwargs"], "learning_starts": config.total_timesteps // 2}
    return config.with_values(algo_kwargs=settings, collectors={**data["collectors"], "stretch": 256 * COLLECTORS // ENVS})


class Sleeping(gym.Env[Any, Any]):
    """A millisecond per step, in which the CPU is free."""

    observation_space = gym.spaces.Box(-1.0, 1.0, (4,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._left = 100
        return np.zeros(4, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        time.sleep(1e-3)
        self._left -= 1
        return np.full(4, self._left / 100, np.float32), 1.0, self._left == 0, False, {}


def sleeping(algo: str, collectors: dict[str, Any]) -> TrainConfig:
    """Eight environments that take a millisecond for each step."""
    settings: dict[str, Any] = {"hidden_sizes": [64, 64]}
    settings |= {"n_steps": STRETCH} if algo == "ppo" else {"train_freq": 32, "learning_starts": 500}
    data = config_of(collectors).model_dump(mode="json")
    return resolve_config({**data, "algo": algo, "algo_kwargs": settings, "env_from_python": True})


class Measured:
    """A run that is measured in parts."""

    def __init__(self, config: TrainConfig, steps: int, clock: Callable[[], float] = time.process_time) -> None:
        factory = Sleeping if config.env_from_python else None
        self._trainer, self._steps, self._clock = Trainer(config, factory=factory), steps, clock
        self._trainer.train(steps, evaluate=False)  # imports, first episodes, a filled replay

    def microseconds(self) -> float:
        """Time per step of another part."""
        begun, at = self._trainer.env_steps, self._clock()
        self._trainer.train(begun + self._steps, evaluate=False)
        return 1e6 * (self._clock() - at) / (self._trainer.env_steps - begun)

    def close(self) -> None:
        self._trainer.close()


def in_turns(runs: dict[str, Measured], repeats: int) -> dict[str, list[float]]:
    """Microseconds per step of each run, several times, measured in turns. The runs are closed then."""
    found: dict[str, list[float]] = {name: [] for name in runs}
    try:
        for _ in range(repeats):
            for name, run in runs.items():
                found[name].append(run.microseconds())
    finally:
        for run in runs.values():
            run.close()
    return found


def table(found: dict[str, list[float]], unit: str) -> str:
    """All of them, beside the first."""
    reference = median(next(iter(found.values())))
    rows = [
        (name, f"{median(values):.1f}", f"{min(values):.1f} to {max(values):.1f}", f"{median(values) / reference:.2f}")
        for name, values in found.items()
    ]
    return markdown_table(("collectors", unit, "all parts", f"of {next(iter(found))}"), rows)


def measured(steps: int, repeats: int, with_ray: bool) -> str:
    """All tables."""
    cases, longer, at_once = (
        {name: case for name, case in group.items() if with_ray or case.get("kind") != "ray"}
        for group in (CASES, LONGER, AT_ONCE)
    )
    away = {name: case for name, case in cases.items() if "kind" in case}
    made = ", ".join(f"{name} {version}" for name, version in versions().items())
    costs = in_turns({name: Measured(config_of(case), steps) for name, case in (cases | longer).items()}, repeats)
    overhead = in_turns({name: Measured(without_learning(config_of(case)), steps) for name, case in away.items()}, repeats)
    runs = {name: Measured(config_of(case), steps, time.perf_counter) for name, case in at_once.items()}
    wall = table(in_turns(runs, repeats), "us per step")
    waiting = []
    for algo in ("dqn", "ppo"):
        slow = {name: case for name, case in cases.items() if "in stretches" not in name}
        if algo == "ppo":
            slow = {name: case for name, case in slow.items() if "pipelined" not in name}
        runs = {f"{algo}, {name}": Measured(sleeping(algo, case), 800, time.perf_counter) for name, case in slow.items()}
        waiting.append(table(in_turns(runs, repeats), "us per step"))
    return (
        f"{table(costs, 'us of CPU per step')}\n\nDQN with prioritised replay on CartPole, two layers of 128, batches of "
        f"128, an update every 32 steps; {ENVS} environments, {COLLECTORS} collectors but where it says one, stretches of "
        f"{STRETCH} and so messages of {STRETCH * ENVS // COLLECTORS} steps but where it says 256; medians of {repeats} "
        f"parts of {steps} steps, measured in turns. {today()}, {made}; {machine()}.\n\n"
        f"Of these, to take in messages of 256 steps (without learning):\n\n{table(overhead, 'us of CPU per step')}\n\n"
        f"The same run as in the first table, in wall time:\n\n{wall}\n\n"
        "An environment that sleeps for a millisecond, in wall time:\n\n" + "\n\n".join(waiting)
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=20_000, help="in each part")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--ray", action="store_true")
    arguments = parser.parse_args()
    with connected(None, num_cpus=2 * COLLECTORS) if arguments.ray else nullcontext():
        text = measured(arguments.steps, arguments.repeats, arguments.ray)
    write_section(PAGE, "costs", text)
    print(text)


if __name__ == "__main__":
    main()
