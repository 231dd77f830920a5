"""Writes generated sections into a Markdown page, so that no figure there is copied by hand."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rl_training.errors import ConfigError
from rl_training.experiment.files import replace_text


def write_section(page: Path, name: str, text: str) -> None:
    """Replaces the text between the section's markers. A page that does not exist is created."""
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    if not page.exists():
        page.parent.mkdir(parents=True, exist_ok=True)
        page.write_text("# Benchmarks\n", "utf-8")
    content = page.read_text("utf-8")
    if begin not in content:
        content = f"{content.rstrip()}\n\n{begin}\n{end}\n"
    before, _, rest = content.partition(begin)
    _, found, after = rest.partition(end)
    if not found:
        raise ConfigError(f"{page}: the section '{name}' has no end marker; add '{end}' after it")
    replace_text(page, f"{before}{begin}\n{text}\n{end}{after}")


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table that is also readable as source."""
    lines = [header, *rows]
    widths = [max(3, *(len(line[column]) for line in lines)) for column in range(len(header))]
    rule = ["-" * width for width in widths]
    return "\n".join(
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) + " |"
        for line in (header, rule, *rows)
    )
