"""The command line, as it is used: real processes where the process matters, ``main`` in this one where speed does."""

from __future__ import annotations

import json
import os
import re
import select
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from conftest import ALGORITHMS, SHORT, final_fingerprint, tiny_values
from moments import PATIENCE, finish, start

from rl_training.cli import main
from rl_training.experiment.packaged import packaged_configs
from rl_training.experiment.registry import algorithms

TINY = (
    *SHORT,
    "--set=algo_kwargs.hidden_sizes=[16]",
    "--set=eval.interval=100",
    "--set=eval.episodes=2",
    "--set=eval.final_episodes=2",
    "--set=checkpoint.interval=100",
    "--set=log.interval=50",
)
OBS = [0.01, -0.02, 0.03, 0.04]


def written_config(run: Path) -> dict[str, Any]:
    data: dict[str, Any] = yaml.safe_load((run / "config.yaml").read_text())
    return data


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, subprocess.CompletedProcess[str]]:
    """The run directory of one training in a process of its own, and what it printed."""
    cwd = tmp_path_factory.mktemp("cli")
    done = finish("train", "--config", "dqn/cartpole", *TINY, "--seed", "1", "--output-dir", "mine", cwd=cwd)
    assert done.returncode == 0, done.stderr
    return cwd / "mine", done


@pytest.fixture
def run(trained: tuple[Path, subprocess.CompletedProcess[str]]) -> Path:
    return trained[0]


# ----------------------------------------------------------------------------------------------------------- train


def test_train_leaves_a_run_that_explains_itself(run: Path) -> None:
    names = {path.name for path in run.iterdir()} - {".lock"}
    files = {"config.yaml", "metadata.json", "metrics.jsonl", "episodes.jsonl", "evaluation.json"}
    assert names == {*files, "tensorboard", "checkpoints"}
    assert list((run / "tensorboard").glob("events.out.tfevents.*"))
    assert {"latest", "best", "step-0000000300"} <= {path.name for path in (run / "checkpoints").iterdir()}
    config = written_config(run)
    assert (config["seed"], config["total_timesteps"], config["algo_kwargs"]["double"]) == (1, 300, True)
    metadata = json.loads((run / "metadata.json").read_text())
    assert metadata["command"].startswith("rl-training train --config dqn/cartpole")
    assert {"torch", "gymnasium", "numpy"} <= set(metadata["versions"])
    assert os.uname().nodename not in json.dumps(metadata).split()
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [record["step"] for record in records if record["kind"] == "train"] == [50, 100, 150, 200, 250, 300]
    assert [record["step"] for record in records if record["kind"] == "eval"] == [100, 200, 300]
    assert len(json.loads((run / "evaluation.json").read_text())["returns"]) == 2


def test_train_reports_where_the_time_went_and_what_comes_next(
    trained: tuple[Path, subprocess.CompletedProcess[str]],
) -> None:
    _, done = trained
    assert re.search(r"trained 300 steps, \d+ episodes, \d+ updates\ntook [\d.]+ s: environment \d+%", done.stdout)
    for phase in ("acting", "sampling", "update", "evaluation", "rest"):
        assert re.search(rf"{phase} \d+%", done.stdout)
    for command in ("eval mine", "plot mine", "report mine", "export mine", "resume mine"):
        assert f"rl-training {command}" in done.stdout
    assert "replay" in done.stderr
    assert "writing to mine" in done.stderr


