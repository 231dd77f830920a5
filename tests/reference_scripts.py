"""Running a reference script as a user would."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).parent.parent / "examples"


def check_reference_script(name: str, tmp_path: Path) -> None:
    """The smoke run of an example leaves a run directory and an exported policy."""
    run = tmp_path / "run"
    command = [sys.executable, str(EXAMPLES / f"{name}.py"), "--smoke", "--output-dir", str(run)]
    finished = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert finished.returncode == 0, finished.stderr
    assert "greedy return" in finished.stdout
    assert (run / "policy.safetensors").exists()
    assert (run / "checkpoints" / "latest" / "manifest.json").exists()
