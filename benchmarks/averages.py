"""Shows what the average of the weights (`average_updates`) changes: the same runs, played with and without it.

    python benchmarks/averages.py r2d2/cartpole_no_velocity --seeds 7400 7401 7402 7403     train, watch and draw
    python benchmarks/averages.py r2d2/cartpole_no_velocity --finished runs/learning       play runs of `rl-training bench`

Training does not notice the average, so one run shows both. At every evaluation, as many episodes are played with each of
them, the same for both. Of finished runs, the last checkpoint is played for 100 episodes. Results are added to
benchmarks/results/averages.json, and what was watched is drawn in docs/charts.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from rl_training.algorithms.policy import Policy
from rl_training.bench.charts import figure
from rl_training.experiment.config import TrainConfig, load_config_data, resolve_config
from rl_training.experiment.layout import CONFIG_FILE, EVALUATION_FILE
from rl_training.experiment.run import step_directories
from rl_training.rng import FINAL_EPISODES
from rl_training.runtime.evaluation import EvaluationResult, evaluate_policy
from rl_training.runtime.hooks import Callback, Training
from rl_training.runtime.setup import make_pool
from rl_training.runtime.trainer import Trainer

RESULTS = Path(__file__).parent / "results" / "averages.json"
CHARTS = Path(__file__).parent.parent / "docs" / "charts"
EPISODES = 100
Curves = dict[str, list[list[float]]]  # of the average, and of the weights themselves: steps and returns


@contextmanager
def without_average(policy: Policy) -> Iterator[None]:
    """The policy plays with the weights themselves."""
    average, policy.average = policy.average, None
    policy.parameters_moved()
    try:
        yield
    finally:
        policy.average = average
        policy.parameters_moved()


class Watch(Callback):
    """At every evaluation, plays as many episodes with the average and with the weights themselves."""

    def __init__(self, config: TrainConfig) -> None:
        self.config = config
        self.curves: Curves = {"average": [], "weights": []}

    def on_start(self, training: Training) -> None:
        self.training = training

    def on_evaluation(self, result: EvaluationResult) -> None:
        policy, episodes = self.training.policy, len(result.returns)
        returns = {}
        with closing(make_pool(self.config, None, FINAL_EPISODES, self.config.eval.num_envs)) as pool:
            returns["average"] = evaluate_policy(policy, pool, episodes)
            with without_average(policy):
                returns["weights"] = evaluate_policy(policy, pool, episodes)
        for name, played in returns.items():
            assert played is not None
            self.curves[name].append([self.training.env_steps, round(played.mean_return, 1)])


def watched(name: str, seed: int) -> Curves:
    """Trains a seed and plays its evaluations with both."""
    data = load_config_data(name)
    protocol = {**(data.get("eval") or {}), "budget": None}
    config = resolve_config({**data, "eval": protocol, "seed": seed, "output_dir": None})
    watch = Watch(config)
    with closing(Trainer(config)) as trainer:
        trainer.train(evaluate=False, callbacks=[watch])
    return watch.curves


def played(run: Path) -> dict[str, float]:
    """The returns of both at the end of a finished run."""
    config = resolve_config({**load_config_data(str(run / CONFIG_FILE)), "output_dir": None})
    returns = {}
    with closing(Trainer(config)) as trainer:
        trainer.checkpoints.restore(step_directories(run)[0], with_replay=False)
        with closing(make_pool(config, None, FINAL_EPISODES, config.eval.num_envs)) as pool:
            returns["average"] = evaluate_policy(trainer.policy, pool, EPISODES)
            with without_average(trainer.policy):
                returns["weights"] = evaluate_policy(trainer.policy, pool, EPISODES)
    return {which: result.mean_return for which, result in returns.items() if result is not None}


def draw(name: str, results: dict[str, Curves]) -> None:
    """A panel for each seed."""
    with figure(
        CHARTS / f"averages_{name.replace('/', '_')}.svg", 2.9 * len(results), 2.8, ncols=len(results), sharey=True
    ) as (_, axes):
        for axis, (seed, curves) in zip(axes[0], sorted(results.items()), strict=True):
            for which, color, width in (("weights", "C1", 0.9), ("average", "C0", 1.8)):
                steps, returns = zip(*curves[which], strict=True)
                axis.plot(steps, returns, color=color, linewidth=width, label=which)
            axis.set_title(f"seed {seed}", fontsize="medium")
            axis.set_xlabel("environment steps")
            axis.grid(alpha=0.3)
        axes[0][0].set_ylabel("return")
        axes[0][0].legend(fontsize="small")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", help="a config with average_updates")
    parser.add_argument("--seeds", type=int, nargs="+", default=[], help="seeds to train and watch")
    parser.add_argument("--finished", type=Path, help="the runs directory of a bench")
    arguments = parser.parse_args()
    name = arguments.config
    results = json.loads(RESULTS.read_text("utf-8")) if RESULTS.exists() else {}
    own = results.setdefault(name, {"watched": {}, "finished": {}})

    def keep(part: str, seed: int, outcome: object) -> None:
        own[part][str(seed)] = outcome
        RESULTS.write_text(json.dumps(results, indent=1, sort_keys=True) + "\n", "utf-8")

    for seed in arguments.seeds:
        keep("watched", seed, watched(name, seed))
    if arguments.finished is not None:
        ended = (arguments.finished / name).glob(f"seed*/{EVALUATION_FILE}")
        runs = {int(file.parent.name.removeprefix("seed")): file.parent for file in ended}
        for seed, run in sorted(runs.items()):
            both = played(run)
            keep("finished", seed, both)
            print(f"seed {seed}: average {both['average']:.1f}, weights {both['weights']:.1f}")
    if own["watched"]:
        draw(name, own["watched"])


if __name__ == "__main__":
    main()
