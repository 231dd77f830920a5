"""``list``, ``show``, ``plot`` and ``bench``: commands that show what there is."""

from __future__ import annotations

import argparse


def list_command(arguments: argparse.Namespace) -> int:
    """Prints the algorithms and the packaged configs."""
    from rl_training.experiment.packaged import packaged_configs
    from rl_training.experiment.registry import algorithms

    print("algorithms:")
    for name, algorithm in algorithms().items():
        spaces = f"{'/'.join(algorithm.observations)} observations, {'/'.join(algorithm.actions)} actions"
        print(f"  {name:<14} {algorithm.summary} ({spaces})")
    print("configs:")
    for name in packaged_configs():
        print(f"  {name}")
    return 0


def show_command(arguments: argparse.Namespace) -> int:
    """Prints a config with every default."""
    from rl_training.experiment.config import load_config_data, resolve_config

    print(resolve_config(load_config_data(arguments.config)).to_yaml(), end="")
    return 0


def plot_command(arguments: argparse.Namespace) -> int:
    """Draws learning curves."""
    from rl_training.runtime.plot import plot_runs

    for label in plot_runs(arguments.paths, arguments.output):
        print(label)
    print(f"written to {arguments.output}")
    return 0


def bench_command(arguments: argparse.Namespace) -> int:
    """Trains configs on several seeds and compares them."""
    from rl_training.bench.command import make_plan, run_bench

    plan = make_plan(
        arguments.configs,
        seeds=arguments.seeds,
        jobs=arguments.jobs,
        runs=arguments.runs,
        references=arguments.references,
        peers=arguments.peers_file,
        results=arguments.results,
        page=arguments.page,
        with_peers=arguments.peers,
        race=arguments.time_to_solve,
    )
    return run_bench(plan, report_only=arguments.report)
