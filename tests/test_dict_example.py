"""The example with Dict observations, run as a user would."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from reference_scripts import EXAMPLES


def test_the_example_trains_predicts_and_exports(tmp_path: Path) -> None:
    command = [
        sys.executable,
        str(EXAMPLES / "dict_observations.py"),
        "--output-dir",
        str(tmp_path),
        "--total-timesteps",
        "600",
    ]
    finished = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert finished.returncode == 0, finished.stderr
    assert "onnx: inputs obs.camera, obs.position, obs.wanted; action" in finished.stdout
    assert "observation: camera: image 1x36x36 uint8 (turned from 36x36x1, channels last) -> NatureCNN" in finished.stderr
    assert "action: 2 choice(s) between 4, 2 values as one action over their 8 combinations" in finished.stderr
    exported = {"ppo.safetensors", "dqn.safetensors", "ppo.onnx"}
    assert {path.name for path in tmp_path.iterdir()} == exported | {f"{name}.json" for name in exported}
