"""The constructors of the managed classes have real parameters, which come from the models of the settings. (That a type
checker knows them is shown by ``planted_mistakes/agents_get_wrong_settings.py``.)"""

from __future__ import annotations

import ast
import inspect
import pydoc
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import pytest
from conftest import TESTS
from make_stubs import STUB, stub_text

from rl_training import ManagedAlgorithm, managed
from rl_training.api.agents import _managed
from rl_training.api.environments import EnvLike
from rl_training.api.signatures import MadeWhenUsed
from rl_training.errors import ConfigError
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.registry import algorithms, get_algorithm
from rl_training.experiment.settings import groups_of

NAMES = {"Any": Any, "EnvLike": EnvLike, "Literal": Literal, "Mapping": Mapping, "Path": Path, "Sequence": Sequence}
NOT_SETTINGS = {"env", "init_from", "overwrite"}
IMPLIED = {"algo", "env_id", "env_from_python", "env_vector", "algo_kwargs"}


@pytest.fixture(params=[*algorithms(), "munchausen.algorithm:MunchausenDQN"])
def agent_class(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> type[ManagedAlgorithm]:
    monkeypatch.syspath_prepend(str(TESTS / "out_of_tree"))
    return managed(request.param)


def test_every_setting_is_a_parameter_with_its_default(agent_class: type[ManagedAlgorithm]) -> None:
    parameters = dict(inspect.signature(agent_class).parameters)
    own = agent_class.algorithm_class.config_class
    assert parameters.keys() - NOT_SETTINGS == own.model_fields.keys() | (TrainConfig.model_fields.keys() - IMPLIED)
    assert next(iter(parameters)) == "env"
    for name, parameter in parameters.items():
        assert parameter.kind == (parameter.POSITIONAL_OR_KEYWORD if name == "env" else parameter.KEYWORD_ONLY)
        assert eval(parameter.annotation, NAMES)
    agent = agent_class("CartPole-v1")
    for name in own.model_fields:
        assert parameters[name].default == getattr(agent.config.algo_kwargs, name), name
    for name in TrainConfig.model_fields.keys() - IMPLIED - groups_of(TrainConfig).keys():
        assert parameters[name].default == getattr(agent.config, name), name


def test_help_has_every_setting_with_its_range_and_meaning(agent_class: type[ManagedAlgorithm]) -> None:
    text = pydoc.plain(pydoc.render_doc(agent_class))
    for line in (
        "gamma: discount factor (float, at least 0 and at most 1; default 0.99)",
        "env_timeout: time limit of a step or a reset in seconds",
        "None: no limit (float | None, above 0; default None)",
    ):
        assert line in text
    for name, field in agent_class.algorithm_class.config_class.model_fields.items():
        assert field.description, name
        assert f"{name}: {field.description.replace('null', 'None')}" in text


def test_a_parameter_that_there_is_not_is_refused_by_name(agent_class: type[ManagedAlgorithm]) -> None:
    with pytest.raises(ConfigError, match="has no setting 'learning_rat'; did you mean 'learning_rate'"):
        agent_class("CartPole-v1", learning_rat=1e-3)


def test_the_stub_is_that_of_this_version() -> None:
    assert STUB.read_text("utf-8") == stub_text(), "run: make stubs"
    ast.parse(stub_text())


def test_an_agent_without_an_environment_is_named() -> None:
    with pytest.raises(TypeError, match=r"^DQN needs an environment, .*: DQN\('CartPole-v1'\)$"):
        managed("dqn")(seed=1)  # type: ignore[call-arg]


def test_a_signature_is_made_when_it_is_first_asked_for() -> None:
    new = [_managed.__wrapped__(get_algorithm("dqn")) for _ in range(3)]
    assert all(isinstance(vars(one)["__init__"], MadeWhenUsed) for one in new)
    assert "learning_rate" in inspect.signature(new[0]).parameters
    assert "learning_rate: " in str(inspect.getdoc(new[1].__init__))
    parent = new[2]

    class Child(parent):  # type: ignore[misc, valid-type]
        def __init__(self, env: str, extra: int, **settings: Any) -> None:
            super().__init__(env, **settings)
            self.extra = extra

    child = Child("CartPole-v1", 5, seed=3)
    assert (child.config.seed, child.extra) == (3, 5)
    assert inspect.signature(type("Heir", (parent,), {})) == inspect.signature(new[0])
    assert all(inspect.isfunction(vars(one)["__init__"]) for one in new)
