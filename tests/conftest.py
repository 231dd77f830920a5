"""Shared by all tests: tiny configs for every registered algorithm, and the comparison of two runs."""

from __future__ import annotations

import functools
import gc
import inspect
import json
import os
import shutil
import signal
import sys
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from rl_training.algorithms.base import OffPolicyAlgorithm, OnPolicyAlgorithm
from rl_training.experiment.checkpoint import verify_checkpoint
from rl_training.experiment.config import TrainConfig, resolve_config
from rl_training.experiment.registry import algorithms, get_algorithm
from rl_training.experiment.run import step_directories
from rl_training.runtime.sessions import start_training

TESTS = Path(__file__).parent
os.environ["PYTHONPATH"] = os.pathsep.join([str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])])
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as a shell starts what runs in its background; children inherit it
    signal.signal(signal.SIGINT, signal.default_int_handler)
MEMORY = Path("/dev/shm")
if MEMORY.is_dir() and shutil.disk_usage(MEMORY).free > 4 * 2**30:
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))  # where a checkpoint does not have to wait for a disk
torch.set_num_threads(1)  # several tests at a time: threads that wait for each other would take many times as long
CLI = [sys.executable, "-m", "rl_training"]
#: A few steps of a packaged config, for the command line.
SHORT = (
    "--total-timesteps=300",
    "--set=num_envs=1",
    "--set=algo_kwargs.train_freq=1",
    "--set=algo_kwargs.gradient_steps=1",
    "--set=algo_kwargs.learning_starts=50",
)

ALGORITHMS = sorted(algorithms())


