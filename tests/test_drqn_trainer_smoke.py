"""DRQN's training entry, end to end on tiny runs."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import tiny_config
from recurrent_runs import check_run, check_stored_states

from rl_training.errors import ConfigError
from rl_training.runtime.drqn_trainer import train_drqn
from rl_training.runtime.trainer import Trainer


def test_train_drqn_writes_checkpoint_and_metrics(tmp_path: Path) -> None:
    check_run(train_drqn(tiny_config("drqn", output_dir=str(tmp_path / "run"))), "drqn")


def test_stored_states_are_those_that_acting_had() -> None:
    check_stored_states("drqn")


def test_a_buffer_in_which_no_batch_comes_together_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"at least sequence_length \* \(batch_size \+ num_envs\) = 180"):
        Trainer(tiny_config("drqn", algo_kwargs={"sequence_length": 20}))
