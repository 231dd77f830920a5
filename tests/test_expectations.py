"""What a packaged config shows before it trains: the return that it has reached, and the time that it took."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

import pytest

from rl_training.commands.training import note_expectation
from rl_training.experiment import packaged
from rl_training.experiment.config import load_config_data, resolve_config
from rl_training.runtime.progress import LineProgress
from rl_training.runtime.trainer import Trainer

LINE = r"expect: return [\d.]+, \d+ s \(medians over seeds, measured on two cores: docs/benchmarks.md\)\n"


@pytest.mark.parametrize(
    ("changes", "shown"),
    [({}, True), ({"seed": 7, "output_dir": "elsewhere"}, True), ({"total_timesteps": 2000}, False)],
    ids=["as packaged", "another seed", "another length"],
)
def test_a_packaged_config_shows_before_it_starts_what_to_expect(changes: dict[str, object], shown: bool) -> None:
    stream = io.StringIO()
    config = resolve_config({**load_config_data("dqn/cartpole"), **changes})
    with contextlib.closing(Trainer(config, progress=LineProgress(stream))) as trainer:
        note_expectation(trainer, "dqn/cartpole")
        note_expectation(trainer, None)  # trained without a packaged config
    assert re.fullmatch(LINE if shown else "", stream.getvalue())


def test_a_config_that_has_not_been_measured_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packaged, "EXPECTED", tmp_path / "expected.json")
    packaged.EXPECTED.write_text("{}")
    stream = io.StringIO()
    with contextlib.closing(
        Trainer(resolve_config(load_config_data("dqn/cartpole")), progress=LineProgress(stream))
    ) as trainer:
        note_expectation(trainer, "dqn/cartpole")
        note_expectation(trainer, "my.yaml")
    assert stream.getvalue() == "what to expect of dqn/cartpole has not been measured yet\n"
