"""What the command line may answer to anything: success with finite results, or one sentence."""

from __future__ import annotations

import contextlib
import io
import json
import math
import signal
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file

from rl_training.cli import main
from rl_training.experiment.run import step_directories

#: Seconds after which a command that has almost nothing to do is taken to hang.
PATIENCE = 60.0


#: How the lines begin that show where in the user's own code an exception was raised.
FRAMES = ("it was raised here (", '  File "')


@dataclass(frozen=True)
class Answer:
    """What a command printed and returned; ``wrong`` says what it must not do, if it did."""

    code: int | None
    output: str
    errors: str
    wrong: str | None


def ask(arguments: list[str], stdin: str = "") -> Answer:
    """Calls the command line in this process."""
    output, errors = io.StringIO(), io.StringIO()
    late, code, wrong = [], None, None

    def ring(number: int, frame: Any) -> None:
        late.append("".join(traceback.format_stack(frame)[-3:]))
        raise TimeoutError("it hangs")

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, PATIENCE)
    try:
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors), _standard_input(stdin):
            code = main(arguments)
    except SystemExit as leaving:  # the parser's refusal
        code = leaving.code if isinstance(leaving.code, int) else 1
    except BaseException as error:
        wrong = f"traceback: {''.join(traceback.format_exception(error)[-3:])}"
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    if late:
        wrong = f"hangs: {late[0]}"
    return Answer(code, output.getvalue(), errors.getvalue(), wrong or _bad_words(code, errors.getvalue()))


@contextlib.contextmanager
def _standard_input(text: str) -> Iterator[None]:
    import sys

    before, sys.stdin = sys.stdin, io.StringIO(text)
    try:
        yield
    finally:
        sys.stdin = before


def _bad_words(code: int | None, errors: str) -> str | None:
    """A refusal is one sentence, besides warnings, the parser's usage, and the places in the user's own code."""
    if "Traceback" in errors:
        return "a traceback was printed"
    if code == 0:
        return None
    if code is None or code < 0 or code > 128:
        return f"exit code {code}"
    if errors.startswith("usage:"):
        return None
    lines = [line for line in errors.split("\n") if line and not line.startswith(("warning: ", "resuming ", *FRAMES))]
    if len(lines) != 1 or not lines[0].startswith("error: "):
        return f"not one sentence: {lines}"
    return None if lines[0].isprintable() else "a message that cannot be printed"


def not_finite(run: Path, said: str = "") -> str | None:
    """The first number in the log or the evaluation of a run that is not finite, or a file that is not JSON. Files that the
    command has spoken of are left out."""
    files = [file for file in (run / "metrics.jsonl", run / "evaluation.json") if file.exists() and file.name not in said]
    for file in files:
        texts = file.read_text().splitlines() if file.suffix == ".jsonl" else [file.read_text()]
        for text in texts:
            try:
                content = json.loads(text)
            except ValueError:
                return f"{file.name} is damaged, and nothing was reported: {text[:200]}"
            for name, value in _numbers(content):
                if not math.isfinite(value):
                    return f"{file.name}: {name} is {value}"
    return None


def _numbers(value: Any, name: str = "") -> Iterator[tuple[str, float]]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _numbers(inner, f"{name}.{key}")
    elif isinstance(value, list):
        for inner in value:
            yield from _numbers(inner, name)
    elif isinstance(value, (int, float)):
        yield name, value


def weights_not_finite(run: Path) -> str | None:
    """The first weight of the newest policy of a run that is not finite."""
    for checkpoint in step_directories(run)[:1]:
        for name, weights in load_file(checkpoint / "policy.safetensors").items():
            if not np.isfinite(weights).all():
                return f"{checkpoint.name}: {name} is not finite"
    return None
