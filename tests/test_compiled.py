"""Compiled updates: they compute what the eager ones do, resume bit for bit, and give way where there is no compiler."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from conftest import (
    ALGORITHMS,
    EVERY_OPTION,
    config_fields,
    env_of_tests,
    family,
    final_fingerprint,
    settings_of,
    tiny_config,
    tiny_values,
)
from moments import PATIENCE, finish, kill, start, wait_for_checkpoint, wait_until, waiting_at

import rl_training.algorithms.compiled_graph as compiled
from rl_training.algorithms import PPO, SAC, matrix_products
from rl_training.algorithms.value import ValueAlgorithm
from rl_training.errors import ConfigError
from rl_training.experiment.changes import with_settings
from rl_training.experiment.registry import get_algorithm
from rl_training.runtime import compilation
from rl_training.runtime.compilation import Compilation, repaid_after
from rl_training.runtime.learner import OffPolicyLearner
from rl_training.runtime.progress import Progress
from rl_training.runtime.sessions import resume_training, start_training
from rl_training.runtime.signals import StopRequest
from rl_training.runtime.trainer import Trainer


def obstacle(algo: str) -> str | None:
    trainer = Trainer(tiny_config(algo))
    trainer.close()
    return trainer.algorithm.why_not_compiled()


COMPILED = [name for name in ALGORITHMS if obstacle(name) is None]
assert set(COMPILED) >= {*family(ValueAlgorithm), *family(SAC), *family(PPO)}
EAGER_ONLY = [name for name in ALGORITHMS if name not in COMPILED]
NOT_HERE = ("train_freq", "target_kl")  # a rollout that is stopped early, or updates that are not due, would compare less
OPTIONS = {**{name: value for name, value in EVERY_OPTION.items() if name not in NOT_HERE}, "max_grad_norm": 0.05}
#: by name, the environment and the settings
CASES: dict[str, tuple[str | None, dict[str, Any]]] = {
    "plain": (None, {}),
    "every option": (None, OPTIONS),
    "masked actions, no clipping": ("rl_training_test_envs:Masked-v0", {"double": True, "max_grad_norm": None}),
    "images": ("rl_training_test_envs:ImageWalk-v0", {"frame_stack": 3}),
    "continuous actions": ("Pendulum-v1", {}),
    "the actor every other time": (
        "Pendulum-v1",
        {"actor_update_interval": 2, "reward_scale": 0.5, "target_update_interval": 3, "max_grad_norm": 0.5},
    ),
    "a fixed temperature": ("Pendulum-v1", {"learn_alpha": False, "alpha": 0.2}),
}
FITTING = [
    (algo, case)
    for algo in COMPILED
    for case, (env_id, options) in CASES.items()
    if env_id is None or ("continuous" if env_id == "Pendulum-v1" else "discrete") in get_algorithm(algo).actions
    if case != "images" or "image" in get_algorithm(algo).observations
    if all(name in config_fields(algo) for name in options if name in ("actor_update_interval", "learn_alpha"))
]


class TracedGraph(compiled.CompiledGraph):
    """Runs the graph operation by operation instead of compiling it: what tracing and the change of its products did, in a
    second."""

    def prepare(self, batch: Any) -> Any:
        graph = self._graphs[compiled._layout(batch)] = self.trace(batch)
        if matrix_products.onednn_is_faster():
            matrix_products.use_onednn(graph)
        return graph


@pytest.fixture(
    params=[
        "traced",
        "traced, oneDNN",
        pytest.param("compiled", marks=pytest.mark.slow),
        pytest.param("compiled, oneDNN", marks=pytest.mark.slow),
    ]
)
def backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """With oneDNN, whatever CPU this is, all products go through it; otherwise, none does."""
    name: str = request.param
    with_onednn = name.endswith("oneDNN")
    if with_onednn and not matrix_products.is_supported():
        pytest.skip("PyTorch has no oneDNN, or another version's private functions")
    monkeypatch.setattr(matrix_products, "onednn_is_faster", lambda: with_onednn)
    monkeypatch.setattr(matrix_products, "SMALLEST", 1)
    monkeypatch.setattr(matrix_products, "THINNEST", 1)
    if name.startswith("traced"):
        monkeypatch.setattr(compiled, "CompiledGraph", TracedGraph)
    return name


def train(algo: str, mode: str, stop_at: int, **values: Any) -> Trainer:
    trainer = Trainer(tiny_config(algo, compile=mode, **values))
    trainer.train(stop_at)
    trainer.close()
    return trainer


def numbers(state: Any, path: str = "") -> dict[str, torch.Tensor]:
    """All that a state holds, by its place."""
    if isinstance(state, dict):
        return {place: number for name in state for place, number in numbers(state[name], f"{path}.{name}").items()}
    return {path: torch.as_tensor(state, dtype=torch.float64)} if isinstance(state, torch.Tensor | int | float) else {}


def learned(trainer: Trainer) -> dict[str, torch.Tensor]:
    return numbers({"algorithm": trainer.algorithm.state_dict(), "policy": trainer.policy.state_dict()})


def assert_same_learning(first: Trainer, second: Trainer) -> None:
    """The same gradients, seen in Adam's moments, and the same weights: where a gradient is next to nothing Adam makes steps
    of its last bits, so weights may differ by a fraction of the step size."""
    assert first.learner.updates == second.learner.updates >= 2
    found, expected = learned(first), learned(second)
    assert found.keys() == expected.keys()
    for place, number in found.items():
        tolerance = 2e-6 if "optimizer" in place else 2e-2 * first.algorithm.learning_rate(0)
        torch.testing.assert_close(number, expected[place], rtol=1e-4, atol=tolerance, msg=(place + ": {}").format)
    assert first.learner.metrics == pytest.approx(second.learner.metrics, rel=1e-3, abs=1e-5)


@pytest.mark.parametrize(("algo", "case"), FITTING)
def test_both_paths_learn_the_same(algo: str, case: str, backend: str) -> None:
    env_id, options = CASES[case]
    values: dict[str, Any] = {"num_envs": 2, "algo_kwargs": settings_of(algo, options)}
    if env_id is not None:
        values["env_id"] = env_id
    eager, fast = (train(algo, mode, 64, **values) for mode in ("off", "on"))
    assert fast.compilation.in_force
    assert_same_learning(eager, fast)


@pytest.mark.slow  # compiles for 20 seconds
def test_a_compiled_run_learns_what_an_eager_one_does() -> None:
    """The real compiler, once, in every test run."""
    eager, fast = (train("dqn", mode, 40) for mode in ("off", "on"))
    assert_same_learning(eager, fast)
    assert fast.timer.seconds["compilation"] > 0


def test_compiling_changes_nothing(backend: str) -> None:
    trainer = Trainer(tiny_config("dqn", algo_kwargs={"noisy": True, "prioritized": True}))
    before = learned(trainer)
    streams = trainer.streams.state_dict()
    trainer.learner.compile()
    for place, number in learned(trainer).items():
        assert torch.equal(number, before[place]), place
    assert trainer.streams.state_dict() == streams


@pytest.mark.usefixtures("backend")
def test_a_batch_of_another_size_gets_a_graph_of_its_own() -> None:
    eager, fast = (train("dqn", mode, 40) for mode in ("off", "on"))
    for trainer in (eager, fast):
        assert isinstance(trainer.learner, OffPolicyLearner)
        trainer.algorithm.update(trainer.learner.replay.buffer.sample(5))
    assert_same_learning(eager, fast)


def test_the_cpu_seconds_of_a_run_have_the_compilers_in_them(monkeypatch: pytest.MonkeyPatch) -> None:
    busy = [sys.executable, "-S", "-c", "import time\nwhile time.process_time() < 0.5: pass"]
    trainer = Trainer(tiny_config("dqn", compile="on"))
    monkeypatch.setattr(trainer.learner, "compile", lambda: subprocess.run(busy, check=True))
    own = time.process_time()
    trainer.train(40)
    own = time.process_time() - own
    trainer.close()
    assert trainer.log.time_metrics(40)["time/cpu_seconds"] > own + 0.4


# ---------------------------------------------------------------------------------------------------- the decision


class Noted(Progress):
    """Keeps the notes that it gets."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def note(self, text: str) -> None:
        self.lines.append(text)


