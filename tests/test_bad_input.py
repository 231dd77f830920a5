"""Every mistake gets one sentence that names the thing and the fix, exit code 2, no traceback, and nothing is lost."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import final_fingerprint
from moments import PATIENCE, finish, start, wait_for_checkpoint, waiting_at

from rl_training.cli import main
from rl_training.experiment.checkpoint import verify_checkpoint
from rl_training.experiment.packaged import packaged_configs
from rl_training.experiment.registry import algorithms
from rl_training.experiment.run import step_directories

pytestmark = pytest.mark.usefixtures("place")
CARTPOLE = [name for name in packaged_configs() if name.endswith("/cartpole")]
TRAIN = ("train", "--config", "tiny.yaml", "--quiet")
SCRATCH = ("train", "--algo", "dqn", "--total-timesteps=300", "--set=algo_kwargs.learning_starts=50", "--quiet")
ODD = "--env=rl_training_test_envs:OddSpaces-v0"


@pytest.fixture
def run(finished_run: Path, place: Path) -> Path:
    """A finished run that a test may spoil."""
    shutil.copytree(finished_run, place / "run", symlinks=True)
    return Path("run")


def files_below(path: Path) -> dict[Path, bytes | None]:
    return {entry: entry.read_bytes() if entry.is_file() else None for entry in path.rglob("*") if entry.name != ".lock"}


def assert_refused(capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], *words: str) -> None:
    """Exit code 2, one line that has all the words, and every file as it was before."""
    before = files_below(Path())
    capsys.readouterr()
    code: object
    try:
        code = main(arguments)
    except SystemExit as stopped:  # how argparse ends
        code = stopped.code
    shown = capsys.readouterr()
    assert code == 2, shown
    assert shown.out == ""
    assert_one_error(shown.err, *words)
    assert files_below(Path()) == before


def assert_one_error(text: str, *words: str) -> None:
    errors = [line for line in text.splitlines() if "error: " in line]
    assert len(errors) == 1, text
    assert "Traceback" not in text
    for word in words:
        assert word in errors[0], f"{word!r} is not in: {errors[0]}"


# ----------------------------------------------------------------------------------------------- names and values


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("train",), ("--config", "--algo", "--env")),
        (("train", "--algo", "dqn"), ("names no environment", "--env")),
        ((*TRAIN, "--algo", "dqnn"), ("unknown algorithm 'dqnn'", "did you mean 'dqn'?")),
        ((*TRAIN, "--algo", "DQNN"), ("unknown algorithm 'DQNN'", "did you mean 'dqn'?")),
        ((*TRAIN, "--algo", "zzz"), ("unknown algorithm 'zzz'", "choose one of: ", "dqn")),
        ((*TRAIN, "--env", "CartPol-v1"), ("unknown environment 'CartPol-v1'", "did you mean 'CartPole-v1', ")),
        ((*TRAIN, "--env", "CartPole-v9"), ("unknown environment 'CartPole-v9'", "'CartPole-v1'")),
        (
            (*TRAIN, "--env", "Missing/Pong-v5"),
            ("unknown environment 'Missing/Pong-v5'", "installed the proper package for Missing"),
        ),
        ((*TRAIN, "--env", "no_such_module:Env-v0"), ("cannot import the module 'no_such_module'",)),
        ((*TRAIN, "--set=env_kwargs.colour=red"), ("CartPole-v1 does not take env_kwargs", "colour")),
        (("train", "--config", "dqn/cartpol"), ("unknown config 'dqn/cartpol'", "did you mean 'dqn/cartpole'?")),
        *(
            (
                ("train", "--config", task),
                (f"unknown config '{task}'", f"did you mean {CARTPOLE[0]}, ", f" or {CARTPOLE[-1]}?"),
            )
            for task in ("cartpole", "CartPole-v1", "catpole", "cart_pole")
        ),
        (("train", "--config", "acrobt"), ("did you mean dqn/acrobot, ppo/acrobot or qr_dqn/acrobot?",)),
        (("train", "--config", "tqc"), ("did you mean tqc/pendulum?",)),
        (("train", "--config", "xyzzy"), ("the closest of the ",)),
        (("show", "dqn/cartpol"), ("unknown config 'dqn/cartpol'", "dqn/cartpole")),
        ((*TRAIN, "--set=sede=3"), ("unknown key 'sede'", "did you mean 'seed'?")),
        ((*TRAIN, "--set=learning_rat=3"), ("unknown key 'learning_rat'", "did you mean 'algo_kwargs.learning_rate'?")),
        ((*TRAIN, "--set=final_episode=3"), ("unknown key 'final_episode'", "did you mean 'eval.final_episodes'?")),
        ((*TRAIN, "--set=lambda=3"), ("the closest of the ", "algo_kwargs.")),
        ((*TRAIN, "--set=algo_kwargs.batchsize=3"), ("unknown key 'algo_kwargs.batchsize'", "did you mean 'batch_size'?")),
        ((*TRAIN, "--set=env_workers=threads"), ("env_workers", "'inline' or 'subprocess'", "'threads'")),
        ((*TRAIN, "--device", "cudaa"), ("device 'cudaa'", "use device: cpu")),
        ((*TRAIN, "--device", "meta"), ("device 'meta'", "use device: cpu")),
        ((*TRAIN, "--set", "seed"), ("--set takes key=value", "'seed'")),
        ((*TRAIN, "--set", "eval=[1"), ("--set eval=[1 is not valid YAML",)),
        (("trian",), ("'trian'", "'train'")),
        (("export", "run", "--format", "pickle"), ("'pickle'", "'onnx'", "'safetensors'")),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) and value[0] in ("train", "show", "trian") else "",
)
def test_unknown_names(arguments: tuple[str, ...], words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert_refused(capsys, arguments, *words)


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("algo_kwargs.batch_size=-1", ("algo_kwargs.batch_size", "greater than or equal to 1", "-1")),
        ("algo_kwargs.batch_size=many", ("algo_kwargs.batch_size", "integer", "'many'")),
        ("algo_kwargs.batch_size=1.5", ("algo_kwargs.batch_size", "1.5")),
        ("algo_kwargs.batch_size=true", ("algo_kwargs.batch_size", "not true or false")),
        ("algo_kwargs.gamma=1.5", ("algo_kwargs.gamma", "less than or equal to 1", "1.5")),
        ("algo_kwargs.learning_rate=.nan", ("algo_kwargs.learning_rate", "finite")),
        ("algo_kwargs.hidden_sizes=[8, 0]", ("algo_kwargs.hidden_sizes.1", "greater than or equal to 1")),
        ("algo_kwargs.buffer_size=5", ("buffer_size (5)", "batch_size (8)", "raise buffer_size or lower batch_size")),
        ("algo_kwargs.buffer_size=10000000000000", ("10000000000000 transitions", "GB", "lower algo_kwargs.buffer_size")),
        (
            "algo_kwargs.learning_starts=240",
            ("learning_starts (240)", "total_timesteps (240)", "lower learning_starts or raise"),
        ),
        ("total_timesteps=10", ("learning_starts (20)", "total_timesteps (10)")),
        ("total_timesteps=0", ("total_timesteps", "greater than or equal to 1")),
        ("seed=-1", ("seed", "greater than or equal to 0")),
        ("seed=abc", ("seed", "integer", "'abc'")),
        ("num_envs=0", ("num_envs", "greater than or equal to 1")),
        ("eval=3", ("eval is a group of settings", "episodes")),
        ("algo_kwargs=3", ("algo_kwargs must be a mapping",)),
    ],
)
def test_wrong_types_and_ranges(setting: str, words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert_refused(capsys, (*TRAIN, "--set", setting), *words)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--env=Pendulum-v1",), ("Pendulum-v1", "continuous actions", "dqn takes", "discrete actions")),
        (
            (ODD, "--set=env_kwargs.observation=dict"),
            ("the entry 'words'", "OddSpaces-v0", "Text space", "{name: select_observation, keys: [a]}"),
        ),
        ((ODD, "--set=env_kwargs.observation=text"), ("OddSpaces-v0", "Text observations", "arrays of numbers")),
        ((ODD, "--set=env_kwargs.action=many"), ("OddSpaces-v0", "20, 20, 20", "8000 combinations", "use ppo")),
        ((ODD, "--set=env_kwargs.action=unbounded"), ("dqn takes", "unbounded actions", "ppo, recurrent_ppo")),
    ],
)
def test_spaces_that_cannot_be_used(
    arguments: tuple[str, ...], words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert_refused(capsys, (*SCRATCH, *arguments), *words)


@pytest.mark.parametrize(
    ("observation", "action", "environment"),
    [
        ("vector", "discrete", ("--env=CartPole-v1",)),
        ("vector", "continuous", ("--env=Pendulum-v1",)),
        ("image", "discrete", (ODD, "--set=env_kwargs.observation=image")),
    ],
)
def test_the_algorithms_that_can_use_a_space_are_named(
    algo: str, observation: str, action: str, environment: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    able = [entry.name for entry in algorithms().values() if observation in entry.observations and action in entry.actions]
    if algo in able:
        pytest.skip(f"{algo} can use it")
    instead = f"use one of: {', '.join(able)}" if able else "no available algorithm supports it"
    assert_refused(capsys, ("train", "--algo", algo, *environment), f"{algo} takes", f"has {observation}", action, instead)


# --------------------------------------------------------------------------------------------------------- files


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, ("cannot read the config file bad.yaml", "No such file")),
        (b"\xff\xfe\x00", ("cannot read the config file bad.yaml", "not UTF-8")),
        (b"algo: [dqn\n", ("bad.yaml is not valid YAML", "line 2")),
        (b"algo: dqn\nseed: 1\nseed: 2\n", ("bad.yaml", "duplicate key 'seed'", "line 3")),
        (b"algo: dqn\nalgo_kwargs:\n  gamma: 1\n  gamma: 0.9\n", ("duplicate key 'gamma'", "line 4")),
        (b"- dqn\n", ("the config bad.yaml must be a mapping",)),
        (b"", ("the config bad.yaml must be a mapping",)),
        (b"env_id: CartPole-v1\n", ("names no algorithm", "--algo")),
        (b"algo: dqn\nenv_id: CartPole-v1\nsede: 1\n", ("unknown key 'sede'", "did you mean 'seed'?")),
    ],
)
def test_bad_config_files(content: bytes | None, words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    if content is not None:
        Path("bad.yaml").write_bytes(content)
    assert_refused(capsys, ("train", "--config", "bad.yaml"), *words)


def test_a_directory_is_no_config_file(capsys: pytest.CaptureFixture[str]) -> None:
    Path("folder.yaml").mkdir()
    assert_refused(capsys, ("show", "folder.yaml"), "cannot read the config file folder.yaml", "directory")


@pytest.mark.parametrize(
    ("output", "words"),
    [
        ("file/run", ("cannot write in the output directory file/run", "Not a directory")),
        ("file", ("the output directory file is not a directory", "choose another --output-dir")),
        ("/proc/run", ("cannot write in the output directory /proc/run",)),
        ("full", ("the output directory full is not empty", "choose another --output-dir")),
        (
            "run",
            (
                "run already holds a run",
                "resume run",
                "--overwrite (in Python overwrite=True)",
                "choose another --output-dir",
            ),
        ),
    ],
)
def test_output_directories(output: str, words: tuple[str, ...], run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("file").write_text("mine")
    Path("full").mkdir()
    Path("full/precious").write_text("mine")
    assert_refused(capsys, (*TRAIN, "--output-dir", output), *words)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_read_only_output_directory(capsys: pytest.CaptureFixture[str]) -> None:
    Path("locked").mkdir(mode=0o500)
    assert_refused(
        capsys, (*TRAIN, "--output-dir", "locked/run"), "cannot write in the output directory", "Permission denied"
    )


# ------------------------------------------------------------------------------------------- runs and checkpoints


@pytest.mark.parametrize("command", ["resume", "eval", "predict", "export"])
@pytest.mark.parametrize(
    ("path", "words"),
    [("nowhere", ("nowhere", "there is no run")), ("empty", ("empty", "run directory")), ("tiny.yaml", ("tiny.yaml",))],
)
def test_what_is_no_run(command: str, path: str, words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    Path("empty").mkdir()
    assert_refused(capsys, (command, path), *words)


def test_a_run_without_a_checkpoint(run: Path, finished_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.rmtree(run / "checkpoints")
    assert_refused(capsys, ("eval", "run"), "run has no usable checkpoint", "rl-training resume run")
    assert main(["resume", "run", "--quiet"]) == 0, "stopped before its first checkpoint, a run begins again"
    assert final_fingerprint(run) == final_fingerprint(finished_run)


@pytest.mark.parametrize("command", ["resume", "eval"])
def test_a_run_whose_checkpoints_are_all_damaged(command: str, run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for path in step_directories(run):
        (path / "policy.safetensors").write_bytes(b"")
    assert_refused(capsys, (command, "run"), "checkpoint", "run")


def test_resuming_to_less_than_there_is(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert_refused(capsys, ("resume", "run", "--total-timesteps", "100"), "already at step 240", "not 100")


@pytest.mark.parametrize("total", ["many", "1.5"])
def test_resuming_to_no_number(run: Path, total: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert_refused(capsys, ("resume", "run", "--total-timesteps", total), "--total-timesteps", total)


@pytest.mark.parametrize("command", ["eval", "predict", "export", "resume"])
def test_a_damaged_checkpoint(command: str, run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = run / "checkpoints" / "step-0000000240" / "policy.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    assert_refused(capsys, (command, "run/checkpoints/latest"), "policy.safetensors is damaged")


def test_a_damaged_newest_checkpoint_is_passed_over_with_a_warning(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (run / "checkpoints" / "step-0000000240" / "policy.safetensors").write_bytes(b"")
    capsys.readouterr()
    assert main(["eval", "run", "--episodes", "1"]) == 0
    warned = [line for line in capsys.readouterr().err.splitlines() if "falling back" in line]
    assert len(warned) == 1
    assert "step-0000000240" in warned[0]


@pytest.mark.parametrize("episodes", ["0", "-1", "x"])
def test_no_number_of_episodes(episodes: str, run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert_refused(capsys, ("eval", "run", "--episodes", episodes), "--episodes", episodes)


@pytest.mark.parametrize(
    ("output", "extra"), [("nowhere/p.onnx", "onnx"), ("nowhere/p.safetensors", "safetensors"), ("run", "safetensors")]
)
def test_an_export_that_cannot_be_written(output: str, extra: str, run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert_refused(capsys, ("export", "run", "--output", output, "--format", extra), f"cannot write {output}")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("nowhere",), ("nowhere is not a run directory",)),
        (("run", "--output", "nowhere/x.png"), ("cannot write the plot nowhere/x.png",)),
        (("run", "--output", "curves.xyz"), ("cannot write the plot curves.xyz",)),
    ],
)
def test_plots(arguments: tuple[str, ...], words: tuple[str, ...], run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert_refused(capsys, ("plot", *arguments), *words)


# ---------------------------------------------------------------------------------------------- while it is running


def train_on_a_full_disk(limit: int, *command: str) -> subprocess.CompletedProcess[str]:
    """The disk is full once a file has this many bytes: writing on fails."""
    return finish(*command, "--output-dir", "run", limits={resource.RLIMIT_FSIZE: limit})


@pytest.mark.parametrize(
    ("limit", "settings", "words"),
    [
        # The replay of 240 steps no longer fits, that of 70 does.
        (9_000, ["algo_kwargs.buffer_size=1000"], ("cannot write the checkpoint", "free space", "resume")),
        # The log outgrows the limit long before any checkpoint does.
        (6_000, ["log.interval=1", "checkpoint.interval=5"], ("cannot write the log", "free disk space", "resume")),
    ],
    ids=["checkpoint", "log"],
)
def test_disk_full(limit: int, settings: list[str], words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    command = [*TRAIN, *(f"--set={setting}" for setting in settings)]
    done = train_on_a_full_disk(limit, *command)
    assert done.returncode == 2, done.stderr
    assert_one_error(done.stderr, *words)
    left = step_directories(Path("run"))
    assert left
    assert 0 < verify_checkpoint(left[0])["info"]["step"] < 240
    assert not list(Path("run/checkpoints").glob(".writing-*"))
    assert main(["resume", "run", "--quiet"]) == 0
    assert main([*command, "--output-dir", "undisturbed"]) == 0
    assert final_fingerprint(Path("run")) == final_fingerprint(Path("undisturbed"))


def test_disk_full_at_the_start_leaves_nothing_in_the_way() -> None:
    done = train_on_a_full_disk(100, *TRAIN)
    assert done.returncode == 2, done.stderr
    assert_one_error(done.stderr, "cannot write in the output directory run", "File too large")
    assert not Path("run").exists()


@pytest.fixture
def busy() -> Iterator[Path]:
    """A run in which another process is training, held in the middle for as long as the test takes."""
    process = start(*TRAIN, "--env=rl_training_test_envs:Waiting-v0", "--output-dir", "busy", env=waiting_at(100))
    try:
        wait_for_checkpoint(Path("busy"), process)
        yield Path("busy")
        assert process.poll() is None, "the run that was there first was disturbed"
        process.send_signal(signal.SIGINT)
        printed, _ = process.communicate(timeout=PATIENCE)
        assert process.returncode == 130
        assert "rl-training resume busy" in printed
    finally:
        process.kill()
        process.wait()


def test_two_processes_in_one_run(busy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["resume", "busy"]) == 2
    assert_one_error(capsys.readouterr().err, "another process is training in busy", "wait for it to finish or stop it")
    assert main([*TRAIN, "--output-dir", "busy"]) == 2
    assert_one_error(capsys.readouterr().err, "busy already holds a run")
    assert main(["eval", "busy", "--episodes", "1"]) == 0, "looking at a run under way is fine"
