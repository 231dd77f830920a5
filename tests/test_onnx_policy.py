"""An ONNX file that ``load_exported`` reads acts as the agent that it was exported from."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from conftest import settings_of
from forgery import put_in_place
from moments import finish_python
from spaces_matrix import Case

from rl_training import ManagedAlgorithm, managed
from rl_training.errors import CheckpointError, ObservationError
from rl_training.experiment.config import resolve_config
from rl_training.runtime.export import load_exported, random_observations
from rl_training.runtime.onnx_policy import OnnxPolicy


def case_of(algo: str, observation: str, action: str, *settings: dict[str, Any], slow: bool = False) -> Any:
    marks = [pytest.mark.slow] if slow else []
    return pytest.param(Case(algo, observation, action), *settings, marks=marks, id=f"{algo}-{observation}-{action}")


MULTI = Case("dqn", "vector", "multi")
REMEMBERING = Case("r2d2", "vector", "discrete"), {"masked": True, "previous_inputs": True}
FACTORS = (2.0, 0.5, 20.0)
CASES = [
    case_of("dqn", "dict", "discrete", {}),
    (MULTI, {"masked": True}),
    case_of("ppo", "vector", "discrete", {"observation_scale": FACTORS}),
    case_of("ppo", "vector", "multi", {"masked": True}, slow=True),
    case_of("sac", "vector", "continuous", {"normalize_observations": True}, slow=True),
    REMEMBERING,
    case_of("recurrent_ppo", "image", "discrete", {}, slow=True),
]
ROWS = 6


Made = Callable[..., tuple[ManagedAlgorithm, OnnxPolicy]]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """An agent and what was exported of it, once for all tests of this module."""

    @functools.cache
    def make(case: Case, masked: bool = False, **settings: Any) -> tuple[ManagedAlgorithm, OnnxPolicy]:
        values = case.values({"masked": masked}, algo_kwargs=settings_of(case.algo, settings))
        agent = managed(case.algo).__new__(managed(case.algo))
        agent._set_up(resolve_config(values), None)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a policy that masks actions
            policy = load_exported(agent.export(tmp_path_factory.mktemp("onnx") / "policy.onnx"))
        agent.close()
        assert isinstance(policy, OnnxPolicy)
        return agent, policy

    return make


def taken(obs: Any, rows: Any) -> Any:
    if isinstance(obs, dict):
        return {key: taken(value, rows) for key, value in obs.items()}
    return [taken(value, rows) for value in obs] if isinstance(obs, list) else obs[rows]


def assert_same(found: Any, expected: Any) -> None:
    assert found.shape == expected.shape
    assert found.dtype == expected.dtype
    np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.filterwarnings("ignore:this policy's environment masks")
@pytest.mark.parametrize(("case", "settings"), CASES)
def test_it_acts_as_the_agent_does(case: Case, settings: dict[str, Any], made: Made) -> None:
    """Batches and single observations, over steps with their state, where some episodes start again."""
    agent, policy = made(case, **settings)
    obs = random_observations(agent.policy.spec, ROWS)
    states: list[Any] = [None, None]
    rng = np.random.default_rng(3)
    for k in range(4):
        now = taken(obs, np.roll(np.arange(ROWS), k))
        starts = None if k == 0 else rng.random(ROWS) < 0.3
        given: dict[str, Any] = {"reward": np.linspace(-1.0, 1.0, ROWS)} if settings.get("previous_inputs") else {}
        expected, states[0] = agent.predict(now, states[0], starts, **given)
        found, states[1] = policy.predict(now, states[1], starts, **given)
        assert_same(found, expected)
    one, state = policy.predict(taken(obs, 2))
    assert_same(np.asarray(one), np.asarray(agent.predict(taken(obs, 2))[0]))
    assert len(state) == len(policy.description["state"])


@pytest.mark.parametrize("case", [MULTI, *(case_of("ppo", "vector", action, slow=True) for action in ("multi", "discrete"))])
def test_it_takes_an_action_mask(case: Case, made: Made) -> None:
    agent, policy = made(case, masked=True)
    obs = random_observations(agent.policy.spec, ROWS)
    sizes = agent.policy.spec.action.sizes or (2,)
    differing = 0
    for forbidden in range(max(sizes)):
        mask = np.concatenate([np.arange(size) != forbidden % size for size in sizes])
        expected = agent.predict(obs, action_mask=mask)[0]
        assert_same(policy.predict(obs, action_mask=mask)[0], expected)
        with pytest.warns(UserWarning, match="predict got no action_mask"):
            differing += int((policy.predict(obs)[0] != expected).any())
    assert differing


def test_a_mask_that_would_change_a_remembered_action_is_refused(made: Made) -> None:
    agent, policy = made(REMEMBERING[0], **REMEMBERING[1])
    with pytest.raises(ObservationError, match=r"remembers its last action.*use an export to .safetensors"):
        policy.predict(random_observations(agent.policy.spec, 1), action_mask=[True, False])


@pytest.mark.filterwarnings("ignore:this policy's environment masks")
def test_bad_input_is_one_sentence(made: Made) -> None:
    _, policy = made(REMEMBERING[0], **REMEMBERING[1])
    obs = np.zeros((2, 3), np.float32)
    _, state = policy.predict(obs)
    calls: list[tuple[str, Callable[[], Any]]] = [
        (r"has shape \(2, 7\); this policy takes \(3,\)", lambda: policy.predict(np.zeros((2, 7)))),
        ("the state has 2 rows, but there are 1", lambda: policy.predict(obs[0], state, reward=0.0)),
        ("this policy takes rewards as inputs", lambda: policy.predict(obs, state)),
    ]
    for words, call in calls:
        with pytest.raises(ObservationError, match=words):
            call()


def test_files_of_others_are_one_sentence(made: Made, tmp_path: Path) -> None:
    path = made(MULTI, masked=True)[0].export(tmp_path / "policy.onnx")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load_exported(path)
    changes: list[tuple[Callable[[dict[str, str]], Any], str]] = [
        (lambda props: props.clear(), "has no description of its inputs"),
        (lambda props: props.update(rl_training="{"), "is not JSON"),
        (lambda props: props.update(rl_training="{}"), "does not fit"),
        (lambda props: props.update(rl_training=props["rl_training"].replace('"obs":', '"view":')), "inputs are not those"),
        (lambda props: props.update(rl_training=props["rl_training"].replace("float32", "float64")), "does not fit"),
        (lambda props: props.update(rl_training=props["rl_training"].replace("float32", "float3")), "does not fit"),
    ]
    for change, words in changes:
        model = onnx.load(path)
        props = {prop.key: prop.value for prop in model.metadata_props}
        change(props)
        del model.metadata_props[:]
        onnx.helper.set_model_props(model, props)
        onnx.save(model, tmp_path / "other.onnx")
        with pytest.raises(CheckpointError, match=words):
            load_exported(tmp_path / "other.onnx")
    model = onnx.load(path)
    onnx.save(model, tmp_path / "other.onnx", save_as_external_data=True, size_threshold=0, location="weights")
    with pytest.raises(CheckpointError, match="has its weights in other files, which an export of rl_training never has"):
        load_exported(tmp_path / "other.onnx")
    (tmp_path / "broken.onnx").write_bytes(path.read_bytes()[:100])
    with pytest.raises(CheckpointError, match="is not an ONNX file that onnxruntime can load"):
        load_exported(tmp_path / "broken.onnx")
    with pytest.raises(CheckpointError, match="cannot read the exported policy"):
        load_exported(tmp_path / "none.onnx")
    put_in_place(tmp_path / "pipe.onnx", "pipe")
    with pytest.raises(CheckpointError, match="a named pipe"):
        load_exported(tmp_path / "pipe.onnx")


def test_a_missing_runtime_names_its_extra(tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules['onnxruntime'] = None\n"
        "from rl_training.errors import MissingExtraError\n"
        "from rl_training.runtime.export import load_exported\n"
        "try:\n    load_exported('policy.onnx')\n"
        "except MissingExtraError as error:\n    print(error)\n"
    )
    done = finish_python("-c", code)
    assert done.stdout.strip() == (
        "loading policy.onnx needs the package 'onnxruntime'; install it with: pip install 'rl-training[onnx]'"
    )
