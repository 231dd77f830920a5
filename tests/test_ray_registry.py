"""Every algorithm on Ray, in every mode that it has, with a collector killed in mid-stretch: the bits of a run inline."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from conftest import ALGORITHMS, OFF_POLICY
from test_ray import assert_no_trace
from test_ray import ray as ray  # the instance that these tests share

pytest.importorskip("ray")
pytestmark = pytest.mark.slow  # three processes that import torch for each run

MODES = [(name, "lockstep") for name in ALGORITHMS] + [(name, "pipelined") for name in OFF_POLICY]


@pytest.mark.parametrize(("name", "mode"), MODES)
def test_collectors_on_ray_that_are_killed_leave_no_trace(ray: Any, name: str, mode: str, tmp_path: Path) -> None:
    assert_no_trace(name, mode, tmp_path)
