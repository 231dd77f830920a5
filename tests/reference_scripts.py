"""Running a reference script as a user would."""

from __future__ import annotations

from pathlib import Path

from moments import finish_python

EXAMPLES = Path(__file__).parent.parent / "examples"


def check_reference_script(name: str, tmp_path: Path) -> None:
    """The smoke run of an example leaves a run directory and an exported policy."""
    run = tmp_path / "run"
    finished = finish_python(EXAMPLES / f"{name}.py", "--smoke", "--output-dir", run, cwd=tmp_path)
    assert finished.returncode == 0, finished.stderr
    assert "greedy return" in finished.stdout
    assert (run / "policy.safetensors").exists()
    assert (run / "checkpoints" / "latest" / "manifest.json").exists()
