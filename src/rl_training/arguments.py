"""The arguments of the command line."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def make_parser() -> argparse.ArgumentParser:
    """The parser; ``command`` is the name of the chosen command."""
    parser = argparse.ArgumentParser(
        prog="rl-training",
        description="Train, evaluate, resume, use and export reinforcement-learning agents.",
        epilog="examples:\n  rl-training train --config dqn/cartpole\n  rl-training list\n  rl-training train --help",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    _add_train(commands)
    _add_resume(commands)
    _add_eval(commands)
    _add_predict(commands)
    _add_export(commands)
    _add_list_show_plot(commands)
    _add_bench(commands)
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
    return parser


def _add_train(commands: Any) -> None:
    examples = (
        "--config dqn/cartpole",
        "--config my.yaml --seed 3 --output-dir runs/mine",
        "--algo dqn --env CartPole-v1 --set algo_kwargs.batch_size=128",
    )
    train = _command(commands, "train", "train an agent from a config or from scratch", examples)
    train.add_argument("--config", metavar="NAME_OR_PATH", help="a packaged config (see `list`) or a YAML file")
    train.add_argument("--algo", help="algorithm (see `list`)")
    train.add_argument("--env", metavar="ID", help="Gymnasium id, or module:id")
    train.add_argument("--seed", help="random seed of the whole run")
    train.add_argument("--total-timesteps", metavar="N", help="total number of environment steps")
    train.add_argument("--output-dir", metavar="DIR", help="run directory (default: runs/<algo>-<env>-seed<seed>)")
    train.add_argument("--device", help="cpu, cuda, cuda:0, mps")
    train.add_argument(
        "--set",
        dest="overrides",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        help="override any setting; may be repeated",
    )
    train.add_argument("--quiet", action="store_true", help="do not show progress")


def _add_resume(commands: Any) -> None:
    examples = ("runs/mine", "runs/mine --total-timesteps 100000")
    resume = _command(commands, "resume", "continue a stopped run, bit for bit", examples)
    resume.add_argument("path", type=Path, metavar="RUN", help="a run directory, or a checkpoint in one")
    resume.add_argument("--total-timesteps", type=int, metavar="N", help="continue until N steps in total")
    _add_trust(resume)
    resume.add_argument("--quiet", action="store_true", help="do not show progress")


def _add_eval(commands: Any) -> None:
    examples = (
        "runs/mine",
        "runs/mine --episodes 100 --json",
        "runs/mine/checkpoints/best",
        "runs/mine --episodes 1 --video episode.gif",
    )
    evaluate = _command(commands, "eval", "evaluate a policy over whole episodes", examples)
    evaluate.add_argument("path", type=Path, metavar="RUN", help="a run directory or a checkpoint")
    evaluate.add_argument("--episodes", type=_positive, default=20, metavar="N", help="number of episodes (default 20)")
    evaluate.add_argument(
        "--max-episode-steps",
        type=_positive,
        metavar="N",
        help="stop each episode after N steps (default: the run's eval.max_episode_steps)",
    )
    _add_trust(evaluate)
    evaluate.add_argument("--json", action="store_true", help="print the result as one JSON object")
    evaluate.add_argument("--video", type=Path, metavar="FILE", help="record the first episode as a .gif or .mp4")


def _add_predict(commands: Any) -> None:
    examples = (
        "runs/mine --obs '[0.0, 0.1, 0.0, -0.1]'",
        "runs/mine --obs observations.jsonl",
        "runs/mine < lines.jsonl",
    )
    predict = _command(commands, "predict", "print the action for each observation", examples)
    predict.add_argument("path", type=Path, metavar="RUN", help="a run directory or a checkpoint")
    _add_trust(predict)
    predict.add_argument(
        "--obs",
        metavar="JSON_OR_FILE",
        help='one observation as JSON, or an object with "obs" and optionally "action_mask", "reward" (of the previous '
        'action) and "episode_start" (true resets the memory); or a file with one of these per line; default: stdin',
    )


def _add_export(commands: Any) -> None:
    examples = ("runs/mine --format onnx", "runs/mine --format safetensors --output policy.safetensors")
    export = _command(commands, "export", "export a policy for use in other programs, and verify it", examples)
    export.add_argument("path", type=Path, metavar="RUN", help="a run directory or a checkpoint")
    _add_trust(export)
    export.add_argument("--format", choices=("onnx", "safetensors"), default="onnx")
    export.add_argument("--output", type=Path, metavar="FILE", help="default: policy.<format> in the current directory")


def _add_list_show_plot(commands: Any) -> None:
    _command(commands, "list", "list the algorithms and the packaged configs", ("",))
    show = _command(commands, "show", "print a config with every default spelled out", ("dqn/cartpole",))
    show.add_argument("config", metavar="CONFIG", help="a packaged config or a YAML file")
    examples = ("runs/mine", "runs/dqn-* --output curves.png")
    summary = "plot learning curves; runs that differ only in their seed become a mean with a band"
    plot = _command(commands, "plot", summary, examples)
    plot.add_argument("paths", type=Path, nargs="+", metavar="RUN", help="run directories")
    plot.set_defaults(trust_modules=False)
    plot.add_argument("--output", type=Path, default=Path("learning_curves.png"), metavar="PNG")


def _add_bench(commands: Any) -> None:
    examples = ("dqn/cartpole ppo/cartpole --seeds 5 --jobs 2", "", "--peers", "--time-to-solve", "--report")
    summary = "train configs on several seeds and compare them with references and peers; finished runs are not repeated"
    bench = _command(commands, "bench", summary, examples)
    bench.add_argument(
        "configs", nargs="*", metavar="CONFIG", help="packaged configs or YAML files (default: all in the references file)"
    )
    bench.add_argument("--seeds", type=_positive, metavar="N", help="seeds 0 to N-1 (default: as in the references, or 5)")
    bench.add_argument("--jobs", type=_positive, metavar="N", help="parallel processes (default 2; 1 with --time-to-solve)")
    bench.add_argument("--peers", action="store_true", help="also train Stable-Baselines3 and sb3-contrib on the same budget")
    bench.add_argument("--time-to-solve", action="store_true", help="instead, race the peers until a task is solved")
    bench.add_argument("--report", action="store_true", help="train nothing; only write the tables and curves again")
    bench.add_argument("--runs", type=Path, default=Path("runs/learning"), metavar="DIR", help="default: runs/learning")
    places = "default: the repository's own; outside it,"
    bench.add_argument("--references", type=Path, metavar="YAML", help=f"the returns to reach ({places} none)")
    bench.add_argument("--peers-file", type=Path, metavar="YAML", help=f"the peers' settings ({places} none)")
    bench.add_argument("--results", type=Path, metavar="DIR", help=f"results as JSON ({places} the runs directory)")
    bench.add_argument("--page", type=Path, metavar="MD", help=f"tables and curves ({places} a page in the runs directory)")


def _add_trust(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--trust-env-module",
        dest="trust_modules",
        action="store_true",
        help="import the module that the run names for its environment or algorithm (module:id) from wherever Python finds "
        "it, also from the current directory; by default only from installed packages and PYTHONPATH",
    )


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, not {value}")
    return value
