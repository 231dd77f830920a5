"""Runs whose replay is saved in segments: damaged and forged ones are named, and kills at any moment cost nothing."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from conftest import env_of_tests, final_fingerprint, settings_of, tiny_config, tiny_values, train_tiny
from forgery import forge, promptly, put_in_place
from moments import finish_python
from safetensors.numpy import load_file, save_file

from rl_training.cli import main
from rl_training.data import segments
from rl_training.data.segments import Snapshot
from rl_training.errors import CheckpointError
from rl_training.experiment.checkpoint import MANIFEST, verify_checkpoint
from rl_training.experiment.run import step_directories
from rl_training.runtime.sessions import resume_training, start_training

BLOCKS = {"SMALLEST_BLOCK": 1, "BLOCKS_PER_RING": 8}


@pytest.fixture(scope="module", autouse=True)
def _small_blocks() -> Iterator[None]:
    """Blocks of few rows, so that small buffers have several."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in BLOCKS.items():
            patch.setattr(segments, name, value)
        yield


@pytest.fixture(scope="module")
def finished_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its checkpoints share segments; those of a copy share nothing."""
    path = tmp_path_factory.mktemp("runs") / "run"
    return train_tiny(path, checkpoint={"interval": 60}, algo_kwargs={"buffer_size": 150})


def segments_of(checkpoint: Path) -> list[Path]:
    found = sorted(checkpoint.glob("replay-*.safetensors"))
    assert len(found) > 3
    return found


def test_checkpoints_of_a_run_share_their_segments(finished_run: Path) -> None:
    newest, before = step_directories(finished_run)[:2]
    shared = {file.name for file in segments_of(newest)} & {file.name for file in segments_of(before)}
    assert shared
    assert all((newest / name).samefile(before / name) for name in shared)


def test_the_first_save_after_a_resume_shares_the_segments_too(finished_run: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(finished_run, run, symlinks=True)
    resumed_from = step_directories(run)[0]
    trainer = resume_training(run, warn=pytest.fail, total_timesteps=260)
    trainer.train()
    trainer.close()
    newest = step_directories(run)[0]
    assert newest.name == "step-0000000260"
    shared = {file.name for file in segments_of(newest)} & {file.name for file in segments_of(resumed_from)}
    assert len(shared) > 3
    assert all((newest / name).samefile(resumed_from / name) for name in shared)


def test_a_checkpoint_that_is_not_begun_lets_go_of_the_memory_of_the_replay(tmp_path: Path) -> None:
    """Otherwise training, which continues in Python, would wait for ever for it to be written."""
    trainer = start_training(tiny_config("dqn", output_dir=str(tmp_path / "run"), total_timesteps=150), command="test")
    trainer.train()
    replay = trainer.learner.snapshot()
    assert isinstance(replay, Snapshot)
    assert any(replay.unsaved._left.values())
    shutil.rmtree(tmp_path / "run")
    assert trainer.run is not None
    with pytest.raises(CheckpointError, match="was removed or moved"):
        trainer.run.save(150, {"replay": replay}, {})
    assert not any(replay.unsaved._left.values())
    trainer.close()


# ------------------------------------------------------------------------------------------------- damage and forgery


def truncated(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-9])


def longer(file: Path) -> None:
    file.write_bytes(file.read_bytes() + b"x")


def flipped(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[-3] ^= 1
    file.write_bytes(content)


def swapped(file: Path) -> None:
    other = segments_of(file.parent)[-1]
    content = file.read_bytes()
    file.write_bytes(other.read_bytes())
    other.write_bytes(content)


def a_link(file: Path) -> None:
    moved = file.parent.parent / "elsewhere"
    file.rename(moved)
    file.symlink_to(moved)


def a_pipe(file: Path) -> None:
    put_in_place(file, "pipe")


@pytest.mark.parametrize("damage", [Path.unlink, truncated, longer, flipped, swapped, a_link, a_pipe])
def test_a_damaged_segment_is_named_and_the_previous_checkpoint_is_used(run: Path, damage: Callable[[Path], None]) -> None:
    newest, before = step_directories(run)[:2]
    file = segments_of(newest)[0]
    damage(file)
    messages: list[str] = []
    with promptly(), pytest.raises(CheckpointError, match=file.name):
        verify_checkpoint(newest)
    with promptly():
        trainer = resume_training(run, warn=messages.append)
    trainer.close()
    assert f"step-{trainer.env_steps:010d}" == before.name
    assert len(messages) == 1
    assert file.name in messages[0]


def test_resume_after_a_damaged_segment_ends_bit_for_bit(run: Path, finished_run: Path) -> None:
    flipped(segments_of(step_directories(run)[0])[1])
    trainer = resume_training(run, warn=lambda message: None)
    trainer.train()
    trainer.close()
    assert final_fingerprint(run) == final_fingerprint(finished_run)


Skeleton = dict[str, Any]


def edit_skeleton(checkpoint: Path, change: Callable[[Skeleton], object]) -> None:
    file = checkpoint / "replay.json"
    skeleton = json.loads(file.read_text())
    change(skeleton["rings"]["transitions"])
    file.write_text(json.dumps(skeleton))


def edit_arrays(checkpoint: Path, change: Callable[[str, Any], Any]) -> None:
    file = segments_of(checkpoint)[1]
    save_file({name: change(name, array) for name, array in load_file(file).items()}, file)


def swapped_and_resealed(checkpoint: Path) -> None:
    swapped(segments_of(checkpoint)[0])


def set_values(**values: Any) -> Callable[[Path], None]:
    return lambda checkpoint: edit_skeleton(checkpoint, lambda ring: ring.update(values))


def drop_a_segment(checkpoint: Path) -> None:
    edit_skeleton(checkpoint, lambda ring: ring["segments"].pop(1))


def overlap(checkpoint: Path) -> None:
    edit_skeleton(checkpoint, lambda ring: ring["segments"].insert(1, ring["segments"][0]))


def another_name(checkpoint: Path) -> None:
    edit_skeleton(checkpoint, lambda ring: ring["segments"][0].__setitem__(0, 7))


def huge(checkpoint: Path) -> None:
    edit_skeleton(checkpoint, lambda ring: ring["segments"][0].__setitem__(0, -(2**80)))


def fewer_rows(checkpoint: Path) -> None:
    edit_arrays(checkpoint, lambda name, array: array[:-1].copy())


def other_type(checkpoint: Path) -> None:
    edit_arrays(checkpoint, lambda name, array: array.astype(np.int32))


def other_columns(checkpoint: Path) -> None:
    file = segments_of(checkpoint)[1]
    save_file({f"{name}x": array for name, array in load_file(file).items()}, file)


FORGERIES = {
    "swapped": (swapped_and_resealed, "does not hold the rows"),
    "dropped": (drop_a_segment, "lacks rows"),
    "overlapping": (overlap, "lacks rows"),
    "another name": (another_name, "does not list replay-transitions-000000000007"),
    "huge": (huge, "lacks rows"),
    "fewer rows": (fewer_rows, "are needed"),
    "other type": (other_type, "are needed"),
    "other columns": (other_columns, "other columns"),
    "other size": (set_values(rows=151), "another size"),
    "other position": (set_values(written=10**9), "another size"),
    "no number": (set_values(begin="7"), "another size"),
    "no list": (set_values(segments=3), "does not fit"),
    "no pairs": (set_values(segments=[[1, 2, 3]]), "does not fit"),
    "no rows": (set_values(tail={}), "other columns"),
}


def test_a_segment_that_is_damaged_in_every_checkpoint_costs_the_replay_and_not_the_run(run: Path) -> None:
    for checkpoint in step_directories(run):
        flipped(segments_of(checkpoint)[0])
    newest, said = step_directories(run)[0], list[str]()
    trainer = resume_training(run, warn=said.append, total_timesteps=400)
    assert trainer.env_steps == int(newest.name.removeprefix("step-"))
    assert len(trainer.learner.replay) == 0  # type: ignore[attr-defined]
    assert said[0].endswith("; continuing from it without its replay")
    assert all(line.endswith("; falling back to the previous checkpoint") for line in said[1:-1])
    assert f"{newest} has a damaged replay, so training continues with an empty one" in said[-1]
    trainer.train()
    trainer.close()
    assert "replay" in verify_checkpoint(step_directories(run)[0])["parts"]


@pytest.mark.parametrize("name", FORGERIES)
def test_a_forged_replay_is_refused_in_one_sentence(run: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    change, words = FORGERIES[name]
    for checkpoint in step_directories(run):
        change(checkpoint) if len(list(checkpoint.glob("replay-*"))) > 3 else shutil.rmtree(checkpoint)
    for checkpoint in step_directories(run):
        forge(checkpoint)
    assert main(["resume", str(run), "--quiet"]) == 2
    shown = capsys.readouterr().err
    assert len([line for line in shown.splitlines() if line.startswith("error: ")]) == 1
    assert words in shown
    assert "Traceback" not in shown


@pytest.mark.parametrize(
    "name",
    [
        "replay-../../x-000000000000.safetensors",
        "replay-transitions-0.safetensors",
        "replay-transitions-000000000000.json",
        "other-transitions-000000000000.safetensors",
        "/replay-transitions-000000000000.safetensors",
        "replay-transitions-000000000000.safetensors\n",
    ],
)
def test_a_manifest_with_a_name_that_is_no_segment_is_refused(run: Path, name: str) -> None:
    checkpoint = step_directories(run)[0]
    forge(checkpoint, lambda body: body["files"].update({name: {"bytes": 1, "sha256": "0" * 64}}))
    with pytest.raises(CheckpointError, match="not a valid manifest"):
        verify_checkpoint(checkpoint)


# -------------------------------------------------------------------------------------------------------------- kills

#: Runs the command line with small blocks. It kills itself at the n-th thing that it does among its checkpoints: at opening,
#: linking, renaming or removing a file or directory; without n it prints the number of them, and of those that are links.
DRIVER = """
import os, signal, sys
from rl_training.cli import main
from rl_training.data import segments

