"""Fuzzed run directories: random damage, and forgery with right hashes."""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from forgery import KINDS, forge, put_in_place
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from reliability.prepared import PREPARED, Prepared
from reliability.verdicts import Answer, ask, not_finite
from rl_training.experiment.checkpoint import MANIFEST
from rl_training.experiment.run import step_directories

#: What takes the place of a value. Numbers stay small: a run may legitimately ask for much.
ODD: list[Any] = [
    None, True, False, 0, 1, -1, 3, 2.5, -0.5, "", "x", "..", "/etc/passwd", "a/b", "policy", [], [1], [[1]], {}, {"a": 1},
    {"": 0}, float("nan"), float("inf"), 2**63, -(2**70), 10**400, "\ud800", "\0", {"array": "x"}, {"array": "../x"},
    [None], "cuda:9", "1",
]  # fmt: skip
COMMANDS = ("eval", "predict", "export", "resume", "plot")


def run_directories(rng: random.Random, folder: Path, runs: Mapping[str, Path]) -> tuple[Any, str | None]:
    """Damages or forges a run in up to three ways, and uses it."""
    name, command = rng.choice(sorted(runs)), rng.choice(COMMANDS)
    run, outside = folder / "run", folder / "outside"
    shutil.copytree(runs[name], run, symlinks=True)
    outside.mkdir()
    (outside / "canary").write_text("untouched")
    forged = rng.random() < 0.6
    changes = [(forge_something if forged else damage_something)(rng, run, outside) for _ in range(rng.choice([1, 1, 2, 3]))]
    before = names_in(folder)
    answer = ask(_arguments(command, run, folder, PREPARED[name]))
    wrong = answer.wrong or _wrong(answer, command, run, PREPARED[name], forged=forged)
    if [item.name for item in outside.iterdir()] != ["canary"] or (outside / "canary").read_text() != "untouched":
        wrong = "wrote outside of the run"
    if set(names_in(folder)) - {*before, "p.safetensors", "p.safetensors.json", "p.png"}:
        wrong = f"left {names_in(folder)}"
    return (name, command, changes, answer.errors), wrong


def names_in(folder: Path) -> list[str]:
    return sorted(item.name for item in folder.iterdir())


def _arguments(command: str, run: Path, folder: Path, one: Prepared) -> list[str]:
    obs = json.dumps(np.zeros(one.shape).tolist())
    return {
        "eval": ["eval", str(run), "--episodes", "1", "--json"],
        "predict": ["predict", str(run), "--obs", obs],
        "export": ["export", str(run), "--format", "safetensors", "--output", str(folder / "p.safetensors")],
        "resume": ["resume", str(run), "--quiet", "--total-timesteps", "170"],
        "plot": ["plot", str(run), "--output", str(folder / "p.png")],
    }[command]


def _wrong(answer: Answer, command: str, run: Path, one: Prepared, *, forged: bool) -> str | None:
    """Nonsense behind an exit code of 0."""
    if answer.code != 0:
        return None
    if command == "predict":
        actions = [np.asarray(json.loads(line), np.float64) for line in answer.output.splitlines()]
        if not actions or not all(np.isfinite(action).all() for action in actions):
            return f"the actions {answer.output!r}"
    if command == "eval" and not np.isfinite(json.loads(answer.output)["return_mean"]):
        return f"the evaluation {answer.output!r}"
    if command == "resume":
        if not step_directories(run):
            return "no checkpoint after a resumed run"
        return None if forged else not_finite(run, answer.errors)
    return None


# --------------------------------------------------------------------------------------------------------------- damage


def files_of(run: Path) -> list[Path]:
    return sorted(path for path in run.rglob("*") if path.is_file() and not path.is_symlink() and path.name != ".lock")


