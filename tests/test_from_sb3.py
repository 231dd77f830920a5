"""The guide for users of Stable-Baselines3 names settings that exist, there and here."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import pytest
from conftest import config_fields

from rl_training import managed
from rl_training.errors import HABITS, ConfigError

PAGE = Path(__file__).parent.parent / "docs" / "guides" / "from_sb3.md"
OURS = {
    "PPO": "ppo",
    "A2C": "a2c",
    "DQN": "dqn",
    "QR-DQN": "qr_dqn",
    "SAC": "sac",
    "TQC": "tqc",
    "TD3": "td3",
    "DDPG": "ddpg",
}
OURS["RecurrentPPO"] = "recurrent_ppo"
NAME = re.compile(r"`([a-z][a-z_]+)\b")


def rows() -> list[tuple[list[str], str, str]]:
    """The algorithms of each row of the table of settings, their column and ours."""
    text = PAGE.read_text("utf-8").partition("## Settings")[2].partition("Defaults differ")[0]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("|")]
    return [([*OURS] if names == "all" else names.split(", "), theirs, ours) for names, theirs, ours in cells[2:]]


def listed() -> list[str]:
    """The names that the page calls equal."""
    return NAME.findall(PAGE.read_text("utf-8").partition("are the same:")[2].partition("\n\n")[0])


def theirs(algorithm: str) -> set[str]:
    """The parameters of one of their algorithms and of its policy."""
    pytest.importorskip("stable_baselines3")
    pytest.importorskip("sb3_contrib")
    import sb3_contrib
    import stable_baselines3

    name = algorithm.replace("-", "")
    found: Any = getattr(stable_baselines3, name, None) or getattr(sb3_contrib, name)
    policies = found.policy_aliases.values()
    return {name for each in (found, *policies) for name in inspect.signature(each.__init__).parameters}


def test_our_settings_exist() -> None:
    for algorithms, _, ours in rows():
        known = set().union(*(config_fields(OURS[name]) for name in algorithms))
        named = set(NAME.findall(ours)) - {"kind"}  # of a schedule
        assert named <= known, (algorithms, named - known)
    assert set(listed()) <= set().union(*map(config_fields, OURS.values()))


def test_their_settings_exist() -> None:
    for algorithms, named, _ in rows():
        known = set().union(*map(theirs, algorithms))
        found = set(NAME.findall(named.replace("policy_kwargs=dict(", "`"))) - {"policy_kwargs"}
        assert found <= known, (algorithms, found - known)
    assert set(listed()) <= set().union(*map(theirs, OURS))


@pytest.mark.parametrize(("habit", "name"), HABITS.items())
def test_a_habit_is_answered_with_our_name_for_it(habit: str, name: str) -> None:
    meant = [algorithms for algorithms, theirs, ours in rows() if f"`{habit}" in theirs and name in ours]
    assert meant, "the guide says so too"
    given: dict[str, Any] = {habit: 1}
    having = [algorithm for algorithm in meant[0] if name in config_fields(OURS[algorithm])]
    assert having
    for algorithm in having:
        with pytest.raises(ConfigError, match=f"has no setting '{habit}'; did you mean '{name}'"):
            managed(OURS[algorithm])("CartPole-v1", **given)


def test_recurrent_ppo_has_minibatches_by_their_number() -> None:
    with pytest.raises(ConfigError, match="RecurrentPPO has no setting 'batch_size'; did you mean 'n_minibatches'"):
        managed("recurrent_ppo")("CartPole-v1", batch_size=64)
