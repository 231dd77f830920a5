"""Fuzzed words: configs, overrides, settings of real runs, lines for ``predict``, and faulty environments."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from conftest import ALGORITHMS, config_fields, tiny_values
from test_fuzz_config import KEYS, key_of, random_text, random_yaml

from reliability.prepared import PREPARED, Prepared
from reliability.verdicts import ask, not_finite, weights_not_finite

#: Values at the edges of what a setting may be; sizes stay small, because a large one is a legitimate wish.
EDGES: list[Any] = [
    0, 1, -1, 2, 3, 7, 0.0, -0.0, 1e-8, 1e-300, 0.5, 1.0, 1.5, -0.5, 1e30, float("inf"), float("nan"), None, True, False, "x",
    "", "1", [], [0], [1], [3, 2], [[4, 3, 2]], [[1]], {}, {"a": 1}, "auto", "on", "subprocess", "linear",
]  # fmt: skip
TOP = [
    "num_envs", "seed", "env_fresh", "device", "env_kwargs", "wrappers", "eval.interval", "eval.episodes",
    "eval.final_episodes", "eval.num_envs", "checkpoint.interval", "checkpoint.keep", "checkpoint.replay_every",
    "log.interval", "log.tensorboard", "threads",
]  # fmt: skip


def overrides(rng: random.Random, folder: Path) -> tuple[Any, str | None]:
    """``--set`` with anything in it. Nothing is trained: the total is refused after all settings were read."""
    algo = rng.choice(ALGORITHMS)
    config = folder / "tiny.yaml"
    config.write_text(yaml.safe_dump(tiny_values(algo)))
    given = [f"--set={key_of(rng, algo)}={random_yaml(rng)}" for _ in range(rng.choice([1, 1, 1, 3]))]
    arguments = ["train", "--config", str(config), "--quiet", *given, "--set=total_timesteps=0"]
    answer = ask(arguments)
    return arguments, answer.wrong or (f"exit code {answer.code}" if answer.code != 2 else None)


def configs(rng: random.Random, folder: Path) -> tuple[Any, str | None]:
    """Files with anything in them. What ``show`` accepts it prints, and accepts again."""
    lines = [f"{rng.choice([*KEYS, 'algo_kwargs', random_text(rng)])}: {random_yaml(rng)}" for _ in range(rng.randrange(4))]
    text = "\n".join([f"algo: {rng.choice(ALGORITHMS)}", "env_id: CartPole-v1", *lines][rng.randrange(3) :])
    file = folder / "it.yaml"
    file.write_bytes(text.encode("utf-8", "surrogatepass"))
    answer = ask(["show", str(file)])
    if answer.wrong is None and answer.code == 0:
        again = folder / "again.yaml"
        again.write_text(answer.output)
        second = ask(["show", str(again)])
        if second.output != answer.output:
            return text, f"what it shows is not what it reads: {second.errors or second.output}"
    return text, answer.wrong


def settings(rng: random.Random, folder: Path) -> tuple[Any, str | None]:
    """Real runs of 60 steps with settings at their edges."""
    algo = rng.choice(ALGORITHMS)
    config = folder / "tiny.yaml"
    config.write_text(yaml.safe_dump(tiny_values(algo, total_timesteps=60, compile="off")))
    fields = sorted(config_fields(algo))
    given = []
    for _ in range(rng.choice([1, 1, 2, 3])):
        key = rng.choice(TOP) if rng.random() < 0.25 else f"algo_kwargs.{rng.choice(fields)}"
        given.append(f"--set={key}={yaml.safe_dump(rng.choice(EDGES), default_flow_style=True).strip().removesuffix('...')}")
    run = folder / "run"
    answer = ask(["train", "--config", str(config), "--quiet", "--output-dir", str(run), *given])
    return (algo, given), answer.wrong or (not_finite(run) or weights_not_finite(run) if answer.code == 0 else None)


def environments(rng: random.Random, folder: Path) -> tuple[Any, str | None]:
    """Runs in an environment that breaks a rule."""
    number, algo = rng.randrange(10**6), rng.choice(["dqn", "ppo", "sac", "drqn", "recurrent_ppo", "r2d2"])
    workers = "subprocess" if rng.random() < 0.03 else "inline"
    chaos = {"number": number, "continuous": algo == "sac"}
    values = tiny_values(algo, env_id="chaotic_env:Chaotic-v0", env_kwargs=chaos, env_workers=workers)
    config, run = folder / "tiny.yaml", folder / "run"
    wrappers = [{"name": "flatten_observation"}] if rng.random() < 0.2 else []
    config.write_text(yaml.safe_dump({**values, "total_timesteps": 60, "compile": "off", "wrappers": wrappers}))
    answer = ask(["train", "--config", str(config), "--quiet", "--output-dir", str(run)])
    return values, answer.wrong or (not_finite(run) or weights_not_finite(run) if answer.code == 0 else None)


# -------------------------------------------------------------------------------------------------------------- predict


def random_json(rng: random.Random, depth: int = 0) -> str:
    """A JSON text, or almost one."""
    simple = [
        "0", "1", "-1", "0.5", "1e400", "-1e400", "NaN", "Infinity", "-Infinity", "1e39", "null", "true", "false", '"1"',
        '""', "[]", "{}", "9" * 400, "1E5", "-0", "2.7", "255", "256", '"\\ud800"', "1.", ".5", "+1", "0x1", "1_000",
        "[[[[[[1]]]]]]", "[" * 100_000, "{" * 1000, '{"obs": ' * 500,
    ]  # fmt: skip
    if depth >= 3 or rng.random() < 0.5:
        return rng.choice(simple)
    inner = ", ".join(random_json(rng, depth + 1) for _ in range(rng.choice([1, 2, 3, 4, 4, 4])))
    return f"[{inner}]"


def random_line(rng: random.Random, shape: tuple[int, ...], actions: int) -> str:
    def values(shape: tuple[int, ...]) -> str:
        if not shape:
            return rng.choice(["0", "1", "0.25", "-0.5", "3"]) if rng.random() < 0.97 else random_json(rng)
        return "[" + ", ".join(values(shape[1:]) for _ in range(shape[0])) + "]"

    kind = rng.random()
    obs = values(shape) if kind < 0.4 else values((rng.randrange(4), *shape)) if kind < 0.55 else random_json(rng)
    if rng.random() < 0.3:
        return rng.choice([obs, obs[:-1], obs + "]", random_text(rng) + obs, random_text(rng)])
    fields = [f'"obs": {obs}']
    if rng.random() < 0.5:
        mask = "[" + ", ".join(rng.choice(["0", "1", "true", "false"]) for _ in range(actions)) + "]"
        fields.append(f'"action_mask": {rng.choice([mask, mask, random_json(rng)])}')
    if rng.random() < 0.5:
        fields.append(f'"reward": {rng.choice(["0.5", "1", random_json(rng)])}')
    if rng.random() < 0.5:
        fields.append(f'"episode_start": {rng.choice(["true", "false", "[true]", random_json(rng)])}')
    if rng.random() < 0.05:
        fields.append(f'"{random_text(rng)}": 1')
    rng.shuffle(fields)
    return "{" + ", ".join(fields) + "}"


def predictions(rng: random.Random, folder: Path, runs: Mapping[str, Path]) -> tuple[Any, str | None]:
    """Lines for ``predict``. Every answer is an action that the environment takes, for an observation that is one."""
    name = rng.choice(sorted(runs))
    one = PREPARED[name]
    lines = [random_line(rng, one.shape, one.actions) for _ in range(rng.choice([1, 1, 1, 3]))]
    lines = [" ".join(line.splitlines()) for line in lines]
    answer = ask(["predict", str(runs[name])], stdin="\n".join(lines))
    return (name, lines), answer.wrong or (wrong_actions(answer.output, lines, one) if answer.code == 0 else None)


def wrong_actions(output: str, lines: list[str], one: Prepared) -> str | None:
    """What is wrong with the answer to lines that were all accepted."""
    rows = [rows_in(line, one.shape) for line in lines if line.strip()]
    if None in rows:
        return "an action for something that is no observation"
    printed, expected = output.splitlines(), sum(row or 0 for row in rows)
    if len(printed) != expected:
        return f"{len(printed)} actions for {expected} observations"
    for text in printed:
        action = np.asarray(json.loads(text), np.float64)
        fits = (
            action.shape == (one.actions,) if one.continuous else action.shape == () and float(action) in range(one.actions)
        )
        if not fits or not np.isfinite(action).all():
            return f"the action {text}"
    return None


def rows_in(line: str, shape: tuple[int, ...]) -> int | None:
    """The number of observations in a line, by JSON and NumPy alone; None if it holds anything else."""
    try:
        fields = json.loads(line)
        obs = fields["obs"] if isinstance(fields, dict) else fields
        array = np.asarray(obs, np.float64)
    except (ValueError, RecursionError, TypeError, KeyError, OverflowError):
        return None
    only_numbers = all(isinstance(leaf, int | float) for leaf in np.asarray(obs, object).flat)
    if not only_numbers or not np.isfinite(array).all() or array.shape not in (shape, (len(array), *shape)):
        return None
    return 1 if array.shape == shape else len(array)
