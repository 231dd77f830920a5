"""Draws what a setting changes, from the logs of runs of `rl-training bench`: a panel per metric, a colour per entry.

    rl-training bench drq/pendulum_pixels_v1 drq/pendulum_pixels_v1_no_layer_norm --seeds 3
    python benchmarks/ablation.py drq/pendulum_pixels_v1 drq/pendulum_pixels_v1_no_layer_norm \\
        --names "with layer normalisation" "without" --metrics return_mean critic_loss log_prob_mean \\
        --output docs/charts/drq_layer_norm.svg

A thin line is a seed, a thick one the mean over the seeds that all entries have. `return_mean` is that of the evaluations.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rl_training.bench.charts import figure

TITLES = {
    "return_mean": "return of the greedy policy",
    "critic_loss": "the critic's loss",
    "log_prob_mean": "mean log-probability of the actions",
}


def curve(log: Path, metric: str) -> dict[int, float]:
    """The metric by step: in evaluations the return, all others in training."""
    kind = "eval" if metric == "return_mean" else "train"
    lines = [json.loads(line) for line in log.read_text("utf-8").splitlines()]
    return {line["step"]: line[metric] for line in lines if line["kind"] == kind and metric in line}


def draw(logs: dict[str, list[Path]], metrics: Sequence[str], path: Path) -> None:
    with figure(path, 3.7 * len(metrics), 3.2, ncols=len(metrics)) as (_, axes):
        for axis, metric in zip(axes[0], metrics, strict=True):
            for k, (name, files) in enumerate(logs.items()):
                curves = [curve(file, metric) for file in files]
                for one in curves:
                    axis.plot(list(one), list(one.values()), color=f"C{k}", linewidth=0.7, alpha=0.6)
                steps = sorted(set.intersection(*(set(one) for one in curves)))
                mean: Any = np.mean([[one[step] for step in steps] for one in curves], axis=0)
                axis.plot(steps, mean, color=f"C{k}", linewidth=2, label=name)
            axis.set_title(TITLES.get(metric, metric), fontsize="medium")
            axis.set_xlabel("environment steps")
            axis.grid(alpha=0.3)
        axes[0][0].legend(fontsize="small")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("entries", nargs="+", help="entries of benchmarks/learning.yaml that have been run")
    parser.add_argument("--names", nargs="+", help="their names in the figure")
    parser.add_argument("--metrics", nargs="+", default=["return_mean"])
    parser.add_argument("--runs", type=Path, default=Path("runs/learning"))
    parser.add_argument("--output", type=Path, required=True)
    arguments = parser.parse_args()
    found = {
        entry: {log.parent.name: log for log in (arguments.runs / entry).glob("*/metrics.jsonl")}
        for entry in arguments.entries
    }
    seeds = sorted(set.intersection(*(set(logs) for logs in found.values())))
    if not seeds:
        parser.error(f"no seed in {arguments.runs} has a run of each of {', '.join(found)}")
    names = arguments.names or arguments.entries
    draw(
        {name: [found[entry][seed] for seed in seeds] for name, entry in zip(names, found, strict=True)},
        arguments.metrics,
        arguments.output,
    )


if __name__ == "__main__":
    main()
