"""Whatever is written in a config or an override, the answer is a config or one sentence.

The values are drawn from a fixed seed. ``FUZZ_EXAMPLES=20000`` draws more of them.
"""

from __future__ import annotations

import os
import random
import string
from collections.abc import Callable
from typing import Any

import pytest
from conftest import tiny_values

from rl_training.errors import RLTrainingError
from rl_training.experiment.config import TrainConfig, apply_overrides, resolve_config
from rl_training.experiment.plain_data import parse_yaml
from rl_training.experiment.registry import algorithms

EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", "120"))
#: What the fuzzer and people have found: each was a traceback, or a message of several lines.
FOUND = [
    "2020-99-99", "2020-01-01", "{[a]: 1}", "{{a: 1}: 1}", "{1: 2}", "{null: 2}", "!!int q", "!!bool maybe",
    "!!float x", "!!timestamp nope", "!!timestamp 2020-01-01", "!!binary aGk=", "!!binary x", "!!set {a}",
    "!!omap [a]", "!!map 3", "!!seq 3", "!!pairs [1]", "&a [*a]", "&a {x: *a}", "[" * 400 + "]" * 400, "[" * 4000,
    "- " * 4000, "{a: " * 300 + "1" + "}" * 300, "9" * 5000, "-" + "9" * 5000, "0x" + "f" * 5000, "9" * 300, "1e400",
    ".inf", ".nan",
    '"\\0"', "\0", '"\\ud800"', "\ud800", '"\\n\\r\\u2028"', "[1, 2", "a: b: c", "%YAML 9.9", "--- 1\n--- 2", "*nowhere",
    "<<: {a: 1}", "=", "!nope 1", "!!python/name:os.system x", "|\n a\n b", "1:30", "12:30:45", "~", "", "'", "\t", "@", "`",
    "{seed: 1, seed: 2}", "&a [1, &b [*a, *b]]", "é", "☃" * 300, "x" * 100_000,
]  # fmt: skip
KEYS = [*TrainConfig.model_fields, "eval.episodes", "eval.interval", "checkpoint.keep", "log.tensorboard", "wrappers"]
STRANGE_KEYS = ["", ".", "a.b", "eval", "eval.", "seed.x", "env_kwargs.a.b", ".".join("a" * 500), "é\n", "eval.episodes.x"]
WRAPPERS = ["{name: mask_observation}", "[{name: pixels, height: x}]", "[{nam: 1}]", "[1]", "[{name: 3}]", "[[]]", "[{}]"]
ALGOS = [".foo:bar", ":", "a:", ":b", "json:dumps", "base", "config", "a\nb", "rl_training.algorithms.dqn:DQNConfig", "..:x"]


def random_text(rng: random.Random) -> str:
    alphabet = rng.choice([string.printable, "[]{}:,-&*!|>'\"%@`#?~ \n\t01ae.", "\0\x1b\u2028\ud800\U0001f600 a:"])
    return "".join(rng.choice(alphabet) for _ in range(rng.randrange(12)))


def random_yaml(rng: random.Random, depth: int = 0) -> str:
    """A value as a person, a mistake or a program might write it."""
    kinds: list[Callable[[], str]] = [
        lambda: rng.choice(FOUND[:-1]),
        lambda: random_text(rng),
        lambda: str(rng.choice([0, 1, -1, 2**31, 2**63, 10**30, 0.5, -0.0, 1e-300, True, None])),
        lambda: rng.choice(["!!int ", "!!float ", "!!bool ", "!!str ", "!!null ", "&a ", "*a "]) + random_text(rng),
        lambda: rng.choice(WRAPPERS + ALGOS),
    ]  # fmt: skip
    if depth < 4:
        kinds.append(lambda: "[" + ", ".join(random_yaml(rng, depth + 1) for _ in range(rng.randrange(4))) + "]")
        kinds.append(lambda: f"{{{random_yaml(rng, 4)}: {random_yaml(rng, depth + 1)}, b: {random_yaml(rng, depth + 1)}}}")
    return rng.choice(kinds)()


def random_value(rng: random.Random, depth: int = 0) -> Any:
    """A value as a Python program might pass it."""
    choices: list[Any] = [None, True, 3, -1, 10**400, 1.5, float("nan"), "1e3", "x" * 1000, b"x", {1}, object(), print, 2**64]
    if depth < 3:
        choices += [[random_value(rng, depth + 1)], {rng.choice(["a", 1, None, "b\n"]): random_value(rng, depth + 1)}]
    return rng.choice(choices)


def require_one_sentence(attempt: Callable[[], object], example: object) -> None:
    """The attempt succeeds, or fails with one line."""
    try:
        attempt()
    except RLTrainingError as error:
        message = str(error)
        assert len(message.splitlines()) == 1, (example, message)
        assert message.isprintable(), (example, message)
        assert len(message) < 20_000, (example, len(message))
    except BaseException as error:
        raise AssertionError(f"{example!r:.500} gave {type(error).__name__}: {error}") from error


def key_of(rng: random.Random, algo: str) -> str:
    own = [f"algo_kwargs.{name}" for name in algorithms()[algo].config_class.model_fields]
    return rng.choice([rng.choice(KEYS), rng.choice(own), rng.choice(own), rng.choice(STRANGE_KEYS), random_text(rng)])


@pytest.mark.filterwarnings("ignore")
def test_fuzzed_overrides() -> None:
    rng = random.Random(15)
    for _ in range(EXAMPLES):
        algo = rng.choice(sorted(algorithms()))
        overrides = [f"{key_of(rng, algo)}={random_yaml(rng)}" for _ in range(rng.choice([1, 1, 1, 3]))]
        values = tiny_values(algo)
        require_one_sentence(lambda v=values, o=overrides: resolve_config(apply_overrides(v, o)), overrides)  # type: ignore[misc]


@pytest.mark.filterwarnings("ignore")
def test_fuzzed_files() -> None:
    rng = random.Random(16)
    for _ in range(EXAMPLES):
        lines = [
            f"{rng.choice([*KEYS, 'algo_kwargs', random_text(rng)])}: {random_yaml(rng)}" for _ in range(rng.randrange(4))
        ]
        text = "\n".join(["algo: dqn", "env_id: CartPole-v1", *lines][rng.randrange(3) :])

        def attempt(text: str = text) -> None:
            data = parse_yaml(text, "it.yaml")
            if isinstance(data, dict):
                resolve_config(data)

        require_one_sentence(attempt, text)


@pytest.mark.filterwarnings("ignore")
def test_fuzzed_values_from_python() -> None:
    rng = random.Random(17)
    for _ in range(EXAMPLES):
        values: dict[Any, Any] = tiny_values("dqn")
        for _ in range(rng.choice([1, 2])):
            place = rng.choice([values, values["algo_kwargs"]])
            place[rng.choice([*KEYS, "gamma", "hidden_sizes", "batch_size", 3, None, "new\n"])] = random_value(rng)
            if not isinstance(values.get("algo_kwargs"), dict):
                break
        require_one_sentence(lambda v=values: resolve_config(v), values)  # type: ignore[misc]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("text", FOUND, ids=lambda text: ascii(text[:20]))
@pytest.mark.parametrize(
    "key", ["seed", "env_kwargs.x", "algo_kwargs.learning_rate", "algo_kwargs.hidden_sizes", "wrappers", "algo"]
)
def test_what_was_found(text: str, key: str) -> None:
    require_one_sentence(lambda: resolve_config(apply_overrides(tiny_values("dqn"), [f"{key}={text}"])), text)
