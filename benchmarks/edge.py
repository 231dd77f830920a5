"""Shows why value learning falls over on CartPole: what a network believes about the ends of the track, and what is true.

    python benchmarks/edge.py dqn/cartpole --seed 9                                       train, watch and draw
    python benchmarks/edge.py dqn/cartpole --seed 9 --name huber --set algo_kwargs.huber_delta=1.0
    python benchmarks/edge.py --report                                                    only draw what was recorded

Every thousand steps the greedy policy plays episodes beside the run, which this does not change. For every state on the
way there is the value that the network predicts, max Q(s, a), and the discounted return that really follows. The figure of
docs/value_learning.md is drawn from benchmarks/results/edge.json.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from rl_training.algorithms.epsilon_greedy import EpsilonGreedyPolicy
from rl_training.bench.charts import figure
from rl_training.experiment.config import apply_overrides, load_config_data, resolve_config
from rl_training.runtime.hooks import Callback, Training
from rl_training.runtime.trainer import Trainer

RESULTS = Path(__file__).parent / "results" / "edge.json"
FIGURE = Path(__file__).parent.parent / "docs" / "charts" / "value_learning.svg"
EVERY, EPISODES, LIMIT, SEED = 1000, 30, 500, 1_000_000
EDGES = (0.0, 0.3, 0.6, 0.9, 1.2, 1.5, 1.8, 2.1, 2.4)  # of the bins of |x|
Array = NDArray[Any]


def play(policy: EpsilonGreedyPolicy, gamma: float) -> tuple[Array, Array, Array, float]:
    """|x|, the predicted value and the discounted return at every state of greedy episodes, and their mean length."""
    env = gym.make_vec("CartPole-v1", EPISODES, vectorization_mode="vector_entry_point")
    obs, _ = env.reset(seed=SEED)
    places, values, alive = [], [], [np.ones(EPISODES, bool)]
    for _ in range(LIMIT):
        q_values = policy.q(obs)
        places.append(np.abs(obs[:, 0]))
        values.append(q_values.max(axis=1))
        obs, _, terminated, _, _ = env.step(q_values.argmax(axis=1))
        alive.append(alive[-1] & ~terminated)
    env.close()
    there = np.stack(alive[:-1])
    lengths = there.sum(axis=0)
    left = lengths - np.arange(LIMIT)[:, None]
    fell = ~alive[-1]  # episodes that reach the time limit would go on: their return is that of balancing for ever
    returns = np.where(fell, (1 - gamma ** left.clip(0)) / (1 - gamma), 1 / (1 - gamma))
    return np.stack(places)[there], np.stack(values)[there], returns[there], float(lengths.mean())


class Watch(Callback):
    """Plays with the policy at every logged step."""

    def __init__(self) -> None:
        self.records: list[dict[str, Any]] = []

    def on_start(self, training: Training) -> None:
        self._training = training

    def on_update(self, metrics: Mapping[str, float]) -> None:
        policy = self._training.policy
        assert isinstance(policy, EpsilonGreedyPolicy)
        place, value, truth, length = play(policy, self._training.config.algo_kwargs.gamma)
        bins = np.digitize(place, EDGES) - 1
        inside = [bins == k for k in range(len(EDGES) - 1)]
        record = {
            "step": self._training.env_steps,
            "return": length,
            "largest": float(value.max()),
            "predicted": [float(value[where].mean()) if where.any() else None for where in inside],
            "true": [float(truth[where].mean()) if where.any() else None for where in inside],
        }
        self.records.append(record)


def record(config: str, seed: int, overrides: Sequence[str]) -> dict[str, Any]:
    """Trains and returns what was seen on the way."""
    data = apply_overrides(load_config_data(config), [*overrides, f"log.interval={EVERY}", "eval.interval=1000000"])
    watch = Watch()
    with closing(Trainer(resolve_config({**data, "seed": seed}))) as trainer:
        trainer.train(evaluate=False, callbacks=[watch])
    return {"config": config, "seed": seed, "set": [*overrides], "records": watch.records}


def draw(runs: Mapping[str, Mapping[str, Any]], path: Path) -> None:
    """Three panels: the return, the largest predicted value, and prediction and truth along the track at the worst moment."""
    with figure(path, 11, 3.6, ncols=3) as (_, axes):
        left, middle, right = axes[0]
        for k, (name, run) in enumerate(runs.items()):
            records = run["records"]
            steps = [one["step"] for one in records]
            left.plot(steps, [one["return"] for one in records], color=f"C{k}", linewidth=1.4, label=name)
            middle.plot(steps, [one["largest"] for one in records], color=f"C{k}", linewidth=1.4, label=name)
            worst = max(records[len(records) // 2 :], key=lambda one: one["largest"])
            centres = [(low + high) / 2 for low, high in pairwise(EDGES)]
            for key, style in (("predicted", "-"), ("true", ":")):
                seen = [(x, y) for x, y in zip(centres, worst[key], strict=True) if y is not None]
                label = f"{name}: {key}, step {worst['step']}"
                right.plot(*zip(*seen, strict=True), style, marker="o", markersize=3, color=f"C{k}", label=label)
        middle.axhline(50, color="black", linewidth=0.8, linestyle="--", label="largest possible, 1 / (1 - gamma)")
        titles = ("return of the greedy policy", "largest predicted value", "value along the track")
        for axis, title in zip(axes[0], titles, strict=True):
            axis.set_title(title, fontsize="medium")
            axis.set_xlabel("environment steps" if axis is not right else "distance from the middle, |x|")
            axis.grid(alpha=0.3)
            axis.legend(fontsize="x-small")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", nargs="?", help="a packaged config of DQN or its relatives on CartPole")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--name", help="the run's name in the figure (default: the config's)")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="an override for the config")
    parser.add_argument("--report", action="store_true", help="only draw")
    arguments = parser.parse_args()
    runs = json.loads(RESULTS.read_text("utf-8")) if RESULTS.exists() else {}
    if not arguments.report:
        if arguments.config is None:
            parser.error("give a config, or --report")
        runs[arguments.name or arguments.config] = record(arguments.config, arguments.seed, arguments.set)
        RESULTS.write_text(json.dumps(runs) + "\n", "utf-8")
    draw(runs, FIGURE)


if __name__ == "__main__":
    main()
