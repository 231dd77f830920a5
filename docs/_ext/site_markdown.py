"""Pieces of Markdown that generated parts of the site are made of."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from html import escape

from rl_training.bench.document import markdown_table

_SPECIAL = re.compile(r"([\\`*_\[\]<>|$])")
_CODE = re.compile(r"(?:``([^`]+)``|`([^`]+)`)")


def text(plain: object) -> str:
    """Plain text as Markdown, whatever is in it. What it puts between backticks is code."""
    words, found = str(plain), []
    while match := _CODE.search(words):
        found += [_SPECIAL.sub(r"\\\1", words[: match.start()]), code(match[1] or match[2])]
        words = words[match.end() :]
    return "".join([*found, _SPECIAL.sub(r"\\\1", words)])


def code(plain: object) -> str:
    """Text as code in a line, also in a table."""
    return "`" + str(plain).replace("|", "\\|") + "`"


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table that scrolls sideways where it is wider than the page."""
    return markdown_table(header, [list(row) for row in rows])


def fold(summary: str, body: str) -> str:
    """Something behind a line to click on."""
    return f"<details><summary>{escape(summary)}</summary>\n\n{body}\n\n</details>"


def html(block: str) -> str:
    """A piece of HTML as it is. Blank lines would end it."""
    return re.sub(r"\n\s*\n", "\n", block)


def first_sentence(docstring: str | None) -> str:
    """The first sentence of a docstring, on one line."""
    line = " ".join((docstring or "").split("\n\n")[0].split())
    return re.split(r"(?<=\.) (?=[A-Z])", line)[0]
