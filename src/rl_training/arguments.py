"""The arguments of the command line."""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rl_training.version import __version__


def make_parser() -> argparse.ArgumentParser:
    """The parser; ``command`` is the name of the chosen command."""
    parser = argparse.ArgumentParser(
        prog="rl-training",
        description="Train, evaluate, resume, use and export reinforcement-learning agents.",
        epilog="examples:\n  rl-training train --config dqn/cartpole\n  rl-training list\n  rl-training train --help",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"rl-training {__version__}")
    parser.set_defaults(command=None)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    _add_train(commands)
    _add_resume(commands)
    _add_eval(commands)
    _add_predict(commands)
    _add_export(commands)
    _add_list_show_plot(commands)
    _add_report(commands)
    _add_bench(commands)
    _add_tune(commands)
    return parser


def _command(commands: Any, name: str, summary: str, examples: Sequence[str]) -> argparse.ArgumentParser:
    lines = "\n".join(f"  rl-training {name} {example}".rstrip() for example in examples)
    parser: argparse.ArgumentParser = commands.add_parser(
        name,
        help=summary,
        description=summary,
        epilog=f"examples:\n{lines}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(command=name)
    parser.add_argument("--debug", action="store_true", help="show the whole traceback of an error")
    return parser


def _add_train(commands: Any) -> None:
    examples = (
        "--config dqn/cartpole",
        "--config my.yaml --seed 3 --output-dir runs/mine",
        "--algo dqn --env CartPole-v1 --set algo_kwargs.batch_size=128",
        "--algo ppo --env my_env.py:MyEnv",
        "--config dqn/cartpole --output-dir runs/mine --overwrite",
        "--config dqn/cartpole --init-from runs/mine/checkpoints/best --output-dir runs/finer",
    )
    train = _command(commands, "train", "train an agent from a config or from scratch", examples)
    train.add_argument("--config", metavar="NAME_OR_PATH", help="a packaged config (see `list`) or a YAML file")
    train.add_argument("--algo", help="algorithm (see `list`), or module:Class")
    train.add_argument("--env", metavar="ID", help="Gymnasium id, module:id, module:Class or file.py:Class")
    train.add_argument("--seed", help="random seed of the whole run")
    train.add_argument("--total-timesteps", metavar="N", help="total number of environment steps, such as 1e6")
    train.add_argument("--output-dir", metavar="DIR", help="run directory (default: runs/<algo>-<env>-seed<seed>)")
    train.add_argument("--device", help="cpu, cuda, cuda:0, mps, or auto: the best there is")
    train.add_argument("--overwrite", action="store_true", help="replace the run that is in the output directory")
    train.add_argument(
        "--init-from",
        type=Path,
        metavar="RUN",
        help="start from the weights of a run or checkpoint of this algorithm; its environment may differ, not its spaces",
    )
    _add_set(train, "override any setting; may be repeated")
    train.add_argument("--quiet", action="store_true", help="do not show progress")


def _add_resume(commands: Any) -> None:
    examples = (
        "runs/mine",
        "runs/mine --total-timesteps 100000",
        "runs/mine --set algo_kwargs.learning_rate=1e-4 --set eval.interval=2000",
    )
    resume = _command(commands, "resume", "continue a stopped run, bit for bit", examples)
    _add_run(resume)
    resume.add_argument("--total-timesteps", type=_positive, metavar="N", help="continue until N steps in total")
    _add_set(resume, "change a setting on the way, which is recorded; may be repeated (`show ALGO` lists what can change)")
    resume.add_argument("--quiet", action="store_true", help="do not show progress")


def _add_eval(commands: Any) -> None:
    examples = (
        "runs/mine",
        "runs/mine --episodes 100 --json",
        "runs/mine/checkpoints/best",
        "runs/mine --episodes 1 --seed 7 --video episode.gif",
        "runs/mine --episodes 3 --render",
    )
    evaluate = _command(commands, "eval", "evaluate a policy over whole episodes", examples)
    _add_run(evaluate)
    evaluate.add_argument("--episodes", type=_positive, default=20, metavar="N", help="number of episodes (default 20)")
    evaluate.add_argument(
        "--max-episode-steps",
        type=_positive,
        metavar="N",
        help="stop each episode after N steps (default: the run's eval.max_episode_steps)",
    )
    evaluate.add_argument("--json", action="store_true", help="print the result as one JSON object")
    evaluate.add_argument(
        "--seed", type=_count, metavar="N", help="evaluate on the episodes of this seed (default: the run's)"
    )
    evaluate.add_argument("--stochastic", action="store_true", help="explore as in training instead of acting greedily")
    evaluate.add_argument("--render", action="store_true", help="show the episodes on the screen, one after the other")
    evaluate.add_argument("--video", type=Path, metavar="FILE", help="record the first episode as a .gif or .mp4")


def _add_predict(commands: Any) -> None:
    examples = (
        "runs/mine --obs '[0.0, 0.1, 0.0, -0.1]'",
        "runs/mine --obs observations.jsonl",
        "runs/mine < lines.jsonl",
    )
    predict = _command(commands, "predict", "print the action for each observation", examples)
    _add_run(predict)
    predict.add_argument(
        "--obs",
        metavar="JSON_OR_FILE",
        help='one observation as JSON, or an object with "obs" and optionally "action_mask", "reward" (of the previous '
        'action) and "episode_start" (true resets the memory); or a file with one of these per line; default: stdin',
    )


def _add_export(commands: Any) -> None:
    examples = ("runs/mine --format onnx", "runs/mine --output policy.safetensors")
    export = _command(commands, "export", "export a policy for use in other programs, and verify it", examples)
    _add_run(export)
    export.add_argument("--format", choices=("onnx", "safetensors"), help="default: by the name of the output, or onnx")
    help_output = "default: policy.<format> in the current directory; a description is written beside it, as FILE.json"
    export.add_argument("--output", type=Path, metavar="FILE", help=help_output)


def _add_list_show_plot(commands: Any) -> None:
    summary = "list the algorithms and the packaged configs, or the runs below a directory"
    listing = _command(commands, "list", summary, ("", "--runs runs"))
    listing.add_argument("--runs", type=Path, metavar="DIR", help="instead, list the runs below this directory")
    summary = "print a config with every default spelled out, or every setting of an algorithm with its meaning"
    show = _command(commands, "show", summary, ("dqn/cartpole", "dqn"))
    show.add_argument("config", metavar="CONFIG", help="a packaged config, a YAML file or an algorithm")
    examples = ("runs/mine", "runs --output curves.png", "runs/a runs/b --metric loss --smooth 10")
    summary = "plot learning curves; runs that differ only in their seed become a mean with a band"
    plot = _command(commands, "plot", summary, examples)
    plot.add_argument(
        "paths", type=Path, nargs="+", metavar="RUN", help="run directories, or directories with runs below them"
    )
    plot.add_argument(
        "--metric",
        default="return",
        metavar="NAME",
        help="what to plot, such as loss, train/return_mean or time/steps_per_second (default: the return in evaluations, or "
        "in training if there are fewer than three)",
    )
    plot.add_argument("--smooth", type=_positive, default=1, metavar="N", help="average each point with the N - 1 before it")
    plot.add_argument("--title", help="default: what the runs have in common")
    plot.set_defaults(trust_modules=False)
    plot.add_argument(
        "--output",
        type=Path,
        default=Path("learning_curves.png"),
        metavar="PNG",
        help="or .svg, .pdf; default: learning_curves.png",
    )


def _add_report(commands: Any) -> None:
    summary = "write a report on runs as one HTML page with curves, settings and tables, readable offline"
    report = _command(commands, "report", summary, ("runs/mine", "runs --output report.html"))
    report.add_argument(
        "paths", type=Path, nargs="+", metavar="RUN", help="run directories, or directories with runs below them"
    )
    report.add_argument("--video", action="store_true", help="also film an episode of a single run, in its environment")
    _add_trust(report)
    report.add_argument("--output", type=Path, default=Path("report.html"), metavar="HTML", help="default: report.html")


def _add_bench(commands: Any) -> None:
    examples = (
        "dqn/cartpole ppo/cartpole --seeds 5 --jobs 2",
        "",
        "--missing",
        "--peers",
        "--time-to-solve",
        "--report",
        "--ray auto",
    )
    summary = "train configs on several seeds and compare them with references and peers; finished runs are not repeated"
    bench = _command(commands, "bench", summary, examples)
    bench.add_argument(
        "configs", nargs="*", metavar="CONFIG", help="packaged configs or YAML files (default: all in the references file)"
    )
    bench.add_argument(
        "--seeds",
        type=_positive,
        metavar="N",
        help="N seeds, from 0 or first_seed (default: as in the references, or 5; peers: the first 5 of these; "
        "races: 10, from 8000)",
    )
    bench.add_argument("--jobs", type=_positive, metavar="N", help="parallel processes (default 2; 1 with --time-to-solve)")
    _add_ray(bench, "; then --jobs is by default as many as there are CPUs for")
    bench.add_argument("--peers", action="store_true", help="also train Stable-Baselines3 and sb3-contrib on the same budget")
    bench.add_argument("--time-to-solve", action="store_true", help="instead, race the peers until a task is solved")
    extent = bench.add_mutually_exclusive_group()
    extent.add_argument(
        "--missing", action="store_true", help="leave out runs that are already recorded with the present settings"
    )
    extent.add_argument("--report", action="store_true", help="train nothing; only write the tables and curves again")
    bench.add_argument("--runs", type=Path, default=Path("runs/learning"), metavar="DIR", help="default: runs/learning")
    places = "default: the repository's own; outside it,"
    bench.add_argument("--references", type=Path, metavar="YAML", help=f"the returns to reach ({places} none)")
    bench.add_argument("--peers-file", type=Path, metavar="YAML", help=f"the peers' settings ({places} none)")
    bench.add_argument("--results", type=Path, metavar="DIR", help=f"results as JSON ({places} the runs directory)")
    bench.add_argument("--page", type=Path, metavar="MD", help=f"tables and curves ({places} a page in the runs directory)")


def _add_ray(command: argparse.ArgumentParser, further: str) -> None:
    where = "run on a Ray cluster: auto for the one on this machine, or host:port (without ADDRESS: start one here)"
    command.add_argument("--ray", nargs="?", const="local", metavar="ADDRESS", help=f"{where}{further}")


def _add_tune(commands: Any) -> None:
    examples = (
        "dqn/cartpole --trials 30 --jobs 2",
        "mine.yaml --seeds 3 --pruner hyperband",
        "mine.yaml --jobs 16 --ray auto",
        "ppo/acrobot --set total_timesteps=50000 --output-dir runs/tuned",
    )
    summary = (
        "search for settings with Optuna, in the ranges that the config gives under 'tune' or else in the algorithm's own, "
        "and confirm the best on fresh seeds; the same command continues a tune that was stopped"
    )
    tune = _command(commands, "tune", summary, examples)
    tune.add_argument("config", metavar="CONFIG", help="a packaged config or a YAML file")
    tune.add_argument("--trials", type=_positive, default=50, metavar="N", help="settings to try, in all (default 50)")
    tune.add_argument("--seeds", type=_positive, default=1, metavar="K", help="runs of each trial (default 1)")
    tune.add_argument("--jobs", type=_positive, default=2, metavar="N", help="parallel processes (default 2)")
    _add_ray(tune, "")
    tune.add_argument(
        "--pruner", choices=("median", "hyperband", "none"), default="median", help="which trials end early (default median)"
    )
    tune.add_argument(
        "--finalists",
        type=_count,
        default=3,
        metavar="N",
        help="best trials that further seeds decide between (default 3)",
    )
    tune.add_argument("--confirm", type=_count, default=5, metavar="N", help="fresh seeds for the best settings (default 5)")
    tune.add_argument("--output-dir", type=Path, metavar="DIR", help="default: runs/tune-<algo>-<env>")
    _add_set(tune, "override a setting of the config; may be repeated")


def _add_set(parser: argparse.ArgumentParser, meaning: str) -> None:
    parser.add_argument("--set", dest="overrides", metavar="KEY=VALUE", action="append", default=[], help=meaning)


def _add_run(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("path", type=Path, metavar="RUN", help="a run directory or a checkpoint")
    _add_trust(parser)


def _add_trust(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--trust-env-module",
        dest="trust_modules",
        action="store_true",
        help="import the module that the run names for its environment, wrappers, network or algorithm from wherever "
        "Python finds it, also from the current directory; by default only from installed packages and PYTHONPATH",
    )


def _positive(text: str) -> int:
    return _at_least(1, text)


def _count(text: str) -> int:
    return _at_least(0, text)


def _at_least(least: int, text: str) -> int:
    """A whole number, which may be written as 1e6."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not value.is_integer():
        raise argparse.ArgumentTypeError(f"must be a whole number, such as 20000 or 2e4, not {text!r}")
    if value < least:
        raise argparse.ArgumentTypeError(f"must be at least {least}, not {text}")
    return int(value) if "e" in text.lower() or "." in text else int(text)
