"""The matrix of spaces: every algorithm of the registry with every form of observations and actions that it takes."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
from conftest import ALGORITHMS, settings_of, tiny_values

from rl_training.experiment.registry import get_algorithm

#: forms of ``SpacesEnv`` and the kinds of observation that they are
OBSERVATIONS = {"vector": "vector", "image": "image", "dict": "mixed"}


class Case(NamedTuple):
    """An algorithm on a form of ``SpacesEnv``."""

    algo: str
    observation: str
    action: str

    def values(self, env_kwargs: dict[str, Any] | None = None, **values: Any) -> dict[str, Any]:
        """Values of a tiny config."""
        stacked = {} if self.observation == "vector" else settings_of(self.algo, {"frame_stack": 3})
        algo_kwargs = {**stacked, **values.pop("algo_kwargs", {})}
        return tiny_values(
            self.algo,
            env_id="rl_training_test_envs:Spaces-v0",
            env_kwargs={"observation": self.observation, "action": self.action, **(env_kwargs or {})},
            **values,
            algo_kwargs=algo_kwargs,
        )


def _cases() -> list[Case]:
    found = []
    for algo in ALGORITHMS:
        entry = get_algorithm(algo)
        usual = "discrete" if "discrete" in entry.actions else "continuous"
        found += [Case(algo, form, usual) for form, kind in OBSERVATIONS.items() if kind in entry.observations]
        if {"discrete", "multi_discrete"} & set(entry.actions) and "vector" in entry.observations:
            found.append(Case(algo, "vector", "multi"))
    return found


MATRIX = _cases()
over_matrix = pytest.mark.parametrize("case", MATRIX, ids="-".join)
