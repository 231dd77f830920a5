"""What the README says of the algorithms is what the algorithms say of themselves."""

from __future__ import annotations

import re

from conftest import TESTS

from rl_training.experiment.registry import get_algorithm

ROW = re.compile(r"^\| [^|]+ \| `(\w+)` \| `(\w+)` \| ([\w, ]+) \| ([\w, ]+) \|$", re.MULTILINE)


def test_the_table_of_algorithms_agrees_with_their_classes() -> None:
    rows = ROW.findall((TESTS.parent / "README.md").read_text("utf-8"))
    assert len(rows) >= 10
    for key, public_name, observations, actions in rows:
        algorithm = get_algorithm(key)
        assert public_name == algorithm.public_name
        assert observations == ", ".join(algorithm.observations)
        assert actions == ", ".join(algorithm.actions)
