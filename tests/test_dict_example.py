"""The example with Dict observations, run as a user would."""

from __future__ import annotations

from pathlib import Path

import pytest
from moments import finish_python
from reference_scripts import EXAMPLES


@pytest.mark.slow  # learns from images for ten seconds
def test_the_example_trains_predicts_and_exports(tmp_path: Path) -> None:
    settings = ("--output-dir", tmp_path, "--steps", "600")
    finished = finish_python(EXAMPLES / "dict_observations.py", *settings, cwd=tmp_path)
    assert finished.returncode == 0, finished.stderr
    assert "onnx: inputs obs.camera, obs.position, obs.wanted; action" in finished.stdout
    assert "observation: camera: image 1x36x36 uint8 (turned from 36x36x1, channels last) -> NatureCNN" in finished.stderr
    assert "action: 2 choices between 4, 2 values as one action over their 8 combinations" in finished.stderr
    exported = {"ppo.safetensors", "dqn.safetensors", "ppo.onnx"}
    assert {path.name for path in tmp_path.iterdir()} == exported | {f"{name}.json" for name in exported}
