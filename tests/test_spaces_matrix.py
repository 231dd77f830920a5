"""Every algorithm on every form of spaces that it takes: what it stores, resuming, killing, exporting, the command line."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
import yaml
from conftest import FEW, OFF_POLICY, final_fingerprint, settings_of
from replays import held_slots
from spaces_matrix import MATRIX, OBSERVATIONS, Case, over_matrix
from test_conformance import GAMMA, NotingPool

from rl_training.api import load_agent
from rl_training.cli import main
from rl_training.data import RecurrentReplayBuffer, ReplayBuffer
from rl_training.envs.factory import RegisteredEnv
from rl_training.experiment.config import resolve_config
from rl_training.experiment.registry import algorithms, get_algorithm
from rl_training.rng import derive_seed
from rl_training.runtime.export import random_observations
from rl_training.runtime.export_description import input_names
from rl_training.runtime.learner import OffPolicyLearner, OnPolicyLearner
from rl_training.runtime.sessions import resume_training, start_training
from rl_training.runtime.trainer import Trainer
from rl_training.types import Array, SpaceSpec, entry_at

LENGTH = 4


def test_the_matrix_covers_the_registry() -> None:
    for name, entry in algorithms().items():
        forms = {case.observation for case in MATRIX if case.algo == name}
        assert {OBSERVATIONS[form] for form in forms} == set(entry.observations)
    assert {case.action for case in MATRIX} == {"discrete", "multi", "continuous"}


# ---------------------------------------------------------------------------------------------------- conformance


def plain_loop(case: Case, spec: SpaceSpec, seed: int, env_index: int, end: str, actions: list[Any]) -> list[tuple[Any, ...]]:
    """The transitions of one environment under these actions, with packed observations."""
    rows, number = [], 0
    env = RegisteredEnv(
        "rl_training_test_envs:Spaces-v0",
        {"observation": case.observation, "action": case.action, "length": LENGTH, "end": end},
    )()

    def packed(raw: Any) -> list[Any]:
        whole = spec.observation.encode(_with_batch(raw))[0]
        return whole.reshape(-1).tolist()  # type: ignore[no-any-return]

    obs, _ = env.reset(seed=derive_seed(seed, "env", env_index, number))
    for action in actions:
        before = packed(obs)
        obs, reward, terminated, truncated, _ = env.step(spec.action.to_env(np.asarray(action, spec.action.dtype)[None])[0])
        rows.append((before, np.ravel(action).tolist(), float(reward), packed(obs), 0.0 if terminated else GAMMA))
        if terminated or truncated:
            number += 1
            obs, _ = env.reset(seed=derive_seed(seed, "env", env_index, number))
    return rows


def _with_batch(raw: Any) -> Any:
    if isinstance(raw, dict):
        return {key: _with_batch(value) for key, value in raw.items()}
    return tuple(map(_with_batch, raw)) if isinstance(raw, tuple) else np.asarray(raw)[None]


def stored_rows(buffer: Any) -> list[tuple[Any, ...]]:
    """Everything in a replay, as transitions."""
    if isinstance(buffer, RecurrentReplayBuffer):
        batch = buffer.gather(held_slots(buffer))
        rows = []
        for t, b in torch.nonzero(batch.mask).tolist():
            following = int(batch.bootstrap[t, b])
            obs, next_obs = (batch.obs[i, b].reshape(-1).tolist() for i in (t, following))
            rows.append((obs, [int(batch.action[t, b])], float(batch.reward[t, b]), next_obs, float(batch.discount[t, b])))
        return rows
    batch = buffer.gather(np.arange(len(buffer)) if isinstance(buffer, ReplayBuffer) else held_slots(buffer))
    columns = [batch.obs.flatten(1), batch.action.reshape(len(batch.reward), -1), batch.reward, batch.next_obs.flatten(1)]
    return list(zip(*(column.tolist() for column in (*columns, batch.discount)), strict=True))


def rollout_rows(learner: OnPolicyLearner) -> list[tuple[Any, ...]]:
    """Everything in a rollout, as transitions."""
    rollout = learner.rollout.rollout()
    rows = []
    for t, i in np.ndindex(rollout.reward.shape):
        obs, next_obs = (array[t, i].reshape(-1).tolist() for array in (rollout.obs, rollout.next_obs))
        discount = 0.0 if rollout.terminated[t, i] else GAMMA
        rows.append((obs, np.ravel(rollout.action[t, i]).tolist(), float(rollout.reward[t, i]), next_obs, discount))
    return rows


#: both ways to end for a few; for each other case one of them is fast
ENDS = [
    pytest.param(
        case, end, marks=[] if case.algo in FEW or (number + other) % 2 else [pytest.mark.slow], id="-".join((*case, end))
    )
    for number, case in enumerate(MATRIX)
    for other, end in enumerate(("terminated", "truncated"))
]


@pytest.mark.parametrize(("case", "end"), ENDS)
def test_what_is_stored_is_what_a_plain_loop_makes(case: Case, end: str) -> None:
    steps = 60
    settings = {"n_step": 1, "gamma": GAMMA, "learning_starts": 30, "buffer_size": 100, "n_steps": 40}
    config = resolve_config(
        case.values(
            {"length": LENGTH, "end": end}, num_envs=2, total_timesteps=90, algo_kwargs=settings_of(case.algo, settings)
        )
    )
    trainer = Trainer(config)
    trainer.pool.__class__ = NotingPool
    assert isinstance(trainer.pool, NotingPool)
    trainer.pool.taken = []
    trainer.train(steps)
    by_env = [
        plain_loop(case, trainer.pool.spec, config.seed, i, end, list(actions))
        for i, actions in enumerate(zip(*trainer.pool.taken, strict=True))
    ]
    learner = trainer.learner
    if isinstance(learner, OffPolicyLearner):
        found = stored_rows(learner.replay.buffer)
        if isinstance(learner.replay.buffer, RecurrentReplayBuffer):  # of the open episodes nothing is complete
            by_env = [rows[: len(rows) // LENGTH * LENGTH] for rows in by_env]
    else:
        assert isinstance(learner, OnPolicyLearner)
        found = rollout_rows(learner)
    expected = [row for rows in by_env for row in rows]
    assert len(found) == len(expected) >= 56
    for row, other in zip(sorted(found), sorted(expected), strict=True):
        assert row[:3] == other[:3]
        assert row[3] == other[3]
        assert row[4] == pytest.approx(other[4], rel=1e-6)
    trainer.close()


@pytest.mark.parametrize(
    "case", [case for case in MATRIX if case.observation == "dict" and case.algo in OFF_POLICY], ids="-".join
)
def test_images_in_a_dict_are_stored_once_per_frame(case: Case) -> None:
    """Beside the other entries, a slot holds one frame of three: a third of the image's bytes, and no next observation."""
    trainer = Trainer(resolve_config(case.values()))
    assert isinstance(trainer.learner, OffPolicyLearner)
    buffer, spec = trainer.learner.replay.buffer, trainer.pool.spec.observation
    image = spec.images[0].nbytes
    assert buffer.state_dict()["fits"]["columns"]["frame"] == ["|u1", image // 3 + spec.shape[0] - image]
    trainer.close()


# ------------------------------------------------------------------------------------------- resuming, killing


def no_warning(message: str) -> None:
    raise AssertionError(f"unexpected: {message}")


@over_matrix
def test_a_resumed_run_is_bit_exact_on_any_space(case: Case, tmp_path: Path) -> None:
    options = settings_of(case.algo, {"n_step": 2, "prioritized": True, "buffer_size": 90, "train_freq": 4, "burn_in": 2})
    for name, stops in (("whole", [90]), ("parted", [43, 90])):
        run = tmp_path / name
        values = case.values({"length": 9}, num_envs=2, total_timesteps=90, algo_kwargs=options, output_dir=str(run))
        trainer = start_training(resolve_config(values), command="test")
        for number, stop in enumerate(stops):
            if number:
                trainer = resume_training(run, warn=no_warning)
            trainer.train(stop)
            trainer.close()
    assert final_fingerprint(tmp_path / "whole") == final_fingerprint(tmp_path / "parted")


def kill_once(case: Case, tmp_path: Path) -> None:
    from test_kill import HELD_AT, kill_and_resume, train_whole

    values = case.values(
        {"length": 9, "waiting": True},
        num_envs=2,
        total_timesteps=600,
        checkpoint={"interval": 40, "replay_every": 2},
        eval={"interval": 210, "episodes": 2, "final_episodes": 2, "num_envs": 2},
        log={"interval": 10, "tensorboard": False},
        algo_kwargs=settings_of(case.algo, {"n_step": 3, "buffer_size": 700, "train_freq": 4}),
    )
    config = tmp_path / "config.yaml"
    config.write_text(yaml.safe_dump(values))
    step = random.Random("-".join(case)).randrange(10, HELD_AT - 100)
    undisturbed = train_whole(config, tmp_path / "whole")
    assert kill_and_resume(config, tmp_path / "killed", step, saving=False) == undisturbed


@pytest.mark.parametrize("algo", ["dqn", pytest.param("ppo", marks=pytest.mark.slow)])
def test_a_killed_run_on_a_dict_ends_bit_for_bit(algo: str, tmp_path: Path) -> None:
    kill_once(Case(algo, "dict", "discrete"), tmp_path)


@pytest.mark.slow
@over_matrix
def test_every_killed_run_ends_bit_for_bit(case: Case, tmp_path: Path) -> None:
    kill_once(case, tmp_path)


# ------------------------------------------------------------------------------- the command line and exporting


def as_json(raw: Any) -> Any:
    if isinstance(raw, dict):
        return {key: as_json(value) for key, value in raw.items()}
    return [as_json(value) for value in raw] if isinstance(raw, (tuple, list)) else np.asarray(raw).tolist()


@over_matrix
def test_train_predict_eval_and_export_from_the_command_line(
    case: Case, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config, run = tmp_path / "config.yaml", tmp_path / "run"
    config.write_text(yaml.safe_dump(case.values(num_envs=2, total_timesteps=70)))
    assert main(["train", "--config", str(config), "--output-dir", str(run)]) == 0
    first_lines = capsys.readouterr().err.splitlines()[:2]
    expected = {"vector": "observation: vector 3", "image": "observation: image 3x12x12 uint8 -> NatureCNN"}
    assert first_lines[1].startswith(expected.get(case.observation, "observation: camera: image 3x12x12 uint8 -> NatureCNN"))
    agent = load_agent(run)
    env = RegisteredEnv("rl_training_test_envs:Spaces-v0", {"observation": case.observation, "action": case.action})()
    obs, _ = env.reset(seed=3)
    action, _ = agent.predict(obs)
    assert env.action_space.contains(action if action.ndim else action.item())
    bare = json.dumps(as_json(obs))
    for line in (bare, json.dumps({"obs": as_json(obs)})):
        assert main(["predict", str(run), "--obs", line]) == 0
        np.testing.assert_allclose(json.loads(capsys.readouterr().out), action, rtol=1e-5)
    assert main(["eval", str(run), "--episodes", "2"]) == 0
    assert main(["export", str(run), "--format", "safetensors", "--output", str(tmp_path / "policy.safetensors")]) == 0


def named_inputs(spec: SpaceSpec, names: list[str], obs: Any) -> dict[str, Array]:
    return {name: entry_at(obs, leaf.path) for name, leaf in zip(names, spec.observation.leaves, strict=False)}


def check_onnx(case: Case, tmp_path: Path) -> None:
    """Every entry is an input of its own name, and the actions are the policy's."""
    trainer = Trainer(resolve_config(case.values()))
    policy = trainer.policy
    with torch.no_grad():
        for parameter in policy.network.parameters():
            parameter.mul_(2.0)
    agent_path, path = tmp_path / "agent", tmp_path / "policy.onnx"
    from rl_training.runtime.export import export_policy
    from rl_training.runtime.inference import predict, save_policy

    save_policy(policy, trainer.config, agent_path)
    assert export_policy(policy, trainer.config, path) < 1e-4
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    module = policy.export_module()
    names = [entry.name for entry in session.get_inputs()]
    assert names == input_names(policy, module)
    if case.observation == "dict":
        assert names[:5] == ["obs.camera", "obs.inner.0", "obs.inner.1", "obs.mode", "obs.state"]
    obs = random_observations(policy.spec, 40)
    feed = named_inputs(policy.spec, names, obs)
    feed |= {name: state.numpy() for name, state in zip(module.state_names, module.initial_state(40), strict=True)}
    if module.takes_reward:
        feed["reward"] = np.zeros(40, np.float32)
    expected, _ = predict(policy, obs)
    np.testing.assert_allclose(session.run(None, feed)[0], expected, atol=1e-4)
    trainer.close()


@pytest.mark.parametrize("algo", ["dqn", "ppo", "r2d2", "drqv2"])
def test_onnx_has_an_input_for_each_entry(algo: str, tmp_path: Path) -> None:
    usual = "discrete" if "discrete" in get_algorithm(algo).actions else "continuous"
    check_onnx(Case(algo, "dict", usual), tmp_path)


@pytest.mark.slow
@over_matrix
def test_onnx_over_the_whole_matrix(case: Case, tmp_path: Path) -> None:
    check_onnx(case, tmp_path)
