"""What Windows does not have is not needed: every module is imported, and runs are trained, resumed and read, in a process
without the modules, flags, links and signals that only POSIX systems have. (No test has run on Windows itself.)"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from conftest import TESTS, final_fingerprint, tiny_values

from rl_training.cli import main
from rl_training.errors import CheckpointError
from rl_training.experiment import lock
from rl_training.experiment.folder import follow_links


def without_posix(folder: Path, *commands: str) -> str:
    finished = subprocess.run(
        [sys.executable, str(TESTS / "without_posix.py"), " + ".join(commands)], cwd=folder, capture_output=True, text=True
    )
    assert finished.returncode == 0, finished.stderr
    assert "Traceback" not in finished.stderr
    return finished.stdout


def test_a_run_without_posix_ends_in_the_same_bits(tmp_path: Path) -> None:
    values = tiny_values("dqn", total_timesteps=200, checkpoint={"interval": 50}, eval={"interval": 50, "episodes": 1})
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump(values))
    shown = without_posix(
        tmp_path,
        "train --config tiny.yaml --output-dir run --quiet",
        "eval run/checkpoints/best --episodes 1",
        "resume run --total-timesteps 250 --quiet",
        "export run --output policy.safetensors",
        "plot run",
    )
    assert int(shown.split("imported ")[1].split()[0]) > 150
    checkpoints = tmp_path / "run" / "checkpoints"
    assert (checkpoints / "latest").read_text() == "step-0000000250"
    assert (checkpoints / "best").is_file()
    whole = tmp_path / "whole"
    config = str(tmp_path / "tiny.yaml")
    assert main(["train", "--config", config, "--output-dir", str(whole), "--total-timesteps", "250", "--quiet"]) == 0
    assert final_fingerprint(tmp_path / "run") == final_fingerprint(whole)
    assert main(["resume", str(tmp_path / "run"), "--total-timesteps", "300", "--quiet"]) == 0
    assert (checkpoints / "latest").is_symlink(), "where links are allowed, the next checkpoint has one again"


@pytest.mark.parametrize("has_flock", [True, False])
def test_one_at_a_time_has_the_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_flock: bool) -> None:
    if not has_flock:
        monkeypatch.setattr(lock, "fcntl", None)
    first, second = lock.Lock(tmp_path / ".lock"), lock.Lock(tmp_path / ".lock")
    assert first.take()
    assert not second.take()
    assert bool(first.descriptors()) == has_flock
    first.close()
    assert second.take()
    second.close()


def test_a_file_in_the_place_of_a_link_must_name_a_checkpoint(tmp_path: Path) -> None:
    checkpoints = tmp_path / "checkpoints"
    checkpoints.mkdir()
    latest = checkpoints / "latest"
    latest.write_text("step-0000000050")
    assert follow_links(latest) == checkpoints / "step-0000000050"
    for name in ("../elsewhere", "/etc", "latest", ""):
        latest.write_text(name)
        with pytest.raises(CheckpointError, match=r"latest points to .* and not to a checkpoint beside it"):
            follow_links(latest)
