"""The reference scripts of QR-DQN and C51, run as a user would."""

from __future__ import annotations

from pathlib import Path

import pytest
from reference_scripts import check_reference_script


@pytest.mark.parametrize("name", ["qr_dqn_cartpole_reference", "c51_cartpole_reference"])
def test_reference_script_trains_evaluates_and_exports(name: str, tmp_path: Path) -> None:
    check_reference_script(name, tmp_path)
