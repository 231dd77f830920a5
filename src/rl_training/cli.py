"""The command-line interface. Torch is imported only by the commands that need it, so that ``--help`` is fast."""

from __future__ import annotations

import argparse
import errno
import json
import os
import resource
import shlex
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from rl_training.arguments import make_parser
from rl_training.errors import ConfigError, DivergenceError, ObservationError, RLTrainingError, did_you_mean, one_line, shown
from rl_training.search_path import forget_current_directory

if TYPE_CHECKING:
    from rl_training.runtime.trainer import Trainer, TrainResult

USER_ERROR = 2
DIVERGED = 3
#: Keys that a line of input to `predict` may contain.
PREDICT_KEYS = ("obs", "action_mask", "reward", "episode_start")
#: The address space that loading torch takes; with less, it would fail somewhere inside.
LEAST_ADDRESSES = 800_000_000


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code: 0 on success, 2 for a user error, 3 if training diverged or a policy is
    not finite, 128 + n after signal n."""
    arguments = make_parser().parse_args(argv)
    arguments.command_line = shlex.join(["rl-training", *(sys.argv[1:] if argv is None else argv)])
    warnings.showwarning = _show_warning
    if not getattr(arguments, "trust_modules", True):
        forget_current_directory()  # before anything searches it for modules and plugins
    try:
        _require_address_space()
        code: int = COMMANDS[arguments.command](arguments)
        sys.stdout.flush()
        return code
    except RLTrainingError as error:
        print(f"error: {error}", file=sys.stderr)
        return DIVERGED if isinstance(error, DivergenceError) else USER_ERROR
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and "allocate memory" not in str(error):  # torch's way to say the same
            raise
        reason = f" ({one_line(str(error))})" if str(error) else ""
        print(f"error: the memory is used up{reason}; lower the sizes in the config, or raise ulimit -v", file=sys.stderr)
        return USER_ERROR
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # the reader has closed the pipe, as in `rl-training list | head -1`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        if error.errno not in CANNOT_OPEN:
            raise
        print(
            f"error: {shown(error.filename)} cannot be opened: {error.strerror}; {CANNOT_OPEN[error.errno]}", file=sys.stderr
        )
        return USER_ERROR


#: Failures to open a file that can happen anywhere, and what to do about them.
CANNOT_OPEN = {
    errno.ENAMETOOLONG: "use a shorter path",
    errno.EMFILE: "raise ulimit -n, or lower num_envs",
    errno.ENFILE: "close other programs, or lower num_envs",
}


def _require_address_space() -> None:
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit != resource.RLIM_INFINITY and limit < LEAST_ADDRESSES:
        raise ConfigError(
            f"torch needs {LEAST_ADDRESSES / 1e9:.1f} GB of address space to load, but this process may have "
            f"{limit / 1e9:.1f} GB: raise the limit with ulimit -v"
        )


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    _warn(one_line(str(message)))


def _warn(message: str) -> None:
    print(f"warning: {message}", file=sys.stderr)


# ------------------------------------------------------------------------------------------------------- commands


def _train(arguments: argparse.Namespace) -> int:
    from rl_training.experiment.config import apply_overrides, load_config_data, resolve_config
    from rl_training.runtime.progress import choose_progress
    from rl_training.runtime.sessions import start_training

    if arguments.config is None and arguments.algo is None:
        raise ConfigError("nothing to train: give --config NAME_OR_PATH, or --algo NAME with --env ID")
    data = {} if arguments.config is None else load_config_data(arguments.config)
    flags = {
        "algo": arguments.algo,
        "env_id": arguments.env,
        "seed": arguments.seed,
        "total_timesteps": arguments.total_timesteps,
        "output_dir": arguments.output_dir,
        "device": arguments.device,
    }
    data.update({key: value for key, value in flags.items() if value is not None})
    config = resolve_config(apply_overrides(data, arguments.overrides))
    trainer = start_training(config, progress=choose_progress(arguments.quiet), command=arguments.command_line)
    return _run_to_end(trainer)


def _resume(arguments: argparse.Namespace) -> int:
    from rl_training.runtime.progress import choose_progress
    from rl_training.runtime.sessions import resume_training

    trainer = resume_training(
        arguments.path,
        total_timesteps=arguments.total_timesteps,
        progress=choose_progress(arguments.quiet),
        warn=_warn,
        trust_modules=arguments.trust_modules,
    )
    print(f"resuming {arguments.path} at step {trainer.env_steps}", file=sys.stderr)
    return _run_to_end(trainer)


def _run_to_end(trainer: Trainer) -> int:
    from rl_training.runtime.stopping import TrainerStop

    assert trainer.run is not None
    run_dir = shlex.quote(str(trainer.run.path))
    try:
        result = trainer.train(owns_process=True)
        if result.interrupted_by is not None:
            print(TrainerStop(trainer).saved(), flush=True)
    finally:
        trainer.close()
    if result.interrupted_by is not None:
        return 128 + result.interrupted_by
    _print_summary(result, run_dir)
    return 0


def _print_summary(result: TrainResult, run_dir: str) -> None:
    evaluation = result.evaluation
    assert evaluation is not None
    total = sum(result.seconds.values())
    shares = ", ".join(f"{phase} {seconds / total:.0%}" for phase, seconds in result.seconds.items() if seconds > 0)
    best = "" if result.best_return is None else f" (best during training: {result.best_return:.1f})"
    now = "" if result.steps_now == result.env_steps else f" ({result.steps_now} of them in this session)"
    print(
        f"trained {result.env_steps} steps{now}, {result.episodes} episodes, {result.updates} updates\n"
        f"took {total:.1f} s: {shares}\n"
        f"evaluation: return {evaluation.mean_return:.1f} +- {evaluation.std_return:.1f} over {len(evaluation.returns)} "
        f"episodes{best}\n"
        f"run directory: {run_dir} (config.yaml, metrics.jsonl, evaluation.json, checkpoints/)\n"
        f"next:\n"
        f"  rl-training eval {run_dir} --episodes 100\n"
        f"  rl-training plot {run_dir}\n"
        f"  rl-training export {run_dir} --format onnx\n"
        f"  rl-training resume {run_dir} --total-timesteps {2 * result.env_steps}"
    )


def _eval(arguments: argparse.Namespace) -> int:
    from rl_training.api import load_agent

    with load_agent(arguments.path, trust_modules=arguments.trust_modules) as agent:
        film = None if arguments.video is None else agent.film(arguments.video)
        result = agent.evaluate(arguments.episodes, max_episode_steps=arguments.max_episode_steps)
    if film is not None:
        extent = f"the first {film.seconds:.0f} s" if film.cut else f"{film.seconds:.1f} s"
        print(f"recorded {extent} of the first episode to {arguments.video}", file=sys.stderr)
    if arguments.json:
        print(json.dumps(result.to_json()))
    else:
        shown = result.summary()
        print(
            f"return {result.mean_return:.2f} +- {result.std_return:.2f} over {len(result.returns)} episodes "
            f"(min {shown['return_min']:.1f}, max {shown['return_max']:.1f}, mean length {shown['length_mean']:.1f})"
        )
    return 0


def _predict(arguments: argparse.Namespace) -> int:
    from rl_training.api import load_agent

    agent = load_agent(arguments.path, trust_modules=arguments.trust_modules)
    state = None
    for number, text in _observations(arguments.obs):
        try:
            fields = _predict_fields(text)
            options: dict[str, Any] = {key: value for key, value in fields.items() if key != "obs"}
            action, state = agent.predict(fields["obs"], state, **options)
        except ObservationError as error:
            raise ObservationError(f"line {number}: {error}") from error
        is_batch = action.ndim > len(agent.policy.spec.action.raw_shape)
        for one in action if is_batch else [action]:
            print(json.dumps(one.tolist()), flush=True)
    return 0


def _predict_fields(text: str) -> dict[str, Any]:
    """Parses a line: either an object with "obs" and optional further keys, or a bare observation."""
    try:
        line = json.loads(text)
    except ValueError as error:
        raise ObservationError(f"not valid JSON: {error}") from error
    except RecursionError as error:
        raise ObservationError("the observation is nested too deeply for any policy") from error
    fields = line if isinstance(line, dict) else {"obs": line}
    if "obs" not in fields:
        raise ObservationError(f"an object needs the key 'obs'; this one has {', '.join(map(shown, fields)) or 'no keys'}")
    unknown = [key for key in fields if key not in PREDICT_KEYS]
    if unknown:
        raise ObservationError(f"unknown key {shown(unknown[0])}{did_you_mean(unknown[0], PREDICT_KEYS)}")
    return fields


def _observations(source: str | None) -> Iterator[tuple[int, str]]:
    """Numbered lines of JSON: from the argument itself, from the file it names, or from standard input."""
    if source is None:
        lines: Any = sys.stdin
    elif source.lstrip().startswith(("[", "{", "-")) or source.strip().replace(".", "", 1).isdigit():
        lines = [source]
    else:
        try:
            text = Path(source).read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
            raise ObservationError(f"--obs {shown(source)} is neither JSON nor a readable file ({reason})") from error
        lines = [text] if _is_json(text) else text.splitlines()  # one on several lines, or one per line
    number = 0
    try:
        for number, line in enumerate(lines, start=1):
            if line.strip():
                yield number, line
    except UnicodeDecodeError as error:
        raise ObservationError(f"line {number + 1} is not UTF-8 text") from error


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def _export(arguments: argparse.Namespace) -> int:
    from rl_training.runtime.export import export_policy
    from rl_training.runtime.inference import load_policy

    config, policy, checkpoint = load_policy(arguments.path, _warn, trust_modules=arguments.trust_modules)
    output = arguments.output or Path(f"policy.{arguments.format}")
    difference = export_policy(policy, config, output, arguments.format)
    print(f"exported {checkpoint} to {output}; verified: the largest difference from the original is {difference:.1e}")
    return 0


def _list(arguments: argparse.Namespace) -> int:
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


def _show(arguments: argparse.Namespace) -> int:
    from rl_training.experiment.config import load_config_data, resolve_config

    print(resolve_config(load_config_data(arguments.config)).to_yaml(), end="")
    return 0


def _plot(arguments: argparse.Namespace) -> int:
    from rl_training.runtime.plot import plot_runs

    for label in plot_runs(arguments.paths, arguments.output):
        print(label)
    print(f"written to {arguments.output}")
    return 0


def _bench(arguments: argparse.Namespace) -> int:
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


COMMANDS: dict[str, Callable[[argparse.Namespace], int]] = {
    "train": _train,
    "resume": _resume,
    "eval": _eval,
    "predict": _predict,
    "export": _export,
    "list": _list,
    "show": _show,
    "plot": _plot,
    "bench": _bench,
}
