"""The run directory, or the means to write into it, disappears while a run is going on."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from conftest import final_fingerprint, tiny_config, tiny_values
from moments import PATIENCE, start, wait_for_checkpoint, wait_until

from rl_training.errors import CheckpointError
from rl_training.experiment.run import Run, step_directories
from rl_training.runtime.sessions import resume_training, start_training


def remove(run: Path) -> None:
    shutil.rmtree(run)


def move(run: Path) -> None:
    run.rename(run.with_name("elsewhere"))


def replace(run: Path) -> None:
    run.rename(run.with_name("elsewhere"))
    run.mkdir()


@pytest.mark.parametrize("how", [remove, move, replace])
def test_a_run_whose_directory_is_gone_says_so_and_writes_nothing_more(how: Callable[[Path], None], tmp_path: Path) -> None:
    """The run is held at a known step until its directory is gone. By then it has begun one checkpoint and no second one, so
    nothing is written any more once that one is in place."""
    run, place = tmp_path / "run", tmp_path / "place"
    place.mkdir()
    values = tiny_values(
        "dqn",
        env_id="hanging_envs:Hanging-v0",
        env_kwargs={"place": str(place), "after": 60},
        checkpoint={"interval": 40},
    )
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(values))
    process = start("train", "--config", str(tmp_path / "config.yaml"), "--output-dir", str(run), "--quiet")
    wait_until(lambda: any(place.iterdir()), process)
    wait_for_checkpoint(run, process)
    how(run)
    kept = sorted(tmp_path.glob("elsewhere/**/*"))
    (place / "go").touch()
    output, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 2, output
    assert errors.startswith(f"error: the run directory {run} was removed or moved while the run was going on")
    assert len(errors.splitlines()) == 1
    assert not run.exists() or not any(run.iterdir())
    assert sorted(tmp_path.glob("elsewhere/**/*")) == kept


@pytest.mark.parametrize("moment", ["log", "checkpoint", "best", "evaluation"])
def test_every_write_notices_that_the_directory_is_gone(moment: str, tmp_path: Path) -> None:
    run = Run.create(tiny_config("dqn", output_dir=str(tmp_path / "run")), "test")
    shutil.rmtree(run.path)
    with pytest.raises(CheckpointError, match="was removed or moved while the run was going on"):
        if moment == "evaluation":
            run.write_evaluation({})
        elif moment == "log":
            run.require_present()
        else:
            run.save(3, {"policy": {"x": 1}}, {}, best=moment == "best")
    assert not run.path.exists()
    run.close()


def test_a_directory_that_goes_while_a_checkpoint_is_written_does_not_come_back(tmp_path: Path) -> None:
    """Between the check and the first file, which another thread writes, is time to remove it."""
    run = Run.create(tiny_config("dqn", output_dir=str(tmp_path / "run")), "test")
    state: dict[str, Any] = {"x": 1}
    run.require_present()
    shutil.rmtree(run.path)
    run._write("step-0000000003", {"policy": state}, {}, False)
    with pytest.raises(CheckpointError, match="was removed or moved"):
        run.wait()
    assert not run.path.exists()
    run.close()


def test_without_a_thread_checkpoints_are_written_all_the_same(tmp_path: Path) -> None:
    """No thread can be started whose stack is larger than the memory."""
    run, undisturbed = tmp_path / "run", tmp_path / "undisturbed"
    for path in (run, undisturbed):
        trainer = start_training(tiny_config("dqn", output_dir=str(path), total_timesteps=120), command="test")
        if path == undisturbed:
            trainer.train()
        else:
            before = threading.stack_size(2**46)
            try:
                with pytest.warns(UserWarning, match="no thread can be started to write the checkpoint"):
                    trainer.train()
            finally:
                threading.stack_size(before)
        trainer.close()
    assert step_directories(run)
    assert final_fingerprint(run) == final_fingerprint(undisturbed)
    resumed = resume_training(run, total_timesteps=140, warn=print)
    assert resumed.train().env_steps == 140
    resumed.close()
