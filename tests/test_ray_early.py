"""Ray starts before torch is imported if the settings of a run, not checked yet, ask for it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from moments import PATIENCE

from rl_training.commands.early import start_ray_early
from rl_training.runtime import ray_cluster

ON_RAY = "collectors: {kind: ray, count: 3}\n"


@pytest.mark.parametrize(
    ("config", "overrides", "expected"),
    [
        ("dqn/cartpole", [], []),
        ("dqn/cartpole", ["collectors.kind=ray"], [(None, 1, 1.0)]),
        (None, ["collectors.kind=ray", "collectors.count=2", "collectors.cpus=2"], [(None, 2, 2.0)]),
        ("dqn/cartpole", ["collectors.kind=ray", "collectors.kind=process"], []),
        (ON_RAY, [], [(None, 3, 1.0)]),
        (ON_RAY, ["collectors.address=auto", "collectors.cpus=0.5"], [("auto", 3, 0.5)]),
        (ON_RAY, ["collectors.kind=inline"], []),
        (ON_RAY, ["collectors.count=100000"], []),  # more than is started unchecked
        # what is wrong is left to those who check the settings
        (ON_RAY, ["collectors.count=many"], []),
        (ON_RAY, ["collectors.address=7"], []),
        (ON_RAY, ["collectors.cpus=[1"], []),
        ("collectors: ray\n", [], []),
        ("- collectors\n", [], []),
        ("collectors: {kind: ray", [], []),
        ("no/such/config", ["collectors.kind=ray"], []),
    ],
)
def test_it_is_started_if_it_will_be_needed(
    config: str | None,
    overrides: list[str],
    expected: list[tuple[str | None, int, float]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    started: list[tuple[str | None, int, float]] = []
    monkeypatch.setattr(ray_cluster, "start_early", lambda *asked: started.append(asked))
    if config is not None and "collectors" in config:
        (tmp_path / "own.yaml").write_text(config)
        config = str(tmp_path / "own.yaml")
    start_ray_early(config, overrides)
    assert started == expected


def test_what_starts_it_does_not_import_torch() -> None:
    modules = "rl_training.cli, rl_training.experiment.plain_data, rl_training.runtime.ray_cluster"
    script = f"import sys, {modules}; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", script], check=True, timeout=PATIENCE)