@pytest.mark.parametrize(
    ("algo", "settings", "measured"),
    [
        ("dqn", {"batch_size": 64}, 35_000),
        ("c51", {"batch_size": 64}, 42_000),
        ("qr_dqn", {"batch_size": 64, "num_quantiles": 51}, 10_000),
        ("qr_dqn", {"batch_size": 128, "num_quantiles": 25}, 11_000),
        ("ppo", {"n_steps": 256, "n_minibatches": 1}, 16_000),
        ("sac", {"batch_size": 256}, 7_000),
    ],
)
def test_the_break_even_is_near_the_measured_one(algo: str, settings: dict[str, int], measured: int) -> None:
    """docs/adr/0007 has the measurements."""
    options = {"buffer_size": 300, **settings}
    trainer = Trainer(tiny_config(algo, total_timesteps=1000, algo_kwargs=settings_of(algo, options)))
    trainer.close()
    assert measured / 1.6 < repaid_after(trainer.algorithm, 1) < measured * 1.6


def test_auto_reports_that_it_does_not_compile_convolutions() -> None:
    env_id, settings = CASES["images"]
    trainer = Trainer(tiny_config("dqn", env_id=env_id, algo_kwargs=settings))
    trainer.close()
    noted = Noted()
    trainer.compilation.begin(trainer.config, noted, StopRequest())
    assert trainer.compilation.in_force is False
    assert any("compile: auto is off, because convolutions" in line for line in noted.lines)


