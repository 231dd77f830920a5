"""The reference script of DrQ, run as a user would."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).parent.parent / "examples"


def test_reference_script_trains_evaluates_and_exports(tmp_path: Path) -> None:
    run = tmp_path / "run"
    command = [sys.executable, str(EXAMPLES / "drq_pendulum_reference.py"), "--smoke", "--output-dir", str(run)]
    finished = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert finished.returncode == 0, finished.stderr
    assert "greedy return" in finished.stdout
    assert (run / "policy.safetensors").exists()
    assert (run / "checkpoints" / "latest" / "manifest.json").exists()
