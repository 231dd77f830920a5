"""Sizes, limits, paths and bounds that do not fit: one sentence each, before anything is allocated."""

from __future__ import annotations

import json
import resource
import warnings
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import yaml
from conftest import tiny_config, tiny_values
from moments import finish
from test_bad_input import assert_one_error, assert_refused
from test_bad_words import MISBEHAVING, TRAIN

from rl_training.cli import main
from rl_training.data.frame_replay_buffer import FrameReplayBuffer
from rl_training.envs.factory import RegisteredEnv
from rl_training.envs.pool import SeededEnvPool
from rl_training.errors import ConfigError
from rl_training.runtime.sessions import start_training
from rl_training.runtime.setup import make_pool, require_room_to_learn
from rl_training.runtime.trainer import Trainer
from rl_training.types import ActionSpec, Step

pytestmark = pytest.mark.usefixtures("place")


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("threads=100000", ("threads is 100000", "CPU(s)", "set threads to")),
        ("num_envs=100000000000", ("100000000000 environments", "GB of memory is free", "lower num_envs")),
        ("eval.num_envs=100000000000", ("100000000000 environments for evaluation", "lower eval.num_envs")),
        ("eval.episodes=1000000000000", ("1000000000000 episodes", "lower eval.episodes")),
        ("algo_kwargs.hidden_sizes=[100000000000]", ("100000000000", "GB", "lower the sizes", "hidden_sizes")),
        ("algo_kwargs.hidden_sizes=[4000000000, 4000000000]", ("4000000000", "GB", "lower the sizes")),
    ],
)
def test_sizes_that_do_not_fit(setting: str, words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert_refused(capsys, (*TRAIN, "--set", setting, "--total-timesteps=1000000000000"), *words)


@pytest.mark.parametrize(
    ("algo", "settings"),
    [
        ("dqn", {"noisy": True, "hidden_sizes": [10**11]}),
        ("drqn", {"lstm_size": 10**9}),
        ("drq", {"cnn_features": 10**11}),
        ("drq", {"cnn_layers": [[10**12, 3, 2]]}),
        ("ppo", {"n_steps": 10**12}),
        ("qr_dqn", {"num_quantiles": 10**12}),
    ],
)
def test_networks_and_rollouts_that_do_not_fit(algo: str, settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"needs \d+\.\d GB, but"):
        start_training(tiny_config(algo, algo_kwargs=settings, total_timesteps=10**14))
    assert not Path("runs").exists()


def test_a_network_that_fits_but_leaves_no_room_to_learn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three times as much is needed: gradients, and two averages of them."""
    policy = Trainer(tiny_config("dqn")).policy
    count = sum(parameter.numel() for parameter in policy.network.parameters())
    monkeypatch.setattr("rl_training.data.memory.available_memory", lambda: 12 * count)
    require_room_to_learn(policy)
    monkeypatch.setattr("rl_training.data.memory.available_memory", lambda: 12 * count - 1)
    with pytest.raises(ConfigError, match=rf"learning {count} parameters needs .* free; .* such as hidden_sizes"):
        require_room_to_learn(policy)


def test_worker_processes_that_do_not_fit() -> None:
    with pytest.raises(ConfigError, match=r"100000 environments needs 4000\.0 GB, but only .* lower num_envs"):
        make_pool(tiny_config("dqn"), None, "env", 100_000, "subprocess")


@pytest.mark.parametrize(
    ("which", "limit", "settings", "words"),
    [
        ("RLIMIT_NOFILE", 32, ("num_envs=20",), ("20 worker processes need", "open files", "may have 32", "raise the limit")),
        ("RLIMIT_AS", 300_000_000, ("num_envs=2",), ("0.8 GB of address space", "may have 0.3 GB", "ulimit -v")),
        ("RLIMIT_AS", 2_000_000_000, ("algo_kwargs.buffer_size=100000000",), ("a replay of 100000000", "GB", "buffer_size")),
        ("RLIMIT_AS", 2_000_000_000, ("algo_kwargs.hidden_sizes=[20000, 20000]",), ("GB", "hidden_sizes")),
    ],
)
def test_limits_on_files_and_addresses(which: str, limit: int, settings: tuple[str, ...], words: tuple[str, ...]) -> None:
    overrides = [f"--set={setting}" for setting in ("env_workers=subprocess", *settings)]
    done = finish(*TRAIN, *overrides, "--output-dir", "out", limits={getattr(resource, which): limit})
    assert done.returncode == 2, done.stderr
    assert_one_error(done.stderr, *words)
    assert not Path("out").exists()


def test_a_worker_that_cannot_be_started_leaves_none_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rl_training.envs.worker_set.require_room_for_workers", lambda count: None)
    import multiprocessing
    from multiprocessing import context

    started: list[Any] = []

    def start(self: Any, original: Any = context.SpawnProcess.start) -> None:
        if len(started) == 2:
            raise OSError(24, "Too many open files")
        started.append(self)
        original(self)

    monkeypatch.setattr(context.SpawnProcess, "start", start)
    with pytest.raises(ConfigError, match=r"cannot start a worker process.*Too many open files.*lower num_envs"):
        SeededEnvPool(RegisteredEnv("CartPole-v1"), num_envs=4, workers="subprocess")
    assert len(started) == 2
    assert not multiprocessing.active_children()


@pytest.mark.parametrize("output", ["x" * 300, "runs/" + "é" * 150, "/".join(["abcdefgh"] * 1000)])
def test_an_output_directory_with_too_long_a_name(output: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert_refused(capsys, (*TRAIN, "--output-dir", output), "output_dir", "bytes", "choose a shorter --output-dir")


@pytest.mark.parametrize("command", ["eval", "predict", "resume", "export", "plot", "show"])
def test_paths_that_are_too_long(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert_refused(capsys, (command, "x" * 300), "xxx")


def test_bounds_in_double_precision_are_not_exceeded() -> None:
    pool = SeededEnvPool(RegisteredEnv("misbehaving_envs:Meddling-v0", {"dtype": "float64", "bound": 0.1}))
    pool.reset()
    for action in (-1.0, 1.0, 0.3):
        pool.step(np.full((1, 2), action, np.float32))
    box = gym.spaces.Box(-0.1, 0.1, (2,), np.float64)
    sent = ActionSpec("continuous", low=(-0.1, -0.1), high=(0.1, 0.1), raw_shape=(2,)).to_env(np.array([[-1.0, 1.0]]))
    assert sent.dtype == np.float64
    assert box.contains(sent[0])
    single = ActionSpec("continuous", low=(-2.0, -2.0), high=(2.0, 2.0), raw_shape=(2,)).to_env(np.array([[-1.0, 1.0]]))
    assert single.dtype == np.float32


def test_bounds_in_single_precision_are_not_exceeded() -> None:
    """Low + (high - low) rounds to above high for one in six of such pairs."""
    rng = np.random.default_rng(0)
    for low, high in np.sort(rng.uniform(-3.0, 3.0, (200, 2)).astype(np.float32)).tolist():
        spec = ActionSpec("continuous", low=(low,), high=(high,), raw_shape=(1,))
        least, most = spec.to_env(np.array([[-1.0], [1.0]], np.float32))[:, 0].tolist()
        assert least == low
        assert most <= high
        assert most == pytest.approx(high, abs=1e-6)


def test_a_box_of_whole_numbers_is_a_choice_for_each_of_them() -> None:
    pool = SeededEnvPool(RegisteredEnv("misbehaving_envs:Meddling-v0", {"dtype": "int64", "bound": 3}), env_id="Meddling-v0")
    assert (pool.spec.action.kind, pool.spec.action.sizes) == ("multi_discrete", (7, 7))
    sent = pool.spec.action.to_env(np.array([[0, 6]]))
    assert gym.spaces.Box(-3, 3, (2,), np.int64).contains(sent[0])
    assert sent.tolist() == [[-3, 3]]


@pytest.mark.parametrize("workers", ["inline", "subprocess"])
def test_an_environment_that_changes_its_action_changes_only_its_own(workers: str) -> None:
    def make() -> SeededEnvPool:
        return SeededEnvPool(RegisteredEnv("misbehaving_envs:Meddling-v0"), num_envs=2, workers=workers)

    pool, restored = make(), make()
    pool.reset()
    actions = np.array([[0.5, 0.25], [-0.5, 1.0]], np.float32)
    step, _ = pool.step(actions.copy())
    pool.step(actions.copy())
    np.testing.assert_array_equal(step.action, actions)
    np.testing.assert_array_equal(pool.state_dict()["actions"], np.stack([actions, actions], axis=1))
    state = pool.state_dict()
    assert restored.load_state_dict(state) == []
    np.testing.assert_array_equal(restored.state_dict()["actions"], state["actions"])
    pool.close()
    restored.close()


def test_a_shift_as_wide_as_the_image_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    Path("tiny.yaml").write_text(yaml.safe_dump(tiny_values("drq")))
    side = 12  # of the images of the tests
    assert_refused(
        capsys, (*TRAIN, f"--set=algo_kwargs.shift_pad={side}"), f"shift_pad ({side})", f"{side} pixels", "lower shift_pad"
    )
    Trainer(tiny_config("drq", algo_kwargs={"shift_pad": side - 1})).close()


def frame_step(number: int, length: int) -> Step:
    obs = np.full((1, 1, 2, 2), number % 200, np.uint8)
    ended = np.array([number % length == length - 1])
    return Step(obs, np.zeros(1, np.int64), np.zeros(1, np.float32), obs + np.uint8(1), ended, np.zeros(1, np.bool_))


@pytest.mark.parametrize(("length", "too_small"), [(1, True), (200, False)])
def test_a_frame_replay_that_never_holds_a_batch_causes_a_warning(length: int, too_small: bool) -> None:
    def steps(capacity: int) -> tuple[int, list[str]]:
        buffer = FrameReplayBuffer(
            capacity, (1, 2, 2), stack=1, num_envs=1, n_step=1, gamma=0.9, rng=np.random.default_rng(0), batch_size=30
        )
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for number in range(400):
                buffer.add(frame_step(number, length))
        return len(buffer), [str(entry.message) for entry in caught if "nothing is learned" in str(entry.message)]

    held, said = steps(30)
    assert (held < 30) == too_small
    assert len(said) == too_small
    if too_small:
        assert f"holds only {held} transitions of the 30" in said[0]
        enough = int(said[0].split("at least ")[1].split(",")[0])
        held, said = steps(enough)
        assert held >= 30
        assert said == []


def test_json_of_a_fault_holds_what_was_wrong(capsys: pytest.CaptureFixture[str]) -> None:
    lies = ("--set=env_kwargs.about=terminated", "--set=env_kwargs.lie='False'", "--output-dir=out")
    assert main((*TRAIN, MISBEHAVING, *lies)) == 2
    assert_one_error(capsys.readouterr().err, "terminated is 'False'", "rl-training resume out")
    (report,) = Path("out").glob("fault-step-*.json")
    assert json.loads(report.read_text())["problem"] == "terminated is 'False', which is neither true nor false"