#: one algorithm of each family
REPRESENTATIVES = frozenset({"dqn", "drqv2", "ppo", "r2d2", "recurrent_ppo", "sac"})
FEW = frozenset({"dqn", "recurrent_ppo", "sac"})
#: tests over the registry that take a second or more for each algorithm, and the algorithms for which they are fast
COSTLY: dict[str, Collection[str]] = {
    **dict.fromkeys(
        (
            "test_a_trivial_task_is_learned_from_pictures",
            "test_every_algorithm_is_saved_twice_with_the_same_bytes",
            "test_resume_is_bit_exact_with_every_option",
            "test_resume_is_bit_exact_with_images",
            "test_the_replay_holds_the_steps_of_a_plain_loop",
        ),
        REPRESENTATIVES,
    ),
    **dict.fromkeys(
        (
            "test_a_full_save_continues_as_the_original",
            "test_a_non_deterministic_environment_causes_a_warning_and_training_continues",
            "test_a_process_that_is_killed_leaves_no_trace",
            "test_a_resumed_run_is_bit_exact_on_any_space",
            "test_a_run_with_a_fault_is_saved_and_continues_once_it_is_fixed",
            "test_a_schedule_and_its_short_form_are_the_same_run",
            "test_acting_with_a_copy_of_the_weights_is_the_same_run",
            "test_both_paths_learn_the_same",
            "test_continuing_to_a_larger_total_equals_one_long_run",
            "test_evaluation_and_logging_do_not_disturb_training",
            "test_every_algorithm_starts_from_its_own_weights",
            "test_every_algorithm_takes_a_vector_environment",
            "test_every_declared_setting_can_be_changed",
            "test_it_is_compiled",
            "test_resume_without_a_replay_warns_and_refills_it",
            "test_the_updates_ahead_are_those_that_come",
            "test_train_predict_eval_and_export_from_the_command_line",
            "test_two_runs_of_one_seed_are_equal_and_of_two_seeds_are_not",
        ),
        FEW,
    ),
    # those that export what they have trained
    "test_an_onnx_export_gives_the_same_actions": ["recurrent_ppo", "sac"],
    "test_a_pair_is_an_actor_and_a_critic": ["sac"],
    "test_a_run_resumes_exactly_predicts_and_is_exported": ["r2d2"],
    "test_every_algorithm_learns_with_them_and_is_exported": ["sac"],
    "test_every_cnn_learns_and_is_exported": ["dqn"],
    "test_it_gets_the_entries_of_a_dict_with_images": ["dqn"],
    "test_it_learns_resumes_exactly_and_is_exported": ["recurrent_ppo"],
    "test_onnx_has_an_input_for_each_entry": ["sac"],
    "test_other_spaces_train_resume_predict_and_export": ["recurrent_ppo"],
}
#: The formats in which a test exports. ONNX takes two seconds: it is fast for one algorithm of each family and each kind
#: of inputs (``test_checkpoint_workflows.py``, ``test_onnx_policy.py``).
EXPORTED = ["safetensors", pytest.param("onnx", marks=pytest.mark.slow)]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks the cases of costly tests as slow, before slow ones are left out."""
    for item in items:
        fast = COSTLY.get(getattr(item, "originalname", ""))
        if isinstance(item, pytest.Function) and fast is not None:
            given = item.callspec.params
            if given.get("algo", getattr(given.get("case"), "algo", None)) not in fast:
                item.add_marker(pytest.mark.slow)


def pytest_collection_finish() -> None:
    """Keeps the collector from looking again and again at what lives as long as the process."""
    gc.collect()
    gc.freeze()


def pytest_runtest_teardown() -> None:
    """Keeps the operators that torch.onnx reads again for every export, a third of its time, once it has been imported."""
    exporter = sys.modules.get("torch.onnx._internal.exporter._registration")
    known = getattr(exporter, "ONNXRegistry", None)
    if known is not None and inspect.ismethod(known.from_torchlib):
        known.from_torchlib = staticmethod(functools.cache(known.from_torchlib))


def family(base: type) -> list[str]:
    """The names of the algorithms that are subclasses of ``base``."""
    return [name for name in ALGORITHMS if issubclass(get_algorithm(name), base)]


ON_POLICY, OFF_POLICY = family(OnPolicyAlgorithm), family(OffPolicyAlgorithm)
#: Sizes that make a run tiny; each algorithm takes those that it has.
TINY = {
    "hidden_sizes": [16],
    "batch_size": 8,
    "buffer_size": 150,
    "learning_starts": 20,
    "train_freq": 4,
    "n_steps": 16,
    "n_epochs": 2,
    "n_minibatches": 3,
    "encoder_sizes": [12],
    "lstm_size": 8,
    "lstm_layers": 2,
    "cnn_layers": [[4, 3, 2]],
    "cnn_features": 16,
}
#: and of those that learn from replay
TINY_OFF_POLICY = {"sequence_length": 6}

#: Every option that changes how an algorithm learns; each algorithm takes those that it has.
EVERY_OPTION: dict[str, Any] = {
    "n_step": 3,
    "double": True,
    "tau": 0.1,
    "target_update_interval": 2,
    "average_updates": 5,
    "train_freq": 7,
    "gradient_steps": 2,
    "final_learning_rate": 1e-5,
    "learning_rate_decay_steps": 200,
    "dueling": True,
    "noisy": True,
    "prioritized": True,
    "priority_beta_steps": 150,
    "final_clip_range": 0.05,
    "clip_range_decay_steps": 200,
    "clip_value": 0.2,
    "entropy_coef": 0.01,
    "target_kl": 0.01,
    "normalize_observations": True,
    "normalize_rewards": True,
    "sequence_length": 5,
    "shared_lstm": True,
    "overlap": 2,
    "burn_in": 3,
    "rescale_values": True,
    "previous_inputs": True,
    "epsilon_spread": 2.0,
    "loss_over_time": "sum",
    "actor_update_interval": 2,
    "reward_scale": 0.5,
    "learn_alpha": True,
    "encoder": "paper",
    "target_shifts": 2,
    "loss_shifts": 2,
    "noise_steps": 150,
}


def config_fields(algo: str) -> set[str]:
    """The settings that an algorithm has."""
    return set(get_algorithm(algo).config_class.model_fields)


def settings_of(algo: str, settings: dict[str, Any]) -> dict[str, Any]:
    """Those of the settings that the algorithm has."""
    fields = config_fields(algo)
    return {name: value for name, value in settings.items() if name in fields}


def env_of_tests(algo: str, name: str) -> dict[str, Any]:
    """The environment of the tests of this name, in the form that the algorithm can use."""
    entry = get_algorithm(algo)
    form = "" if "discrete" in entry.actions else "Continuous" if "vector" in entry.observations else "Pictures"
    return {"env_id": f"rl_training_test_envs:{name}{form}-v0"}


def tiny_env(algo: str) -> dict[str, Any]:
    """The environment of a tiny run."""
    entry = get_algorithm(algo)
    if "discrete" in entry.actions:
        return {"env_id": "CartPole-v1"}
    return {"env_id": "Pendulum-v1"} if "vector" in entry.observations else env_of_tests(algo, "RandomWalk")


def tiny_values(algo: str, **values: Any) -> dict[str, Any]:
    """A run of a second: values of a config in which learning, evaluation and checkpoints all happen."""
    defaults: dict[str, Any] = {
        "algo": algo,
        **tiny_env(algo),
        "total_timesteps": 240,
        "eval": {"interval": 90, "episodes": 3, "final_episodes": 2, "num_envs": 2},
        "checkpoint": {"interval": 70},
        "log": {"interval": 25, "tensorboard": False},
        "algo_kwargs": settings_of(algo, {**TINY, **(TINY_OFF_POLICY if algo in OFF_POLICY else {})}),
    }
    if "vector" not in get_algorithm(algo).observations:
        defaults["algo_kwargs"]["frame_stack"] = 3
    algo_kwargs = {**defaults["algo_kwargs"], **values.pop("algo_kwargs", {})}
    return {**defaults, **values, "algo_kwargs": algo_kwargs}


def tiny_config(algo: str, **values: Any) -> TrainConfig:
    return resolve_config(tiny_values(algo, **values))


def metrics_without_time(run: Path) -> list[dict[str, Any]]:
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in record.items() if not key.startswith("time/")} for record in records]


def final_fingerprint(run: Path) -> dict[str, Any]:
    """What must be equal in two repetitions of a run: every byte of the last checkpoint, and the log."""
    manifest = verify_checkpoint(step_directories(run)[0])
    return {"files": manifest["files"], "metrics": metrics_without_time(run)}


def train_tiny(path: Path, **values: Any) -> Path:
    """A finished run of DQN."""
    trainer = start_training(tiny_config("dqn", output_dir=str(path), **values), command="test")
    trainer.train()
    trainer.close()
    return path


@pytest.fixture(scope="session")
def finished_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run that no test changes."""
    return train_tiny(tmp_path_factory.mktemp("runs") / "run")


@pytest.fixture
def run(finished_run: Path, tmp_path: Path) -> Path:
    """A copy of a finished run to spoil."""
    return Path(shutil.copytree(finished_run, tmp_path / "run", symlinks=True))


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current directory: empty but for a config that works."""
    monkeypatch.chdir(tmp_path)
    Path("tiny.yaml").write_text(yaml.safe_dump(tiny_values("dqn")))
    return tmp_path


@pytest.fixture(params=ALGORITHMS)
def algo(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name
