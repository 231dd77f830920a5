"""Progress displays: plain lines in a pipe, a live bar on a terminal, nothing with --quiet."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import io
import os
import pty
import re
import struct
import sys
import termios
from pathlib import Path

import pytest
from conftest import SHORT, tiny_values
from moments import PATIENCE, finish, start

from rl_training.errors import counted
from rl_training.experiment.config import resolve_config
from rl_training.runtime.evaluation import EvaluationResult
from rl_training.runtime.hooks import Training
from rl_training.runtime.progress import BarProgress, LineProgress, Progress, choose_progress
from rl_training.runtime.trainer import Trainer

TINY = (*SHORT, "--set=eval.interval=100", "--set=eval.final_episodes=2", "--set=log.tensorboard=false")


class Steps(Training):
    """Something to watch."""

    def __init__(self, env_steps: int) -> None:
        self.total_timesteps = 1000
        self.now = env_steps

    @property
    def env_steps(self) -> int:
        return self.now

    def metrics(self) -> dict[str, float]:
        return {"episodes": 3, "return_mean": 21.5, "loss": 0.123456}


def test_lines_show_step_rate_time_left_return_and_loss() -> None:
    stream = io.StringIO()
    progress = LineProgress(stream)
    progress.seconds = 0.0
    watched = Steps(100)
    with progress:
        progress.on_start(watched)
        watched.now = 200
        progress.update()
    assert re.fullmatch(r"step 200/1000  \d+ steps/s  ETA \d+ s  return 21\.5  loss 0\.1235\n", stream.getvalue())


def test_no_time_is_left_if_the_last_step_of_several_environments_goes_beyond_the_total() -> None:
    stream = io.StringIO()
    progress = LineProgress(stream)
    progress.seconds = 0.0
    watched = Steps(100)
    with progress:
        progress.on_start(watched)
        watched.now = 1001
        progress.update()
    assert re.match(r"step 1001/1000  \d+ steps/s  ETA 0 s ", stream.getvalue())


def test_lines_are_printed_at_intervals() -> None:
    stream = io.StringIO()
    progress = LineProgress(stream)
    progress.seconds = 1e9
    with progress:
        progress.on_start(watched := Steps(0))
        for watched.now in range(1000):
            progress.update()
        assert stream.getvalue() == ""
        watched.now = 500
        progress.on_evaluation(EvaluationResult([1.0, 3.0], [10, 10]))
    assert stream.getvalue() == "step 500/1000  evaluation: return 2.0 +- 1.0 over 2 episodes\n"


def test_choice_in_a_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    assert type(choose_progress()) is LineProgress
    assert type(choose_progress(quiet=True)) is Progress


def test_choice_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = pty.openpty()
    try:
        with open(theirs, "w") as terminal:  # noqa: PTH123 - a descriptor, not a path
            monkeypatch.setattr(sys, "stderr", terminal)
            assert type(choose_progress()) is BarProgress
            assert type(choose_progress(quiet=True)) is Progress
            monkeypatch.undo()
    finally:
        os.close(ours)


def test_a_run_in_a_pipe_prints_plain_lines(tmp_path: Path) -> None:
    done = finish("train", "--config", "dqn/cartpole", *TINY, cwd=tmp_path)
    assert done.returncode == 0
    assert "\x1b" not in done.stderr
    assert "\r" not in done.stderr
    lines = [line for line in done.stderr.splitlines() if line.startswith("step ")]
    assert [line.split()[1] for line in lines if "evaluation" in line] == ["100/300", "200/300", "300/300"]


def test_a_run_on_a_terminal_shows_a_bar(tmp_path: Path) -> None:
    shown = run_on_a_terminal(["train", "--config", "dqn/cartpole", *TINY, "--set=log.interval=50"], tmp_path)
    plain = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", shown)
    assert plain != shown, "a terminal gets a live bar"
    assert "━" in plain
    assert re.search(r"300/300\s+[1-9]\d* steps/s\s+ETA\s+\d+:\d\d:\d\d\s+return \d+.*loss \d", plain)
    assert "step      100  evaluation: return" in plain
    assert "trained 300 steps" in plain


def run_on_a_terminal(command: list[str], cwd: Path) -> str:
    """Everything that a command shows on a terminal of 120 columns."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "120"}
    environment.pop("NO_COLOR", None)
    process = start(*command, cwd=cwd, env=environment, stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    shown = b""
    try:
        with contextlib.suppress(OSError):
            while chunk := read_terminal(ours):
                shown += chunk
        assert process.wait(PATIENCE) == 0, shown.decode()
    finally:
        process.kill()
        process.wait()
        os.close(ours)
    return shown.decode()


def read_terminal(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 4096)
    except OSError as error:
        if error.errno == errno.EIO:  # the other side has closed
            return b""
        raise


def test_one_of_a_thing_is_not_several() -> None:
    assert [counted(n, "episode") for n in (0, 1, 2)] == ["0 episodes", "1 episode", "2 episodes"]


@pytest.mark.parametrize(
    ("algo", "settings", "reason"),
    [
        ("dqn", {"learning_starts": 1_000}, "updates begin at step 1000 (algo_kwargs.learning_starts)"),
        ("dqn", {"batch_size": 120}, "the replay has 60 of the 120 items of a batch (algo_kwargs.batch_size)"),
        ("dqn", {"train_freq": 100}, "an update is due every 100 steps (algo_kwargs.train_freq)"),
        ("ppo", {"n_steps": 64}, "an update takes 64 steps of every environment (algo_kwargs.n_steps)"),
        ("dqn", {}, None),
        ("ppo", {}, None),
    ],
)
def test_a_run_that_is_too_short_to_learn_says_so(
    algo: str, settings: dict[str, int], reason: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    values = tiny_values(algo, num_envs=2, total_timesteps=2_000, algo_kwargs=settings)
    trainer = Trainer(resolve_config(values))  # shows no progress
    trainer.train(60, evaluate=False)
    trainer.close()
    expected = f"no update was made in 60 steps, so the policy is still the initial one: {reason}\n"
    assert capsys.readouterr().err == ("" if reason is None else expected)
