"""Writes the sections of the pages in docs, so that no figure there is copied by hand."""

from __future__ import annotations

from pathlib import Path

DOCS = Path(__file__).parent.parent / "docs"


def write_section(name: str, text: str, page: str = "benchmarks.md") -> None:
    """Puts the text between the section's marks, in place of what was there."""
    path = DOCS / page
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    before, _, rest = path.read_text("utf-8").partition(begin)
    _, found, after = rest.partition(end)
    if not found:
        raise SystemExit(f"{page} has no section '{name}'")
    path.write_text(f"{before}{begin}\n{text}\n{end}{after}", "utf-8")
