"""Checkpoints: a round trip is exact, and a torn, tampered, hostile or newer one is named and refused."""

from __future__ import annotations

import hashlib
import json
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import final_fingerprint, tiny_config

from rl_training.data import memory
from rl_training.errors import CheckpointError, ConfigError
from rl_training.experiment.checkpoint import MANIFEST, read_checkpoint, verify_checkpoint, write_checkpoint
from rl_training.experiment.finding import load_acting
from rl_training.experiment.run import open_run, step_directories
from rl_training.runtime.inference import load_policy
from rl_training.runtime.sessions import resume_training, start_training
from rl_training.runtime.trainer import Trainer

STATE = {
    "weights": torch.arange(6.0).reshape(2, 3),
    "half": np.array([1, 2], np.uint8),
    "empty": np.zeros((0, 4), np.float32),
    "nested": [{"number": 2**100, "none": None, "real": 0.1 + 0.2, "flag": True}, "text", np.float32(0.5)],
}


def test_round_trip_is_exact(tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "c", {"policy": STATE, "other": {"x": 1}}, {"step": 3})
    state = read_checkpoint(tmp_path / "c", ["policy"])["policy"]
    assert torch.equal(state["weights"], STATE["weights"])  # type: ignore[arg-type]
    assert state["half"].dtype == np.uint8
    assert state["empty"].shape == (0, 4)
    assert state["nested"] == [{"number": 2**100, "none": None, "real": 0.1 + 0.2, "flag": True}, "text", 0.5]
    assert [path.name for path in tmp_path.iterdir()] == ["c"]


def test_writing_over_a_checkpoint_replaces_it_and_over_anything_else_is_refused(tmp_path: Path) -> None:
    for value in (1, 2):
        write_checkpoint(tmp_path / "c", {"policy": {"x": value}}, {})
    assert read_checkpoint(tmp_path / "c", ["policy"])["policy"] == {"x": 2}
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "thesis.txt").write_text("mine")
    with pytest.raises(CheckpointError, match="not a checkpoint"):
        write_checkpoint(precious, {"policy": {"x": 1}}, {})
    assert (precious / "thesis.txt").read_text() == "mine"


MEMORY_PROBE = """
import resource, sys
from pathlib import Path
import numpy as np, torch
from rl_training.experiment.checkpoint import read_checkpoint, verify_checkpoint, write_checkpoint

path, size = Path(sys.argv[1]), 2 * 10**8
state = {"records": torch.ones(size // 2, dtype=torch.uint8), "frames": np.ones((2, size // 4), np.uint8)}
np.ones(2 * 10**6).sum()

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

before = peak()
write_checkpoint(path, {"replay": state}, {})
verify_checkpoint(path)
written = peak()
del state
read_checkpoint(path, ["replay"])
print((written - before) / size, (peak() - before) / size)
"""


