"""What the README says of the algorithms is what the algorithms say of themselves."""

from __future__ import annotations

import re

from conftest import TESTS

from rl_training.experiment.registry import get_algorithm

OBSERVATIONS = {
    ("vector",): "vector",
    ("vector", "image", "mixed"): "vector, image, both",
    ("image", "mixed"): "image, with vectors beside it",
}
ACTIONS = {
    ("discrete",): "discrete, several choices",
    ("continuous",): "continuous",
    ("discrete", "multi_discrete", "continuous", "unbounded"): "discrete, several choices, continuous, unbounded",
}
ROW = re.compile(r"^\| [^|]+ \| `(\w+)` \| `(\w+)` \| ([\w, ]+) \| ([\w, ]+) \|$", re.MULTILINE)


def test_the_table_of_algorithms_agrees_with_their_classes() -> None:
    rows = ROW.findall((TESTS.parent / "README.md").read_text("utf-8"))
    assert len(rows) >= 10
    for key, public_name, observations, actions in rows:
        algorithm = get_algorithm(key)
        assert public_name == algorithm.public_name
        assert observations == OBSERVATIONS[algorithm.observations]
        assert actions == ACTIONS[algorithm.actions]
