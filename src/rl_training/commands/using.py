"""``eval``, ``predict`` and ``export``: commands that use a trained policy."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rl_training.commands.console import success_of, uncollected, warn
from rl_training.errors import ObservationError, counted, did_you_mean, shown

if TYPE_CHECKING:
    from rl_training.types import ObservationSpec

#: Keys that a line of input to `predict` may contain.
PREDICT_KEYS = ("obs", "action_mask", "reward", "episode_start")


def eval_command(arguments: argparse.Namespace) -> int:
    """Evaluates a policy over whole episodes."""
    with uncollected():
        from rl_training.api import load_agent

    with load_agent(arguments.path, trust_modules=arguments.trust_modules) as agent:
        result = agent.evaluate(
            arguments.episodes,
            max_episode_steps=arguments.max_episode_steps,
            seed=arguments.seed,
            deterministic=not arguments.stochastic,
            render=arguments.render,
            video=arguments.video,
            progress=True,
        )
    film = result.film
    if film is not None and film.failure is None:
        extent = f"the first {film.seconds:.0f} s" if film.cut else f"{film.seconds:.1f} s"
        print(f"recorded {extent} of the first episode to {arguments.video}", file=sys.stderr)
    if arguments.json:
        print(json.dumps(result.to_json()))
    else:
        shown = result.summary()
        print(
            f"return {result.mean_return:.2f} +- {result.std_return:.2f} over {counted(len(result.returns), 'episode')} "
            f"(min {shown['return_min']:.1f}, max {shown['return_max']:.1f}, mean length {shown['length_mean']:.1f}"
            f"{success_of(result)})"
        )
    if film is not None and film.failure is not None:
        raise film.failure
    return 0


def predict_command(arguments: argparse.Namespace) -> int:
    """Prints the action for each observation."""
    with uncollected():
        from rl_training.api import load_agent

    agent = load_agent(arguments.path, trust_modules=arguments.trust_modules)
    state = None
    for number, text in _observations(arguments.obs):
        try:
            fields = _predict_fields(text, agent.policy.spec.observation)
            options: dict[str, Any] = {key: value for key, value in fields.items() if key != "obs"}
            action, state = agent.predict(fields["obs"], state, **options)
        except ObservationError as error:
            raise ObservationError(f"line {number}: {error}") from error
        is_batch = action.ndim > len(agent.policy.spec.action.raw_shape)
        for one in action if is_batch else [action]:
            print(json.dumps(one.tolist()), flush=True)
    return 0


def _predict_fields(text: str, spec: ObservationSpec) -> dict[str, Any]:
    """Parses a line: either an object with "obs" and optional further keys, or a bare observation, which for a policy that
    takes a Dict is an object with its keys."""
    try:
        line = json.loads(text)
    except ValueError as error:
        raise ObservationError(f"not valid JSON: {error}") from error
    except RecursionError as error:
        raise ObservationError("the observation is nested too deeply for any policy") from error
    keys = {leaf.path[0] for leaf in spec.leaves if leaf.path and isinstance(leaf.path[0], str)}
    is_bare = not isinstance(line, dict) or ("obs" not in line and bool(keys & line.keys()))
    fields = {"obs": line} if is_bare else line
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


def export_command(arguments: argparse.Namespace) -> int:
    """Writes a policy for other programs."""
    with uncollected():
        from rl_training.runtime.export import export_policy
        from rl_training.runtime.inference import load_policy

    config, policy, checkpoint = load_policy(arguments.path, warn, trust_modules=arguments.trust_modules)
    output = arguments.output or Path(f"policy.{arguments.format or 'onnx'}")
    difference = export_policy(policy, config, output, arguments.format)
    print(f"exported {checkpoint} to {output}; verified: the largest difference from the original is {difference:.1e}")
    return 0