def damage_something(rng: random.Random, run: Path, outside: Path) -> str:
    """Changes a file in a way that any disk, tool or person can."""
    file = rng.choice(files_of(run) or [run / "config.yaml"])
    kind = rng.choice(["flip", "flip", "cut", "cut", "append", "remove", "empty", "zeros", "swap", "special", "link", "move"])
    content = bytearray(file.read_bytes()) if file.exists() else bytearray()
    if kind == "flip" and content:
        content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
        file.write_bytes(content)
    elif kind == "cut":
        file.write_bytes(content[: rng.randrange(len(content) + 1)])
    elif kind == "append":
        file.write_bytes(content + rng.randbytes(rng.choice([1, 3, 1000])))
    elif kind == "remove":
        file.unlink(missing_ok=True)
    elif kind == "empty":
        file.write_bytes(b"")
    elif kind == "zeros" and content:
        begin = rng.randrange(len(content))
        file.write_bytes(content[:begin] + bytes(len(content) - begin))
    elif kind == "swap":
        other = rng.choice(files_of(run) or [file])
        theirs = other.read_bytes() if other.exists() else b""
        other.write_bytes(content)
        file.write_bytes(theirs)
    elif kind == "special":
        put_in_place(file, rng.choice(KINDS))
    elif kind == "link":
        _link(rng, run, outside)
    elif kind == "move":
        _move(rng, run)
    return f"{kind} {file.relative_to(run)}"


def _link(rng: random.Random, run: Path, outside: Path) -> None:
    """Puts a link that leads out of the run in the place of something."""
    places = [path for path in run.rglob("*") if not path.is_symlink()]
    place = rng.choice([*places, run / "checkpoints" / "set-aside", run / "evaluation.json", run / ".lock"])
    if place.is_dir() and not place.is_symlink():
        shutil.rmtree(place)
    else:
        place.unlink(missing_ok=True)
    if place.parent.is_dir():
        place.symlink_to(rng.choice([outside / "canary", outside, outside / "new", Path("loop"), place]))


def _move(rng: random.Random, run: Path) -> None:
    """Renames a checkpoint, or redirects a link."""
    checkpoints = step_directories(run)
    if checkpoints and rng.random() < 0.5:
        new = rng.choice(["step-9999999999", "step-0000000001", "step-x", ".writing-step-0000000100", "best", "latest"])
        target = run / "checkpoints" / new
        if not os.path.lexists(target):
            rng.choice(checkpoints).rename(target)
    else:
        link = run / "checkpoints" / rng.choice(["latest", "best"])
        link.unlink(missing_ok=True)
        if link.parent.is_dir():
            link.symlink_to(rng.choice(["step-0000000001", "latest", "..", "/", "nowhere", "../checkpoints/latest"]))


# -------------------------------------------------------------------------------------------------------------- forgery


def forge_something(rng: random.Random, run: Path, outside: Path) -> str:
    """Changes a value as somebody who computes the hashes afterwards can, in one checkpoint or in all of them."""
    checkpoints = [path for path in sorted((run / "checkpoints").glob("step-*")) if (path / MANIFEST).is_file()]
    kind = rng.choice(["skeleton", "skeleton", "arrays", "arrays", "header", "manifest", "config", "log", "top"])
    if kind in ("config", "log", "top") or not checkpoints:
        return _forge_top(rng, run, kind)
    chosen = checkpoints if rng.random() < 0.8 else [rng.choice(checkpoints)]
    seed, said = rng.random(), ""
    for checkpoint in chosen:
        with contextlib.suppress(SafetensorError, ValueError, LookupError):  # it is forged already
            said = FORGERIES[kind](random.Random(seed), checkpoint)
    return f"{kind}: {said} in {len(chosen)}"


def _forge_skeleton(rng: random.Random, checkpoint: Path) -> str:
    file = rng.choice(sorted(path for path in checkpoint.glob("*.json") if path.name != MANIFEST))
    value, said = mutated(rng, json.loads(file.read_text()))
    file.write_text(json.dumps(value))
    forge(checkpoint)
    return f"{file.name}{said}"


def _forge_manifest(rng: random.Random, checkpoint: Path) -> str:
    said = ""

    def change(body: dict[str, Any]) -> None:
        nonlocal said
        value, said = mutated(rng, dict(body))
        if isinstance(value, dict):
            body.clear()
            body.update(value)

    forge(checkpoint, change)
    return said


