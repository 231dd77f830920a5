"""``list``, ``show``, ``plot``, ``report`` and ``bench``: commands that show what there is."""

from __future__ import annotations

import argparse
import contextlib
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rl_training.errors import ConfigError

if TYPE_CHECKING:
    from rl_training.experiment.registry import AlgorithmClass


def list_command(arguments: argparse.Namespace) -> int:
    """Prints the algorithms and the packaged configs."""
    if arguments.runs is not None:
        return _list_runs(arguments.runs)
    from rl_training.experiment.packaged import about, expectation, packaged_configs
    from rl_training.experiment.registry import algorithms

    print("algorithms:")
    for name, algorithm in algorithms().items():
        spaces = f"{'/'.join(algorithm.observations)} observations, {'/'.join(algorithm.actions)} actions"
        print(f"  {name:<14} {algorithm.summary} ({spaces})")
    print("configs (the return and the time are medians over seeds, measured on two cores: docs/benchmarks.md):")
    for name, file in packaged_configs().items():
        notes = [about(file), _extra_of(name), expectation(name) or "not measured yet"]
        print(f"  {name:<36} {'; '.join(filter(None, notes))}")
    return 0


def _extra_of(config: str) -> str:
    """The extra that a packaged config's environment and wrappers need, for a line of the list."""
    from rl_training.envs.known import extra_of
    from rl_training.experiment.config import load_config_data

    data = load_config_data(config)
    wrappers = {wrapper["name"] for wrapper in data.get("wrappers", ())}
    extra = extra_of(data["env_id"]) or ("pixels" if "pixels" in wrappers else None)
    return "" if extra is None else f"needs rl-training[{extra}]"


def _list_runs(folder: Path) -> int:
    """Prints the runs below a directory: what each is, how far it is and what it has reached."""
    from rl_training.experiment.overview import describe_run, runs_below

    for run in runs_below(folder):
        print(describe_run(run))
    return 0


def show_command(arguments: argparse.Namespace) -> int:
    """Prints a config with every default."""
    from rl_training.experiment.config import load_config_data, resolve_config
    from rl_training.experiment.packaged import packaged_configs
    from rl_training.experiment.registry import find_algorithm

    algorithm = find_algorithm(arguments.config)
    if algorithm is not None and arguments.config not in packaged_configs():
        _print_settings(algorithm)
        return 0
    print(resolve_config(load_config_data(arguments.config)).to_yaml(), end="")
    return 0


def _print_settings(algorithm: AlgorithmClass) -> None:
    """Prints every setting of an algorithm and of a run with its default, range and meaning."""
    from rl_training.experiment.changes import changeable
    from rl_training.experiment.config import TrainConfig
    from rl_training.experiment.settings import groups_of, settings_of

    print(f"{algorithm.name}: {algorithm.summary}\n\nalgo_kwargs:")
    groups = {name: group for name, group in groups_of(TrainConfig).items() if name != "algo_kwargs"}
    for setting in settings_of(algorithm.config_class):
        print(f"  {setting.line()}")
    print("\nof every run:")
    for setting in settings_of(TrainConfig):
        print(f"  {setting.line()}")
    for name, group in groups.items():
        for setting in settings_of(group):
            print(f"  {name}.{setting.line()}")
    print(f"\nwhat resume --set can change: {', '.join(changeable(algorithm.config_class))}")


def plot_command(arguments: argparse.Namespace) -> int:
    """Draws learning curves."""
    from rl_training.runtime.plot import plot_runs

    options = {"metric": arguments.metric, "smooth": arguments.smooth, "title": arguments.title}
    for line in plot_runs(arguments.paths, arguments.output, **options):
        print(line)
    print(f"written to {arguments.output}")
    return 0


def report_command(arguments: argparse.Namespace) -> int:
    """Writes a report on runs as one HTML page."""
    from rl_training.runtime.report import write_report

    with contextlib.ExitStack() as stack:
        video = None
        if arguments.video:
            video = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "episode.gif"
            _film(arguments.paths, video, arguments.trust_modules)
        runs = write_report(arguments.paths, arguments.output, video)
    print(f"{len(runs)} {'run' if len(runs) == 1 else 'runs'} written to {arguments.output}")
    return 0


def _film(paths: Sequence[Path], video: Path, trust_modules: bool) -> None:
    """Films the first episode of an evaluation of the one run among the paths."""
    from rl_training.api import load_agent
    from rl_training.experiment.curves import find_runs

    runs = find_runs(paths)
    if len(runs) > 1:
        raise ConfigError(f"--video is for the report of one run, and these are {len(runs)}; name one of them")
    with load_agent(runs[0], trust_modules=trust_modules) as agent:
        agent.film(video)


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
        missing=arguments.missing,
        ray=arguments.ray,
    )
    return run_bench(plan, report_only=arguments.report)