segments.SMALLEST_BLOCK, segments.BLOCKS_PER_RING = {SMALLEST_BLOCK}, {BLOCKS_PER_RING}
kill_at, counts = int(sys.argv[1]), {{}}

def watch(event, arguments):
    if event in ("open", "os.link", "os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.symlink"):
        if any("/checkpoints" in str(argument) or "replay-" in str(argument) for argument in arguments):
            counts[event] = counts.get(event, 0) + 1
            if sum(counts.values()) == kill_at:
                os.kill(os.getpid(), signal.SIGKILL)

sys.addaudithook(watch)
code = main(sys.argv[2:])
print(sum(counts.values()), counts.get("os.link", 0), counts.get("os.rmdir", 0))
sys.exit(code)
""".format(**BLOCKS)

#: an algorithm for each kind of buffer
KINDS = {"dqn": {}, "c51": {"prioritized": True}, "drq": {}, "r2d2": {}, "drqn": {}}


def write_config(path: Path, algo: str) -> Path:
    values = tiny_values(
        algo,
        **env_of_tests(algo, "RandomWalk"),
        num_envs=2,
        total_timesteps=400,
        checkpoint={"interval": 30, "keep": 2},
        eval={"interval": 0, "final_episodes": 1},
        algo_kwargs=settings_of(algo, {"n_step": 3, "buffer_size": 150, "train_freq": 8, **KINDS[algo]}),
    )
    path.write_text(yaml.safe_dump(values))
    return path


def drive(kill_at: int, *arguments: str) -> subprocess.CompletedProcess[str]:
    return finish_python("-c", DRIVER, str(kill_at), *arguments)


def kill_at_random_moments(algo: str, times: int, tmp_path: Path) -> None:
    """Every second kill comes in a run that was killed and resumed before."""
    config = write_config(tmp_path / "config.yaml", algo)
    whole = drive(0, "train", "--config", str(config), "--output-dir", str(tmp_path / "whole"), "--quiet")
    assert whole.returncode == 0, whole.stderr
    moments, links, removals = map(int, whole.stdout.split()[-3:])
    assert links > 10
    assert removals > 3
    undisturbed = final_fingerprint(tmp_path / "whole")
    assert len([name for name in undisturbed["files"] if name.startswith("replay-")]) > 3
    draw = random.Random(algo)
    for i in range(times):
        run = tmp_path / f"killed-{i}"
        killed = drive(draw.randrange(moments // 8, moments), "train", "--config", str(config), "--output-dir", str(run))
        assert killed.returncode == -signal.SIGKILL, killed.stderr
        if i % 2:
            again = drive(draw.randrange(1, moments // 2), "resume", str(run), "--quiet")
            assert again.returncode in (-signal.SIGKILL, 0), again.stderr
        assert main(["resume", str(run), "--quiet"]) == 0
        assert final_fingerprint(run) == undisturbed
        for checkpoint in step_directories(run):
            verify_checkpoint(checkpoint)
        left = {path.name for path in (run / "checkpoints").iterdir() if path.name.startswith(".")}
        assert left <= {".latest", ".best"}


@pytest.mark.parametrize("algo", KINDS)
def test_a_run_killed_among_its_segments_ends_bit_for_bit(algo: str, tmp_path: Path) -> None:
    kill_at_random_moments(algo, 1, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("algo", KINDS)
def test_twenty_runs_killed_among_their_segments_end_bit_for_bit(algo: str, tmp_path: Path) -> None:
    kill_at_random_moments(algo, 20, tmp_path)


def test_old_segments_go_with_the_last_checkpoint_that_needs_them(finished_run: Path) -> None:
    """No file is left outside of the checkpoints, and each is linked as often as checkpoints have it."""
    links: dict[int, int] = {}
    for file in (finished_run / "checkpoints").rglob("replay-*"):
        links[file.stat().st_ino] = links.get(file.stat().st_ino, 0) + 1
    for file in (finished_run / "checkpoints").rglob("replay-*"):
        assert file.stat().st_nlink == links[file.stat().st_ino]
        assert (file.parent / MANIFEST).exists()
    assert os.path.lexists(finished_run / "checkpoints" / "latest")
