"""Writes the figures of the experiments into docs/reliability.md: ``make reliability``."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from reliability import cpus, fuzz, kills, margins
from reliability.results import read
from rl_training.bench.document import markdown_table, write_section

PAGE = Path(__file__).parent.parent.parent / "docs" / "reliability.md"


def kill_section(records: list[dict[str, Any]]) -> str:
    """All kills so far, and how they are spread."""
    groups = {
        "algorithm": "algo",
        "environments of": "family",
        "workers": "workers",
        "number of environments": "num_envs",
        "compiled": "compiled",
    }
    rows = []
    for title, key in groups.items():
        counts: dict[str, Counter[str]] = {}
        for record in records:
            count = counts.setdefault(str(record[key]), Counter())
            for kill in record["kills"]:
                count["kills"] += 1
                count["saving"] += kill["saving"]
                count["identical"] += record["outcome"] == "identical"
        for name, count in sorted(counts.items()):
            rows.append([f"{title} {name}", str(count["kills"]), str(count["saving"]), str(count["identical"])])
    bad = [f"- round {record['round']}: {record['outcome']}" for record in records if record["outcome"] != "identical"]
    table = markdown_table(["of these", "kills", "while saving", "identical"], rows)
    return "\n".join([f"{kills.summary(records)}.\n", table, *(["\nNot identical:\n", *bad] if bad else [])])


def fuzz_section(records: list[dict[str, Any]]) -> str:
    """The examples of each kind, and what they found."""
    rows = []
    for kind in fuzz.SHARES:
        own = [record for record in records if record["kind"] == kind]
        rows.append([kind, str(sum(record["tried"] for record in own)), str(sum(len(record["findings"]) for record in own))])
    return markdown_table(["kind", "examples", "findings"], rows)


def margin_section(records: list[dict[str, Any]]) -> str:
    return markdown_table(["what is learned", "CPU", "bound", "seeds within", "worst", "median"], margins.table(records))


def cpu_section(records: list[dict[str, Any]]) -> str:
    """The last result of each variant and scope."""
    rows = cpus.table(records)
    return markdown_table(["variant", "tests", "result", "failed"], rows) if rows else "Not run yet."


if __name__ == "__main__":
    write_section(PAGE, "kills", kill_section(read(kills.RESULTS)))
    write_section(PAGE, "fuzz", fuzz_section(read(fuzz.RESULTS)))
    write_section(PAGE, "margins", margin_section(read(margins.RESULTS)))
    write_section(PAGE, "cpus", cpu_section(read(cpus.RESULTS)))