def test_auto_compiles_from_the_break_even_on(algo: str, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = Trainer(tiny_config(algo))
    trainer.close()
    config, can = trainer.config, algo in COMPILED
    updates = config.algo_kwargs.updates_in(config.total_timesteps, config.num_envs)
    asked: list[bool] = []
    monkeypatch.setattr(type(trainer.learner), "compile", lambda self: asked.append(True))
    for enough in (updates + 1, updates):
        monkeypatch.setattr(compilation, "repaid_after", lambda *_, enough=enough: enough)
        noted = Noted()
        decision = Compilation(config, trainer.algorithm, trainer.learner, trainer.timer)
        decision.begin(config, noted, StopRequest())
        assert decision.in_force == (can and enough == updates)
        assert len(asked) == bool(decision.in_force)
        assert any("compile: auto is" in line for line in noted.lines) == can


@pytest.mark.parametrize("algo", COMPILED)
@pytest.mark.parametrize("num_envs", [1, 3])
def test_the_updates_ahead_are_those_that_come(algo: str, num_envs: int) -> None:
    options = settings_of(algo, {"train_freq": 4, "gradient_steps": 3})
    config = tiny_config(algo, num_envs=num_envs, total_timesteps=336, algo_kwargs=options)
    trainer = Trainer(config)
    updates = trainer.train().updates
    trainer.close()
    assert updates == pytest.approx(config.algo_kwargs.updates_in(336, num_envs), abs=4)


def test_on_and_off_are_words_and_what_yaml_makes_of_them() -> None:
    for value, mode in (("on", "on"), (True, "on"), ("off", "off"), (False, "off"), ("auto", "auto")):
        config = tiny_config("dqn", compile=value)
        assert config.compile == mode
        assert yaml.safe_load(config.to_yaml())["compile"] == mode
    with pytest.raises(ConfigError, match="compile: input should be 'auto', 'on' or 'off'"):
        tiny_config("dqn", compile="maybe")


@pytest.mark.parametrize("algo", EAGER_ONLY)
def test_an_algorithm_without_a_compiled_update_refuses_to_compile(algo: str) -> None:
    with pytest.raises(ConfigError, match=f"compile: on is not possible with {algo}"):
        Trainer(tiny_config(algo, compile="on"))


def test_a_setting_that_cannot_be_compiled_is_named() -> None:
    with pytest.raises(ConfigError, match="target_kl"):
        Trainer(tiny_config("ppo", compile="on", algo_kwargs={"target_kl": 0.1}))


# ------------------------------------------------------------------------------------------------------- resuming


def start_and_stop(mode: str, run: Path, stop_at: int | None = None, algo: str = "dqn", **settings: Any) -> Trainer:
    config = tiny_config(algo, compile=mode, output_dir=str(run), algo_kwargs=settings)
    trainer = start_training(config, command="test")
    trainer.train(stop_at)
    trainer.close()
    return trainer


def resume(run: Path, stop_at: int | None = None, **settings: Any) -> Trainer:
    trainer = resume_training(
        run, change=lambda config: with_settings(config, settings), warn=lambda message: pytest.fail(message)
    )
    trainer.train(stop_at)
    trainer.close()
    return trainer


@pytest.mark.usefixtures("backend")
@pytest.mark.filterwarnings("error", "ignore:.torch.jit.script_method.:DeprecationWarning")
@pytest.mark.parametrize(
    ("algo", "settings"), [("dqn", {}), pytest.param("sac", {"actor_update_interval": 3}, marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("mode", ["on", "off"])
def test_auto_stays_in_the_mode_of_the_checkpoint(
    algo: str, settings: dict[str, Any], mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, parted = tmp_path / "whole", tmp_path / "parted"
    start_and_stop(mode, whole, None, algo, **settings)
    start_and_stop(mode, parted, 100, algo, **settings)
    enough = 0 if mode == "off" else 10**9  # a new decision would be for the other mode
    monkeypatch.setattr(compilation, "repaid_after", lambda *_: enough)
    assert resume(parted, compile="auto").compilation.in_force == (mode == "on")
    found, expected = final_fingerprint(parted), final_fingerprint(whole)
    assert [line for line in found["metrics"] if line["kind"] != "change"] == expected["metrics"]
    for part in ("policy", "training", "replay"):
        assert found["files"][f"{part}.safetensors"] == expected["files"][f"{part}.safetensors"]


def test_auto_gives_up_a_mode_that_has_become_impossible_with_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiled, "CompiledGraph", TracedGraph)
    run = tmp_path / "run"
    start_and_stop("on", run, 100, "ppo")
    monkeypatch.setattr(PPO, "why_not_compiled", lambda _: "this machine has changed")
    with pytest.warns(UserWarning, match="without a compiled update, because this machine has.*no longer bit-for-bit"):
        assert not resume(run, compile="auto").compilation.in_force


def test_an_error_of_ours_does_not_read_as_a_missing_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = Trainer(tiny_config("dqn", compile="on"))
    monkeypatch.setattr(trainer.algorithm, "loss", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        trainer.train(40)
    trainer.close()


@pytest.mark.usefixtures("backend")
@pytest.mark.parametrize(("first", "then"), [("on", "off"), ("off", "on")])
def test_switching_modes_causes_a_warning(first: str, then: str, tmp_path: Path) -> None:
    run = tmp_path / "run"
    start_and_stop(first, run, stop_at=100)
    with pytest.warns(UserWarning, match="no longer bit-for-bit"):
        trainer = resume(run, compile=then)
    assert trainer.compilation.in_force == (then == "on")


def write_config(path: Path, algo: str) -> Path:
    options = {**OPTIONS, "gradient_steps": 1, "buffer_size": 700}
    values = tiny_values(
        algo,
        **env_of_tests(algo, "Waiting"),
        num_envs=2,
        total_timesteps=600,
        compile="on",
        algo_kwargs=settings_of(algo, options),
    )
    path.write_text(yaml.safe_dump(values))
    return path


@pytest.mark.slow
@pytest.mark.parametrize("algo", COMPILED)
def test_a_compiled_run_that_is_killed_ends_bit_for_bit(algo: str, tmp_path: Path) -> None:
    config = str(write_config(tmp_path / "config.yaml", algo))
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    assert finish("train", "--config", config, "--output-dir", str(whole)).returncode == 0
    process = start("train", "--config", config, "--output-dir", str(killed), env=waiting_at(500))
    wait_for_checkpoint(killed, process)
    kill(process)
    resumed = finish("resume", str(killed))
    assert resumed.returncode == 0, resumed.stderr
    assert "warning" not in resumed.stderr
    assert final_fingerprint(killed) == final_fingerprint(whole)


@pytest.mark.slow
def test_a_signal_while_compiling_leaves_a_run_to_resume(tmp_path: Path) -> None:
    """As Ctrl-C in a terminal: the compiler's processes get the signal too."""
    config = str(write_config(tmp_path / "config.yaml", "dqn"))
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    assert finish("train", "--config", config, "--output-dir", str(whole)).returncode == 0
    cache = tmp_path / "cache"
    env = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(cache)}
    process = start("train", "--config", config, "--output-dir", str(stopped), env=env, start_new_session=True)
    wait_until(lambda: any(cache.rglob("*.cpp")), process)  # generated, and next to be compiled
    os.killpg(process.pid, signal.SIGINT)
    output, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 128 + signal.SIGINT, errors
    assert "saved at step 0" in output
    assert finish("resume", str(stopped)).returncode == 0
    assert final_fingerprint(stopped) == final_fingerprint(whole)
