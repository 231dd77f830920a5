"""The type checker finds each of the planted mistakes in ``planted_mistakes``, and nothing else there.

Run by ``make check``, after mypy itself: it needs a minute for what it has not seen yet, and then seconds.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from mypy import api

pytestmark = pytest.mark.slow
TESTS = Path(__file__).parent
FOLDER = TESTS / "planted_mistakes"
EXPECTED = re.compile(r"# expect: (.+)$")
FOUND = re.compile(r"^(?:.*/)?(\w+)\.py:(\d+): error: .*\[([\w-]+)\]$")


@pytest.fixture(scope="module")
def found() -> dict[str, set[tuple[int, str]]]:
    """Errors by file: line and code."""
    config = TESTS.parent / "pyproject.toml"
    output, errors, _ = api.run(["--config-file", str(config), "--no-error-summary", *map(str, sorted(FOLDER.glob("*.py")))])
    assert not errors
    errors_by_file: dict[str, set[tuple[int, str]]] = {path.stem: set() for path in FOLDER.glob("*.py")}
    for line in output.splitlines():
        match = FOUND.match(line)
        if match:
            errors_by_file[match[1]].add((int(match[2]), match[3]))
    return errors_by_file


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.py")), ids=lambda path: path.stem)
def test_a_planted_mistake_is_found(path: Path, found: dict[str, set[tuple[int, str]]]) -> None:
    expected = {
        (number, code)
        for number, line in enumerate(path.read_text().splitlines(), start=1)
        if (match := EXPECTED.search(line))
        for code in match[1].split(", ")
    }
    assert expected
    assert found[path.stem] == expected