def test_a_replay_is_written_without_further_copies_and_read_with_one(tmp_path: Path) -> None:
    """In sizes of the replay, beyond the state itself: the state in writing, the file's bytes in reading."""
    command = [sys.executable, "-c", MEMORY_PROBE, str(tmp_path / "c")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    written, read = map(float, done.stdout.split())
    assert written < 0.3
    assert read < 1.4


def test_one_copy_of_the_replay_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = start_training(tiny_config("dqn", output_dir=str(tmp_path / "run")), command="test")
    run, learner, idle = trainer.run, trainer.learner, list[bool]()
    assert run is not None
    snapshot = learner.snapshot

    def noting() -> Any:
        idle.append(run._writer is None)
        return snapshot()

    monkeypatch.setattr(learner, "snapshot", noting)
    trainer.train(150)
    run.save(151, {"policy": {"x": 1}}, {})  # still being written
    trainer.checkpoints.save_to(tmp_path / "elsewhere")
    trainer.close()
    assert idle == [True] * 4


def test_a_run_that_saves_its_replay_has_room_for_the_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    unsaved = Trainer(tiny_config("dqn"))
    unsaved.close()
    for module in ("rl_training.runtime.trainer", "rl_training.data.memory"):
        monkeypatch.setattr(f"{module}.available_memory", lambda: int(1.9 * unsaved.learner.nbytes))
    Trainer(tiny_config("dqn")).close()
    with pytest.raises(ConfigError, match=r"copy.*checkpoint\.replay_every: 0"):
        start_training(tiny_config("dqn", output_dir=str(tmp_path / "a")), command="test")
    assert not (tmp_path / "a").exists()
    without = tiny_config("dqn", output_dir=str(tmp_path / "b"), checkpoint={"interval": 70, "replay_every": 0})
    start_training(without, command="test").close()


def write_group(folder: Path, **files: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text + "\n")


def test_the_limits_of_control_groups_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own, groups = tmp_path / "own", tmp_path / "groups"
    own.write_text("0::/job/step\n")
    write_group(groups / "job" / "step", memory__max="max", memory__current="70", memory__stat="anon 1")
    assert memory._group_memory(groups, own) is None
    write_group(groups / "job", memory__max="100", memory__current="80", memory__stat="anon 1\ninactive_file 30")
    assert memory._group_memory(groups, own) == 50  # the group's own has no limit, the one above it has
    own.write_text("3:cpu,cpuacct:/\n2:memory:/elsewhere\n0::/\n")  # version 1, seen from inside a container
    stat = "total_inactive_file 5"
    write_group(groups / "memory", memory__limit_in_bytes="90", memory__usage_in_bytes="60", memory__stat=stat)
    assert memory._group_memory(groups, own) == 35
    assert memory._group_memory(groups, tmp_path / "none") is None
    monkeypatch.setattr(memory, "_group_memory", lambda: 7)
    assert memory.available_memory() == 7


class Bomb:
    """Unpickled, it leaves a mark."""

    def __init__(self, mark: Path) -> None:
        self._mark = mark

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return Path.touch, (self._mark,)


def truncate(file: Path) -> None:
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def flip_a_byte(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def put_a_pickle(file: Path) -> None:
    file.write_bytes(pickle.dumps(Bomb(file.parent / "executed")))


def empty(file: Path) -> None:
    file.write_bytes(b"")


FILES = [
    MANIFEST,
    "agent.json",
    "policy.json",
    "policy.safetensors",
    "training.json",
    "training.safetensors",
    "replay.json",
    "replay.safetensors",
]


def test_every_file_of_a_checkpoint_is_in_the_list(finished_run: Path) -> None:
    assert sorted(path.name for path in step_directories(finished_run)[0].iterdir()) == sorted(FILES)


@pytest.mark.parametrize("damage", [truncate, flip_a_byte, Path.unlink, put_a_pickle, empty])
@pytest.mark.parametrize("name", FILES)
def test_damage_is_named_and_refused_and_resume_falls_back(
    run: Path, finished_run: Path, name: str, damage: Callable[[Path], None]
) -> None:
    newest, before = step_directories(run)[:2]
    damage(newest / name)
    with pytest.raises(CheckpointError, match=name):
        verify_checkpoint(newest)
    messages: list[str] = []
    trainer = resume_training(run, warn=messages.append)
    assert f"step-{trainer.env_steps:010d}" == before.name
    assert len(messages) == 1
    assert newest.name in messages[0]
    assert name in messages[0]
    trainer.close()
    assert not list(run.rglob("executed"))


@pytest.mark.parametrize(("name", "damage"), [("training.safetensors", flip_a_byte), (MANIFEST, Path.unlink)])
def test_resume_after_damage_still_ends_bit_for_bit(
    run: Path, finished_run: Path, name: str, damage: Callable[[Path], None]
) -> None:
    newest = step_directories(run)[0]
    damage(newest / name)
    trainer = resume_training(run, warn=lambda message: None)
    trainer.train()
    trainer.close()
    assert final_fingerprint(run) == final_fingerprint(finished_run)
    assert (run / "checkpoints" / "set-aside" / newest.name).exists()


def rewrite_manifest(checkpoint: Path, **changes: Any) -> None:
    """What a careful attacker would do: everything consistent, digests included."""
    body = json.loads((checkpoint / MANIFEST).read_text())
    body.pop("digest")
    body.update(changes)
    for name in body["files"]:
        content = (checkpoint / name).read_bytes()
        body["files"][name] = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    digest = hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
    (checkpoint / MANIFEST).write_text(json.dumps({"digest": digest, **body}))


def test_a_newer_format_is_named_and_refused(run: Path) -> None:
    newest, before = step_directories(run)[:2]
    rewrite_manifest(newest, schema_version=99)
    with pytest.raises(CheckpointError, match="format version 99"):
        verify_checkpoint(newest)
    messages: list[str] = []
    trainer = resume_training(run, warn=messages.append)
    assert f"step-{trainer.env_steps:010d}" == before.name
    assert "format version 99" in messages[0]
    trainer.close()


@pytest.mark.parametrize("name", ["policy.safetensors", "policy.json", "agent.json"])
def test_a_pickle_with_a_forged_manifest_is_refused_and_not_executed(run: Path, name: str) -> None:
    checkpoint = step_directories(run)[0]
    put_a_pickle(checkpoint / name)
    rewrite_manifest(checkpoint)
    with pytest.raises(CheckpointError):
        load_policy(checkpoint, warn=lambda message: None)
    assert not list(run.rglob("executed"))


def test_a_forged_state_that_does_not_fit_is_refused(run: Path) -> None:
    checkpoint = step_directories(run)[0]
    (checkpoint / "policy.json").write_text(json.dumps({"weights": {"$tensor": "no such"}}))
    rewrite_manifest(checkpoint)
    with pytest.raises(CheckpointError, match="lacks the array"):
        load_policy(checkpoint, warn=lambda message: None)
    (checkpoint / "policy.json").write_text("[]")
    rewrite_manifest(checkpoint)
    with pytest.raises(CheckpointError, match="does not fit"):
        load_policy(checkpoint, warn=lambda message: None)


def test_acting_needs_only_the_policy(run: Path) -> None:
    checkpoint = step_directories(run)[0]
    for name in ("training.safetensors", "training.json", "replay.safetensors", "replay.json"):
        (checkpoint / name).unlink()
    load_policy(checkpoint, warn=lambda message: None)


def test_a_damaged_policy_falls_back_with_a_warning(run: Path) -> None:
    newest, before = step_directories(run)[:2]
    flip_a_byte(newest / "policy.safetensors")
    messages: list[str] = []
    assert load_acting(run, messages.append).path == before
    assert newest.name in messages[0]
    with pytest.raises(CheckpointError, match="damaged"):
        load_policy(newest, warn=messages.append)


def test_no_intact_checkpoint_is_an_error(run: Path) -> None:
    for path in step_directories(run):
        flip_a_byte(path / MANIFEST)
    with pytest.raises(CheckpointError, match="none of the checkpoints"):
        resume_training(run, warn=lambda message: None)
    open_run(run).close()  # and the run is not left locked


def test_links_and_leftovers(run: Path) -> None:
    checkpoints = run / "checkpoints"
    assert (checkpoints / "latest").resolve() == step_directories(run)[0].resolve()
    assert (checkpoints / "best" / MANIFEST).exists()
    assert len(step_directories(run)) == 3
    leftover = checkpoints / ".writing-step-0000000999"
    leftover.mkdir()
    open_run(run).close()
    assert not leftover.exists()


def test_a_failure_of_the_writer_reaches_the_training_thread(tmp_path: Path) -> None:
    trainer = start_training(tiny_config("dqn", output_dir=str(tmp_path / "run")), command="test")
    assert trainer.run is not None
    trainer.run.save(1, {"policy": {"x": object()}}, {})  # nothing that JSON can hold
    with pytest.raises(TypeError):
        trainer.run.wait()
    trainer.close()


def test_the_two_newest_checkpoints_with_a_replay_are_kept(tmp_path: Path) -> None:
    """So that there is another one when the newest is damaged, however few checkpoints are kept."""
    run = tmp_path / "run"
    checkpoint = {"interval": 30, "keep": 1, "replay_every": 3}
    trainer = start_training(tiny_config("dqn", checkpoint=checkpoint, output_dir=str(run)), command="test")
    trainer.train(220)
    trainer.close()
    assert [path.name for path in step_directories(run)] == ["step-0000000220", "step-0000000210"]
    assert all((path / "replay.json").exists() for path in step_directories(run))


def test_a_checkpoint_that_was_being_replaced_comes_back(run: Path) -> None:
    newest = step_directories(run)[0]
    newest.rename(newest.with_name(f".replaced-{newest.name}"))
    open_run(run).close()
    verify_checkpoint(newest)


def test_the_best_checkpoint_is_that_of_the_best_evaluation(finished_run: Path) -> None:
    records = [json.loads(line) for line in (finished_run / "metrics.jsonl").read_text().splitlines()]
    evaluations = [record for record in records if record["kind"] == "eval"]
    best = max(evaluations, key=lambda record: record["return_mean"])
    assert verify_checkpoint(finished_run / "checkpoints" / "best")["info"]["step"] == best["step"]
    state = read_checkpoint(step_directories(finished_run)[0], ["training"])["training"]
    assert state["best_return"] == best["return_mean"]
