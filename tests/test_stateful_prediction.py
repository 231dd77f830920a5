"""Policies with memory act alike everywhere: in training, through ``predict``, from the command line, and exported."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import tiny_config

from rl_training import load_agent
from rl_training.algorithms.policy import Policy
from rl_training.cli import main
from rl_training.envs.pool import EnvPool
from rl_training.errors import ObservationError
from rl_training.runtime.sessions import start_training
from rl_training.runtime.setup import make_pool
from rl_training.types import Array

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "drqn": ("drqn", {}),
    "r2d2": ("r2d2", {"burn_in": 2, "overlap": 2, "dueling": True}),
    "r2d2 with previous inputs": ("r2d2", {"previous_inputs": True}),
    "r2d2 with clipped inputs": ("r2d2", {"previous_inputs": True, "clip_reward": 0.25}),
    "r2d2 on images": ("r2d2", {"previous_inputs": True, "frame_stack": 3, "cnn_layers": [[4, 8, 4], [4, 3, 2]]}),
    "recurrent_ppo": ("recurrent_ppo", {}),
}
#: CartPole's rewards are all alike; here they differ, and actions begin at 5
ENV = "rl_training_test_envs:OffsetActions-v0"
IMAGES = "rl_training_test_envs:ImageWalk-v0"


class Line:
    """One step of an episode: what was seen, what the step before earned, and what was done."""

    def __init__(self, obs: Array, reward: float | None, action: int) -> None:
        self.obs, self.reward, self.action = obs, reward, action

    @property
    def start(self) -> bool:
        return self.reward is None


def act_as_in_training(policy: Policy, pool: EnvPool, steps: int) -> list[Line]:
    """The loop of training and evaluation, without exploration, over several episodes."""
    pool.reset()
    carry, reward, lines = policy.initial_carry(1), None, []
    for _ in range(steps):
        output = policy.act(pool.obs, carry, action_mask=pool.action_mask)
        obs = pool.obs[0]
        step, _ = pool.step(output.action)
        lines.append(Line(obs, reward, int(policy.spec.action.to_env(output.action)[0])))
        carry = policy.next_carry(output.carry, step)
        reward = None if step.ended[0] else float(step.reward[0])
    assert sum(line.start for line in lines) > 3
    return lines


@torch.no_grad()
def excite(policy: Policy) -> None:
    """Larger weights, so that actions vary and depend on all that the network has seen; smaller where many inputs add up."""
    generator = torch.Generator().manual_seed(5)
    for parameter in policy.network.parameters():
        size = min(1.0, 4.0 / parameter[0].numel() ** 0.5) if parameter.dim() > 1 else 0.0
        parameter.copy_(torch.randn(parameter.shape, generator=generator) * size)


@pytest.fixture(scope="module", params=CASES)
def trained(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Line]]:
    algo, settings = CASES[request.param]
    run = tmp_path_factory.mktemp("stateful") / "run"
    env_id = IMAGES if "images" in request.param else ENV
    config = tiny_config(algo, env_id=env_id, output_dir=str(run), algo_kwargs={**settings, "learning_rate": 1e-6})
    trainer = start_training(config, command="test")
    excite(trainer.policy)
    trainer.train()
    lines = act_as_in_training(trainer.policy, make_pool(config, None, "eval", 1), 100)
    trainer.close()
    return run, lines


def test_actions_depend_on_what_was_seen_before(trained: tuple[Path, list[Line]]) -> None:
    run, lines = trained
    without_memory, _ = load_agent(run).predict(np.stack([line.obs for line in lines]))
    actions = np.array([line.action for line in lines])
    assert len(set(actions.tolist())) > 1
    assert (without_memory != actions).mean() > 0.1


def test_predict_in_python(trained: tuple[Path, list[Line]]) -> None:
    run, lines = trained
    agent, state = load_agent(run), None
    for line in lines:
        action, state = agent.predict(line.obs, state, episode_start=line.start, reward=line.reward)
        assert action == line.action


def test_predict_from_the_command_line(
    trained: tuple[Path, list[Line]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, lines = trained
    texts = []
    for line in lines:
        more = {"episode_start": True} if line.start else {"reward": line.reward}
        texts.append(json.dumps({"obs": line.obs.tolist(), **more}))
    (tmp_path / "lines.jsonl").write_text("\n".join(texts))
    assert main(["predict", str(run), "--obs", str(tmp_path / "lines.jsonl")]) == 0
    assert [json.loads(text) for text in capsys.readouterr().out.splitlines()] == [line.action for line in lines]


@pytest.mark.slow  # fast as test_it_acts_as_the_agent_does, whose agents are not trained
def test_the_exported_step(trained: tuple[Path, list[Line]], tmp_path: Path) -> None:
    import onnxruntime

    run, lines = trained
    agent = load_agent(run)
    session = onnxruntime.InferenceSession(str(agent.export(tmp_path / "policy.onnx")), providers=["CPUExecutionProvider"])
    module = agent.policy.export_module()
    names = [entry.name for entry in session.get_inputs()]
    assert ("reward" in names) == module.takes_reward
    state: dict[str, Array] = {}
    for line in lines:
        if line.start:
            initial = (tensor.numpy() for tensor in module.initial_state(1))
            state = dict(zip(module.state_names, initial, strict=True))
        reward = {"reward": np.array([line.reward or 0.0], np.float32)} if module.takes_reward else {}
        outputs = session.run(None, {"obs": line.obs[None], **reward, **state})
        found = dict(zip((entry.name for entry in session.get_outputs()), outputs, strict=True))
        assert found["action"][0] == line.action
        state = {name: found[f"next_{name}"] for name in module.state_names}


def test_a_policy_that_remembers_rewards_must_be_given_them(trained: tuple[Path, list[Line]]) -> None:
    run, lines = trained
    agent = load_agent(run)
    _, state = agent.predict(lines[0].obs)
    if agent.policy.takes_reward:
        for reward in (None, "much", float("nan"), [1.0, 2.0]):
            with pytest.raises(ObservationError, match="takes rewards as inputs"):
                agent.predict(lines[1].obs, state, reward=reward)
    else:
        agent.predict(lines[1].obs, state)


def test_only_rows_that_continue_need_a_reward(trained: tuple[Path, list[Line]]) -> None:
    run, lines = trained
    agent = load_agent(run)
    if not agent.policy.takes_reward:
        pytest.skip("takes no rewards")
    obs = np.stack([line.obs for line in lines[:2]])
    starts, rewards = [True, False], [None, 0.5]
    _, state = agent.predict(obs)
    _, found = agent.predict(obs, state, episode_start=starts, reward=rewards)
    _, expected = agent.predict(obs, state, episode_start=starts, reward=[0.0, 0.5])
    for first, second in zip(found, expected, strict=True):
        np.testing.assert_array_equal(first, second)
    with pytest.raises(ObservationError, match="takes rewards as inputs"):
        agent.predict(obs, state, episode_start=starts, reward=[0.5, None])


def test_a_state_of_another_number_of_rows_is_refused(
    trained: tuple[Path, list[Line]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, lines = trained
    agent = load_agent(run)
    obs = np.stack([line.obs for line in lines[:5]])
    _, state = agent.predict(obs[:2])
    with pytest.raises(ObservationError, match="state has 2 rows, but there are 3 observations"):
        agent.predict(obs[2:], state, reward=0.0)
    restarted, _ = agent.predict(obs[2:], state, episode_start=True)
    assert restarted.tolist() == agent.predict(obs[2:])[0].tolist()
    texts = [json.dumps(obs[:2].tolist()), json.dumps({"obs": obs[2:].tolist(), "reward": 0.0})]
    (tmp_path / "lines.jsonl").write_text("\n".join(texts))
    assert main(["predict", str(run), "--obs", str(tmp_path / "lines.jsonl")]) == 2
    shown = capsys.readouterr()
    assert len(shown.out.splitlines()) == 2
    assert shown.err.startswith("error: line 2: the state has 2 rows, but there are 3 observations")
    assert len(shown.err.splitlines()) == 1


def test_a_line_with_an_unknown_key_is_refused(trained: tuple[Path, list[Line]], capsys: pytest.CaptureFixture[str]) -> None:
    run, lines = trained
    assert main(["predict", str(run), "--obs", json.dumps({"obs": lines[0].obs.tolist(), "rewards": 1.0})]) == 2
    assert "did you mean 'reward'" in capsys.readouterr().err