def _forge_arrays(rng: random.Random, checkpoint: Path) -> str:
    file = rng.choice(sorted(checkpoint.glob("*.safetensors")))
    arrays = load_file(file)
    name = rng.choice(sorted(arrays))
    array = arrays[name]
    limit = np.iinfo(array.dtype).max if array.dtype.kind in "iu" else 1
    whole = array.dtype.kind != "f"
    ways: dict[str, Callable[[], Any]] = {
        "not a number": lambda: np.full_like(array, 3 if whole else np.nan),
        "infinite": lambda: np.full_like(array, 0 if whole else np.inf),
        "huge": lambda: np.full_like(array, limit if whole else 1e30),
        "negative": lambda: -array if array.dtype.kind in "if" else array,
        "longer": lambda: np.concatenate([array, array]) if array.ndim else array[None],
        "shorter": lambda: array[: len(array) // 2] if array.ndim else array,
        "empty": lambda: array[:0] if array.ndim else array,
        "reshaped": lambda: array.reshape(1, *array.shape),
        "double": lambda: array.astype(np.float64),
        "whole": lambda: np.nan_to_num(array).astype(np.int64),
        "flat": lambda: array.reshape(-1),
        "random": lambda: np.frombuffer(rng.randbytes(array.nbytes), np.uint8).view(
            np.uint8 if array.dtype == bool else array.dtype
        ),
    }
    way = rng.choice(sorted(ways))
    with np.errstate(all="ignore"):
        arrays[name] = np.ascontiguousarray(ways[way]())
    if rng.random() < 0.1:
        del arrays[name]
        way = "removed"
    save_file(arrays, file)
    forge(checkpoint)
    return f"{file.name} {name} {way}"


def _forge_header(rng: random.Random, checkpoint: Path) -> str:
    file = rng.choice(sorted(checkpoint.glob("*.safetensors")))
    content = file.read_bytes()
    size = int.from_bytes(content[:8], "little")
    header, said = mutated(rng, json.loads(content[8 : 8 + size]))
    text = json.dumps(header).encode()
    length = len(text) if rng.random() < 0.8 else rng.choice([0, 1, 2**40, 2**63, len(content)])
    file.write_bytes(length.to_bytes(8, "little") + text + content[8 + size :])
    forge(checkpoint)
    return f"{file.name}{said}, length {length}"


FORGERIES = {"skeleton": _forge_skeleton, "manifest": _forge_manifest, "arrays": _forge_arrays, "header": _forge_header}


def _forge_top(rng: random.Random, run: Path, kind: str) -> str:
    if kind == "log" and (run / "metrics.jsonl").is_file():
        lines = (run / "metrics.jsonl").read_text("utf-8", "replace").splitlines()
        index = rng.randrange(len(lines)) if lines else 0
        try:
            value, said = mutated(rng, json.loads(lines[index]))
        except (ValueError, IndexError):
            return "nothing"
        lines[index] = json.dumps(value)
        (run / "metrics.jsonl").write_text("\n".join(lines) + "\n", "utf-8", "surrogatepass")
        return f"metrics.jsonl {index}{said}"
    file = run / ("config.yaml" if kind == "config" else rng.choice(["metadata.json", "evaluation.json"]))
    try:
        value, said = mutated(rng, yaml.safe_load(file.read_text()))
    except (OSError, ValueError, yaml.YAMLError):
        return "nothing"
    text = yaml.safe_dump(value) if kind == "config" else json.dumps(value)
    file.write_text(text, "utf-8", "surrogatepass")
    return f"{file.name}{said}"


def mutated(rng: random.Random, value: Any, said: str = "") -> tuple[Any, str]:
    """The value with something odd at a random place in it."""
    inside = isinstance(value, dict | list) and bool(value)
    if not inside or rng.random() < 0.15:
        odd = rng.choice(ODD)
        return odd, f"{said} = {odd!r:.40}"
    if isinstance(value, dict):
        key = rng.choice(sorted(value))
        way = rng.random()
        if way < 0.1:
            return {name: inner for name, inner in value.items() if name != key}, f"{said} without {key}"
        if way < 0.15:
            return {**value, rng.choice(["new", "", "..", "policy"]): rng.choice(ODD)}, f"{said} with something new"
        inner, said = mutated(rng, value[key], f"{said}.{key}")
        return {**value, key: inner}, said
    index = rng.randrange(len(value))
    if rng.random() < 0.1:
        return value[:index], f"{said}[:{index}]"
    inner, said = mutated(rng, value[index], f"{said}[{index}]")
    return [*value[:index], inner, *value[index + 1 :]], said
