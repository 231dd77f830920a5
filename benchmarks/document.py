"""Writes a section of docs/benchmarks.md, so that no figure there is copied by hand."""

from __future__ import annotations

from pathlib import Path

PAGE = Path(__file__).parent.parent / "docs" / "benchmarks.md"


def write_section(name: str, text: str) -> None:
    """Puts the text between the section's marks, in place of what was there."""
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    before, _, rest = PAGE.read_text("utf-8").partition(begin)
    _, found, after = rest.partition(end)
    if not found:
        raise SystemExit(f"{PAGE.name} has no section '{name}'")
    PAGE.write_text(f"{before}{begin}\n{text}\n{end}{after}", "utf-8")
