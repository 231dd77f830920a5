"""Draws what a setting changes, from the logs of runs of `rl-training bench`: a panel per metric, a colour per entry.

    rl-training bench drq/pendulum_pixels_v1 drq/pendulum_pixels_v1_no_layer_norm --seeds 3
    python benchmarks/ablation.py drq/pendulum_pixels_v1 drq/pendulum_pixels_v1_no_layer_norm \\
        --names "with layer normalisation" "without" --metrics return_mean critic_loss log_prob_mean \\
        --output docs/charts/drq_layer_norm.svg

A thin line is a seed, a thick one the mean over the seeds that all entries have. `return_mean` is that of the evaluations.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from pathlib import Path

from rl_training.bench.charts import figure
from rl_training.experiment.layout import EVALUATION_FILE
from rl_training.experiment.metrics import read_metrics

TITLES = {
    "return_mean": "return of the greedy policy",
    "critic_loss": "the critic's loss",
    "log_prob_mean": "mean log-probability of the actions",
}


def finished(folder: Path) -> dict[str, Path]:
    """The runs of an entry that have been evaluated at their end, by seed."""
    return {file.parent.name: file.parent for file in folder.glob(f"*/{EVALUATION_FILE}")}


def curve(run: Path, metric: str) -> dict[int, float]:
    """The metric by step: in evaluations the return, all others in training. What was not finite is not a number."""
    records = read_metrics(run, "eval" if metric == "return_mean" else "train")
    return {one["step"]: math.nan if one[metric] is None else one[metric] for one in records if metric in one}


def mean_of(curves: Sequence[dict[int, float]]) -> dict[int, float]:
    """The mean at the steps that all curves have."""
    steps = sorted(set.intersection(*(set(one) for one in curves)))
    return {step: sum(one[step] for one in curves) / len(curves) for step in steps}


def draw(drawn: dict[str, dict[str, list[dict[int, float]]]], path: Path) -> None:
    """A panel for each metric, with the curves of each name."""
    with figure(path, 3.7 * len(drawn), 3.2, ncols=len(drawn)) as (_, axes):
        for axis, (metric, entries) in zip(axes[0], drawn.items(), strict=True):
            for k, (name, curves) in enumerate(entries.items()):
                for one in curves:
                    axis.plot(list(one), list(one.values()), color=f"C{k}", linewidth=0.7, alpha=0.6)
                mean = mean_of(curves)
                axis.plot(list(mean), list(mean.values()), color=f"C{k}", linewidth=2, label=name)
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
    names = arguments.names or arguments.entries
    if len(set(names)) < len(names) or len(names) != len(arguments.entries):
        parser.error("--names needs a different name for each entry")
    found = {entry: finished(arguments.runs / entry) for entry in arguments.entries}
    seeds = sorted(set.intersection(*(set(runs) for runs in found.values())))
    if not seeds:
        parser.error(f"no seed in {arguments.runs} has a finished run of each of {', '.join(found)}")
    drawn = {
        metric: {
            name: [curve(runs[seed], metric) for seed in seeds] for name, runs in zip(names, found.values(), strict=True)
        }
        for metric in arguments.metrics
    }
    for metric, entries in drawn.items():
        if not all(map(all, entries.values())):
            parser.error(f"the logs have no {metric}")
    draw(drawn, arguments.output)


if __name__ == "__main__":
    main()
