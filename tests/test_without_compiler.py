"""Where there is no compiler: training continues eagerly, or an error names what to install."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from conftest import (
    tiny_values,
)
from moments import finish, finish_python
from test_compiled import backend as backend
from test_compiled import start_and_stop, write_config


def without_compiler(tmp_path: Path) -> dict[str, str]:
    """An environment in which no compiler is found, nor anything compiled before."""
    empty = tmp_path / "empty"
    empty.mkdir()
    return {**os.environ, "PATH": str(empty), "CXX": "", "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache")}


def test_auto_continues_without_a_compiler(tmp_path: Path) -> None:
    values = tiny_values("dqn", total_timesteps=10**7)
    script = (
        "import sys, json; from rl_training.experiment.config import resolve_config; "
        "from rl_training.runtime.progress import LineProgress; from rl_training.runtime.trainer import Trainer; "
        "trainer = Trainer(resolve_config(json.loads(sys.argv[1])), progress=LineProgress(sys.stderr)); "
        "print(trainer.train(100).updates, trainer.compilation.in_force)"
    )
    done = finish_python("-c", script, json.dumps(values), env=without_compiler(tmp_path))
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["20", "False"]
    lines = [line for line in done.stderr.splitlines() if not line.startswith("step ")]
    assert sum(line.startswith("the update cannot be compiled here (") for line in lines) == 1, done.stderr
    assert len(lines) <= 5, done.stderr  # nothing of the compiler's own complaints


@pytest.mark.slow  # traces and lowers a graph, as the one before
def test_on_without_a_compiler_is_an_error_that_names_the_fix(tmp_path: Path) -> None:
    config = write_config(tmp_path / "config.yaml", "dqn")
    done = finish("train", "--config", str(config), "--output-dir", str(tmp_path / "run"), env=without_compiler(tmp_path))
    assert done.returncode == 2
    assert "install a C++ compiler" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow  # traces and lowers a graph, as the one before
def test_a_compiled_run_continues_without_a_compiler_with_a_warning(backend: str, tmp_path: Path) -> None:
    run = tmp_path / "run"
    start_and_stop("on", run, stop_at=100)
    done = finish("resume", str(run), env=without_compiler(tmp_path))
    assert done.returncode == 0, done.stderr
    assert "no longer bit-for-bit" in done.stderr