def test_train_from_a_file_with_flags_and_settings_on_top(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("my.yaml").write_text(yaml.safe_dump(tiny_values("dqn", seed=7)))
    assert (
        main(["train", "--config", "my.yaml", "--quiet", "--set", "algo_kwargs.batch_size=9", "--total-timesteps", "60"]) == 0
    )
    config = written_config(Path("runs/dqn-CartPole-v1-seed7"))
    assert (config["seed"], config["total_timesteps"], config["algo_kwargs"]["batch_size"]) == (7, 60, 9)
    assert main(["train", "--config", "my.yaml", "--quiet", "--seed", "8", "--set=seed=9", "--total-timesteps=60"]) == 0
    assert written_config(Path("runs/dqn-CartPole-v1-seed9"))["seed"] == 9


def test_train_from_flags_alone_takes_a_fresh_directory_each_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    command = [
        "train",
        "--algo",
        "dqn",
        "--env",
        "rl_training_test_envs:Counting-v0",
        *TINY,
        "--total-timesteps=60",
        "--quiet",
    ]
    assert main(command) == 0
    assert main(command) == 0
    first, second = sorted(Path("runs").iterdir())
    assert (first.name, second.name) == (
        "dqn-rl-training-test-envs-Counting-v0-seed0",
        "dqn-rl-training-test-envs-Counting-v0-seed0-2",
    )
    assert final_fingerprint(first) == final_fingerprint(second)


# --------------------------------------------------------------------------------------------------- using a run


def test_eval_prints_one_json_object(run: Path, tmp_path: Path) -> None:
    done = finish("eval", run, "--episodes", "5", "--json", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    result = json.loads(done.stdout)
    assert result["episodes"] == len(result["returns"]) == len(result["lengths"]) == 5
    assert result["return_mean"] == pytest.approx(np.mean(result["returns"]))
    assert list(tmp_path.iterdir()) == []


def test_eval_repeats_the_evaluation_of_the_training(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["eval", str(run), "--episodes", "2", "--json"]) == 0
    after_training = json.loads((run / "evaluation.json").read_text())
    assert json.loads(capsys.readouterr().out)["returns"] == after_training["returns"]


@pytest.mark.parametrize("which", ["latest", "best", "step-0000000200"])
def test_eval_takes_a_checkpoint(run: Path, which: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["eval", str(run / "checkpoints" / which), "--episodes", "2"]) == 0
    assert re.match(r"return [\d.]+ \+- [\d.]+ over 2 episodes \(min", capsys.readouterr().out)


def test_resume_continues_to_a_larger_total(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "long.yaml").write_text(yaml.safe_dump(tiny_values("dqn", total_timesteps=140)))
    (tmp_path / "short.yaml").write_text(yaml.safe_dump(tiny_values("dqn", total_timesteps=60)))
    for name in ("long", "short"):
        assert main(["train", "--config", f"{tmp_path / name}.yaml", "--output-dir", str(tmp_path / name), "--quiet"]) == 0
    assert main(["resume", str(tmp_path / "short"), "--total-timesteps", "140", "--quiet"]) == 0
    assert "at step 60" in capsys.readouterr().err
    assert written_config(tmp_path / "short")["total_timesteps"] == 140
    assert final_fingerprint(tmp_path / "short") == final_fingerprint(tmp_path / "long")


@pytest.mark.parametrize("how", ["option", "file"])
def test_predict_prints_one_action_a_line(run: Path, how: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = [json.dumps(OBS), json.dumps([OBS, OBS, OBS])]
    (tmp_path / "observations.jsonl").write_text("\n\n".join(lines))
    for source in lines if how == "option" else [str(tmp_path / "observations.jsonl")]:
        assert main(["predict", str(run), "--obs", source]) == 0
    actions = [json.loads(text) for text in capsys.readouterr().out.splitlines()]
    assert actions in ([0] * 4, [1] * 4)


def test_predict_takes_an_observation_spread_over_lines(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "obs.json").write_text(json.dumps(OBS, indent=1))
    assert main(["predict", str(run), "--obs", str(tmp_path / "obs.json")]) == 0
    assert capsys.readouterr().out in ("0\n", "1\n")


def test_predict_answers_each_line_before_the_next_is_sent(run: Path, tmp_path: Path) -> None:
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    with start("predict", run, cwd=tmp_path, env=buffered, stdin=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for _ in range(3):
            process.stdin.write(json.dumps(OBS) + "\n")
            process.stdin.flush()
            assert select.select([process.stdout], [], [], PATIENCE)[0], "no answer"
            assert process.stdout.readline() in ("0\n", "1\n")
        process.stdin.close()
        assert process.wait(PATIENCE) == 0


def test_export_writes_an_onnx_that_acts_alike(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import onnxruntime

    monkeypatch.chdir(tmp_path)
    assert main(["export", str(run)]) == 0
    assert "verified" in capsys.readouterr().out
    assert sorted(path.name for path in tmp_path.iterdir()) == ["policy.onnx", "policy.onnx.json"]
    obs = np.random.default_rng(3).standard_normal((50, 4)).astype(np.float32)
    action, values = onnxruntime.InferenceSession("policy.onnx").run(None, {"obs": obs})
    assert action.tolist() == values.argmax(axis=1).tolist()
    assert main(["predict", str(run), "--obs", json.dumps(obs.tolist())]) == 0
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == action.tolist()


def test_export_writes_safetensors_that_can_be_loaded(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from rl_training.runtime.export import load_exported

    output = tmp_path / "mine.safetensors"
    assert main(["export", str(run), "--format", "safetensors", "--output", str(output)]) == 0
    assert f"to {output}; verified" in capsys.readouterr().out
    assert main(["predict", str(run), "--obs", json.dumps(OBS)]) == 0
    assert json.loads(capsys.readouterr().out) == load_exported(output).predict(OBS)[0]


def test_an_export_goes_by_its_name_and_says_what_it_is(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import onnxruntime

    for suffix in ("onnx", "safetensors"):
        assert main(["export", str(run), "--output", str(tmp_path / f"mine.{suffix}")]) == 0
        beside = json.loads((tmp_path / f"mine.{suffix}.json").read_text())
        assert (beside["algorithm"], beside["env_id"], beside["outputs"]) == ("dqn", "CartPole-v1", ["action", "values"])
        assert beside["inputs"] == {"obs": {"shape": ["batch", 4], "dtype": "float32"}}
        assert beside["wrappers_not_inside"] == []
    session = onnxruntime.InferenceSession(str(tmp_path / "mine.onnx"))
    inside = json.loads(session.get_modelmeta().custom_metadata_map["rl_training"])
    assert inside == beside
    capsys.readouterr()
    assert main(["export", str(run), "--format=onnx", "--output", str(tmp_path / "other.safetensors")]) == 2
    assert "the format onnx contradicts the name" in capsys.readouterr().err
    assert not (tmp_path / "other.safetensors").exists()


@pytest.mark.parametrize("mask", [0o022, 0o077])
def test_files_are_readable_as_the_umask_says(mask: int, tmp_path: Path) -> None:
    before = os.umask(mask)
    try:
        (tmp_path / "c.yaml").write_text(yaml.safe_dump(tiny_values("dqn", total_timesteps=60)))
        assert main(["train", f"--config={tmp_path / 'c.yaml'}", f"--output-dir={tmp_path / 'run'}", "--quiet"]) == 0
        assert main(["export", str(tmp_path / "run"), "--output", str(tmp_path / "p.safetensors")]) == 0
    finally:
        os.umask(before)
    files = [path for path in tmp_path.rglob("*") if path.is_file() and not path.is_symlink()]
    assert any(path.suffix == ".safetensors" for path in files)
    assert {path.stat().st_mode & 0o777 for path in files} == {0o666 & ~mask}


# ------------------------------------------------------------------------------------------------ list, show, plot


def test_list_names_everything(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list"]) == 0
    printed = capsys.readouterr().out
    for entry in algorithms().values():
        assert re.search(rf"^  {entry.name} +{re.escape(entry.summary)}", printed, re.MULTILINE)
    for name in packaged_configs():
        assert re.search(rf"^  {name} +\w.*", printed, re.MULTILINE), "every config says what it is"
    assert not re.search(r"[.,;]{2}", printed.replace("al.,", "")), "no remains of what is shown elsewhere"
    assert "rl-training[box2d]" in printed
    assert re.search(r"^  dqn/cartpole .*; return [\d.]+, \d+ s$", printed, re.MULTILINE)


@pytest.mark.parametrize("name", sorted(packaged_configs()))
def test_show_prints_a_config_that_resolves_to_itself(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", name]) == 0
    shown = capsys.readouterr().out
    assert {"seed", "device", "checkpoint"} <= set(yaml.safe_load(shown))  # defaults that the file leaves out
    (tmp_path / "shown.yaml").write_text(shown)
    assert main(["show", str(tmp_path / "shown.yaml")]) == 0
    assert capsys.readouterr().out == shown


def test_what_configs_are_expected_to_reach_was_measured() -> None:
    import expected

    from rl_training.experiment.packaged import expected_results

    assert expected_results() == expected.expected(), "python benchmarks/expected.py writes it again"


def test_list_shows_the_runs_below_a_directory(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "--runs", str(run.parent)]) == 0
    line = capsys.readouterr().out.strip()
    assert re.fullmatch(
        rf"{re.escape(str(run))}  dqn on CartPole-v1, seed 1, step 300/300, return [\d.]+ over 2 episodes", line
    )
    assert main(["list", "--runs", str(run / "tensorboard")]) == 2
    assert "there is no run below" in capsys.readouterr().err


def test_a_run_that_ended_before_its_first_log_is_listed_at_its_last_checkpoint(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = shutil.copytree(run, tmp_path / "run", symlinks=True)
    (copy / "metrics.jsonl").write_text("")
    assert main(["list", "--runs", str(copy)]) == 0
    assert "step 300/300" in capsys.readouterr().out


def test_show_prints_every_setting_of_an_algorithm(capsys: pytest.CaptureFixture[str]) -> None:
    from rl_training.experiment.registry import get_algorithm

    for name in ALGORITHMS:
        assert main(["show", name.upper()]) == 0
        printed = capsys.readouterr().out
        for setting in get_algorithm(name).config_class.model_fields:
            assert re.search(rf"^  {setting}: \w.* \(.*; default .*\)$", printed, re.MULTILINE), setting
    assert main(["show", "dqn"]) == 0
    printed = capsys.readouterr().out
    assert "  batch_size: transitions in one update (int, at least 1; default 64)\n" in printed
    assert "(float | None, above 0; default 10.0)" in printed
    assert "  gamma: discount factor (float, at least 0 and at most 1; default 0.99)\n" in printed
    assert "  eval.episodes: episodes in each evaluation (int, at least 1; default 10)\n" in printed


def test_plot_draws_a_png(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["plot", str(run)]) == 0
    assert capsys.readouterr().out == "dqn on CartPole-v1 (evaluation)\nwritten to learning_curves.png\n"
    assert_is_a_drawing(tmp_path / "learning_curves.png")


def test_plot_draws_seeds_of_one_config_together(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = {"a": ("1", "9"), "b": ("2", "9"), "c": ("3", "9"), "other": ("1", "10")}
    for name, (seed, batch_size) in settings.items():
        chosen = [f"--seed={seed}", f"--set=algo_kwargs.batch_size={batch_size}", f"--output-dir={tmp_path / name}"]
        assert main(["train", "--config", "dqn/cartpole", *TINY, "--total-timesteps=120", *chosen, "--quiet"]) == 0
    capsys.readouterr()
    paths = [str(tmp_path / name) for name in settings]
    assert main(["plot", *paths[:3], "--output", str(tmp_path / "seeds.png")]) == 0
    assert capsys.readouterr().out.splitlines()[0] == "dqn on CartPole-v1 (evaluation, 3 seeds)"
    assert_is_a_drawing(tmp_path / "seeds.png")
    assert main(["plot", *paths, "--output", str(tmp_path / "all.png")]) == 0
    labels = capsys.readouterr().out.splitlines()[:-1]
    assert labels == ["batch_size=9 (evaluation, 3 seeds)", "batch_size=10 (evaluation)"]


def assert_is_a_drawing(path: Path) -> None:
    from matplotlib import image

    pixels = image.imread(path)
    assert pixels.shape[0] > 300
    assert pixels.shape[1] > 500
    assert pixels.std() > 0.01, "the picture is blank"
