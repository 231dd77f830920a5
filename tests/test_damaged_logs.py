"""``plot`` and ``resume`` on damaged files at the top of a run directory: said in one sentence, and nothing is made up."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from forgery import assert_refused

from rl_training.cli import main
from rl_training.experiment.metrics import METRICS_FILE, read_metrics
from rl_training.runtime.sessions import resume_training

LINES = {
    "a list": "[1]",
    "a number": "3",
    "no step": '{"kind": "eval", "return_mean": 1.0}',
    "no kind": '{"step": 3, "return_mean": 1.0}',
    "a step of text": '{"kind": "eval", "step": "3", "return_mean": 1.0}',
    "a step that is true": '{"kind": "eval", "step": true, "return_mean": 1.0}',
    "a huge step": '{"kind": "eval", "step": 1' + "0" * 400 + ', "return_mean": 1.0}',
    "a return of text": '{"kind": "eval", "step": 3, "return_mean": "high"}',
    "a return that is a list": '{"kind": "eval", "step": 3, "return_mean": [1.0]}',
    "a huge return": '{"kind": "eval", "step": 3, "return_mean": 1' + "0" * 400 + "}",
    "no text": "\x00\x01\x02",
    "deep": "[" * 100_000,
}


@pytest.mark.parametrize("line", LINES.values(), ids=LINES.keys())
def test_a_damaged_line_is_said_and_left_out(
    run: Path, tmp_path: Path, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    log = run / METRICS_FILE
    first, *others = log.read_text().splitlines()
    log.write_text("\n".join([first, line, *others]) + "\n")
    sound = [record for record in map(json.loads, (first, *others)) if record["kind"] == "eval"]
    with pytest.warns(UserWarning, match=f"line 2 of {log} cannot be read: the log is damaged there"):
        assert read_metrics(run, "eval") == sound
    assert main(["plot", str(run), "--output", str(tmp_path / "p.png")]) == 0
    shown = capsys.readouterr().err.splitlines()
    assert len(shown) == 1
    assert "line 2 of" in shown[0]


def test_a_line_of_the_right_length_is_said_by_resume(run: Path) -> None:
    log = run / METRICS_FILE
    content = bytearray(log.read_bytes())
    start = content.index(b"\n") + 1
    content[start : start + 9] = b"x" * 9
    log.write_bytes(content)
    trainer = resume_training(run, total_timesteps=250, warn=lambda message: None)
    with pytest.warns(UserWarning, match="line 2 of .* cannot be read"):
        trainer.train()
    trainer.close()


def test_a_log_that_was_cut_within_a_line_is_continued_on_a_new_one(run: Path) -> None:
    log = run / METRICS_FILE
    lines = log.read_text().splitlines(keepends=True)
    log.write_text("".join(lines[:-1]) + lines[-1][:20])
    trainer = resume_training(run, total_timesteps=300, warn=print)
    with pytest.warns(UserWarning, match="metrics") as warned:
        trainer.train()
    trainer.close()
    said = " ".join(str(one.message) for one in warned)
    assert "lines are missing" in said
    assert f"line {len(lines)} of {log} cannot be read" in said
    after = log.read_text().splitlines()
    assert after[len(lines) - 1] == lines[-1][:20]
    assert all(json.loads(line)["step"] > 240 for line in after[len(lines) :])
    assert len(after) > len(lines)


def test_a_line_without_an_end_is_not_read_for_ever(run: Path) -> None:
    with (run / METRICS_FILE).open("ab") as file:
        file.truncate(2**40)
    with pytest.warns(UserWarning, match="cannot be read"):
        assert read_metrics(run, "eval")


def test_the_line_that_a_crash_cut_off_is_no_damage(run: Path, recwarn: pytest.WarningsRecorder) -> None:
    with (run / METRICS_FILE).open("ab") as file:
        file.write(b'{"kind": "ev')
    assert read_metrics(run, "eval")
    assert not recwarn.list


CONFIGS = {
    "nothing": "",
    "a list": "[]",
    "text": "hello",
    "no algo": "env_id: CartPole-v1\n",
    "no env_id": "algo: dqn\n",
    "algo is a number": "algo: 3\nenv_id: CartPole-v1\n",
    "algo is a list": "algo: [dqn]\nenv_id: CartPole-v1\n",
    "env_id is a mapping": "algo: dqn\nenv_id: {a: 1}\n",
    "no text": "\x00",
    "deep": "[" * 3000,
}


@pytest.mark.parametrize("command", ["plot", "resume"])
@pytest.mark.parametrize("content", CONFIGS.values(), ids=CONFIGS.keys())
def test_a_damaged_config(run: Path, tmp_path: Path, content: str, command: str, capsys: pytest.CaptureFixture[str]) -> None:
    (run / "config.yaml").write_text(content)
    output = ["--output", str(tmp_path / "p.png")] if command == "plot" else ["--quiet"]
    assert_refused(capsys, [command, str(run), *output], "config.yaml")


METADATA = [
    "",
    "[]",
    "3",
    '{"versions": 3}',
    '{"versions": {"rl-training": {}}}',
    "[" * 100_000,
    '{"a":' * 90 + "1" + "}" * 90,
]


@pytest.mark.parametrize("content", METADATA, ids=range(len(METADATA)))
def test_damaged_metadata_is_no_hindrance(run: Path, content: str) -> None:
    (run / "metadata.json").write_text(content)
    resume_training(run, warn=lambda message: None).close()
