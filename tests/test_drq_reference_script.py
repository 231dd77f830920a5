"""The reference script of DrQ, run as a user would."""

from __future__ import annotations

from pathlib import Path

import pytest
from reference_scripts import check_reference_script


@pytest.mark.slow  # learns from images for ten seconds
def test_reference_script_trains_evaluates_and_exports(tmp_path: Path) -> None:
    check_reference_script("drq_pendulum_reference", tmp_path)
